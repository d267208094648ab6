// Texts that match a regular expression from end to end.
#pragma once
#include "grammar/json_parts.h"

#include <string_view>

namespace fvlm::grammar {

// Such a text, as the inside of a JSON string: a node from which it leads to `next`. Of regular expressions there are
// characters, `.`, classes, groups, `|` and counts; `^` and `$` at the ends, where they change nothing. \d, \w and \s,
// also negated, have characters of ASCII alone, on which all dialects agree, and no text has control characters but \b,
// \f, \n, \r and \t. `pattern` is UTF-8. Throws Error(usage) for what is none, and for all else.
Grammar::Node matching(std::string_view pattern, Parts& parts, Grammar::Node next);

// Such a text by itself, as it is.
Grammar of_pattern(std::string_view pattern);

} // namespace fvlm::grammar
