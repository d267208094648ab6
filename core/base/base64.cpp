#include "base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace fvlm {
namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> table_of_values() {
  std::array<int8_t, 256> table{};
  table.fill(-1);
  for (size_t i = 0; i < alphabet.size(); ++i) table[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
  return table;
}
constexpr std::array<int8_t, 256> values = table_of_values();

std::string_view without_padding(std::string_view text) {
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  return text;
}

} // namespace

std::string encode_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i)
      group = group << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) out += at + i > bytes.size() ? '=' : alphabet[group >> (18 - 6 * i) & 63];
  }
  return out;
}

std::optional<std::string> decode_base64(std::string_view text) {
  text = without_padding(text);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int held = 0;
  for (const char letter : text) {
    const int8_t value = values[static_cast<uint8_t>(letter)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<char>(bits >> held & 0xFF));
  }
  if (held >= 6) return std::nullopt; // in the middle of a byte
  return bytes;
}

bool is_base64_file(std::string_view text) {
  constexpr size_t longest_name = 64;
  return text.size() > longest_name &&
         std::ranges::all_of(without_padding(text), [](char c) { return values[static_cast<uint8_t>(c)] >= 0; });
}

} // namespace fvlm
