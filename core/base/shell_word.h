// Paths in command lines that messages show, to be copied into a shell.
#pragma once
#include <string>
#include <string_view>

namespace fvlm {

// The text as one word of a POSIX shell: in quotation marks where it has spaces or other characters that mean
// something.
std::string shell_word(std::string_view text);

} // namespace fvlm
