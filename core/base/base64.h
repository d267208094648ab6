// Base64 of the usual alphabet, with padding.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

std::string encode_base64(std::string_view bytes);
// Nothing for what is not valid. The padding may be missing.
std::optional<std::string> decode_base64(std::string_view text);
// Whether a text that may be a path is a file in base64 instead: it is longer than 64 characters, and base64 alone.
bool is_base64_file(std::string_view text);

} // namespace fvlm
