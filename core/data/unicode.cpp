#include "data/unicode.h"

#include <vector>

namespace fvlm {
namespace {

struct Range {
  uint32_t first, last;
};

#include "data/unicode_ranges.inc"

// Length of the well-formed sequence at the beginning of `text`, or 0 and the length of its ill-formed part.
struct Sequence {
  size_t good, bad;
};

Sequence sequence_at(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  unsigned first = byte(0);
  if (first < 0x80) return {1, 0};
  size_t length = first >= 0xC2 && first < 0xE0   ? 2
                  : first >= 0xE0 && first < 0xF0 ? 3
                  : first >= 0xF0 && first < 0xF5 ? 4
                                                  : 0;
  if (length == 0) return {0, 1};
  // The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF.
  unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return {0, 1};
  for (size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return {0, i};
  return {length, 0};
}

} // namespace

const uint16_t* char_classes() {
  static const std::vector<uint16_t> classes = [] {
    std::vector<uint16_t> made(0x110000);
    auto mark = [&](const auto& ranges, uint16_t bits) {
      for (const Range& range : ranges)
        for (uint32_t point = range.first; point <= range.last; ++point) made[point] |= bits;
    };
    auto clear = [&](const auto& ranges, uint16_t bits) {
      for (const Range& range : ranges)
        for (uint32_t point = range.first; point <= range.last; ++point) made[point] &= static_cast<uint16_t>(~bits);
    };
    mark(letters, class_letter | class_word);
    mark(numbers, class_number | class_digit_split);
    mark(numbers_of_17, class_digit_split);
    mark(spaces, class_space);
    mark(punctuation_and_symbols, class_symbol);
    mark(marks, class_word);
    mark(digits_and_joiners, class_word);
    // Letters without a case, and marks, stand in words of either.
    mark(letters, class_upper | class_lower);
    mark(marks, class_upper | class_lower);
    clear(uppercase, class_lower);
    clear(lowercase, class_upper);
    made['\r'] |= class_line_break;
    made['\n'] |= class_line_break;
    return made;
  }();
  return classes.data();
}

ValidUtf8::ValidUtf8(std::string_view text) : text_(text) {
  size_t at = 0;
  auto next = [&] { return sequence_at(text.substr(at, 4)); };
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    Sequence sequence = next();
    if (sequence.good == 0) break;
    at += sequence.good;
  }
  if (at == text.size()) return;
  replaced_.assign(text.substr(0, at));
  while (at < text.size()) {
    Sequence sequence = next();
    if (sequence.good > 0) {
      replaced_.append(text.substr(at, sequence.good));
      at += sequence.good;
    } else {
      append_utf8(replaced_, 0xFFFD);
      at += sequence.bad;
    }
  }
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet = [] {
    ByteAlphabet made;
    made.byte_of_point.fill(-1);
    uint16_t spare = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      uint16_t point = printable ? static_cast<uint16_t>(byte) : spare++;
      made.point_of_byte[byte] = point;
      made.byte_of_point[point] = static_cast<int16_t>(byte);
    }
    return made;
  }();
  return alphabet;
}

} // namespace fvlm
