// UTF-8 decoding and the Unicode properties that pre-tokenizers need.
#pragma once
#include "base/utf8.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fvlm {

enum CharClass : uint16_t {
  class_letter = 1,       // \p{L}
  class_number = 2,       // \p{N}
  class_space = 4,        // \s
  class_line_break = 8,   // \r and \n
  class_digit_split = 16, // digits as the pre-tokenizer "Digits" defines them
  class_word = 32,        // \w
  class_upper = 64,       // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  class_lower = 128,      // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  class_symbol = 256      // [\p{P}\p{S}]
};

// CharClass bits for each code point, 0x110000 of them.
const uint16_t* char_classes();

struct Decoded {
  uint32_t point;
  uint32_t length; // bytes
};

// The code point at text[at]. The text must be valid UTF-8.
inline Decoded decode_at(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// The text with each maximal ill-formed sequence replaced by U+FFFD, like Python's errors="replace". Valid text is not
// copied.
class ValidUtf8 {
 public:
  explicit ValidUtf8(std::string_view text);
  std::string_view view() const { return replaced_.empty() ? text_ : std::string_view(replaced_); }

 private:
  std::string_view text_;
  std::string replaced_;
};

// GPT-2's mapping of bytes to printable characters: byte 0x20 is written as U+0120, and so on.
struct ByteAlphabet {
  std::array<uint16_t, 256> point_of_byte;
  std::array<int16_t, 512> byte_of_point; // -1 where the character stands for no byte
};
const ByteAlphabet& byte_alphabet();

} // namespace fvlm
