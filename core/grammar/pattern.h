// Texts that match a regular expression from end to end, as the inside of a JSON string.
#pragma once
#include "grammar/json_parts.h"

#include <string_view>

namespace fvlm::grammar {

// A node from which such a text leads to `next`. Of regular expressions there are characters, `.`, classes, groups, `|`
// and counts; `^` and `$` at the ends, where they change nothing. \d, \w and \s, also negated, have characters of ASCII
// alone, on which all dialects agree. Throws Error(usage) for what is none, and for all else.
Grammar::Node matching(std::string_view pattern, Parts& parts, Grammar::Node next);

} // namespace fvlm::grammar
