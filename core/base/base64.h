// Base64 of the usual alphabet, with padding.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

std::string encode_base64(std::string_view bytes);
// Nothing for what is not valid. The padding may be missing.
std::optional<std::string> decode_base64(std::string_view text);

} // namespace fvlm
