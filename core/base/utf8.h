// The bytes of characters in UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fvlm {

// The length of the character at the beginning of `text`, which is not empty. 0 for invalid UTF-8: overlong forms,
// surrogates and what lies beyond Unicode, too; more than text.size() where the character is incomplete.
size_t utf8_size(std::string_view text);
bool is_utf8(std::string_view text);

// The code point of a complete character.
uint32_t code_point(std::string_view character);
void append_utf8(std::string& out, uint32_t point);

} // namespace fvlm
