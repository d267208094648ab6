#include "data/pretokenizer.h"

#include "data/unicode.h"

#include <algorithm>

namespace fvlm {
namespace {

// Reads on through code points whose class satisfies a condition.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(char_classes()) {}

  uint16_t class_at(size_t at) const { return classes_[decode_at(text_, at).point]; }

  template <class Condition>
  size_t skip(size_t at, Condition condition) const {
    while (at < text_.size()) {
      Decoded decoded = decode_at(text_, at);
      if (!condition(classes_[decoded.point])) break;
      at += decoded.length;
    }
    return at;
  }

 private:
  std::string_view text_;
  const uint16_t* classes_;
};

bool is_letter(uint16_t c) {
  return c & class_letter;
}
bool is_number(uint16_t c) {
  return c & class_number;
}
bool is_space(uint16_t c) {
  return c & class_space;
}
bool is_line_break(uint16_t c) {
  return c & class_line_break;
}
bool is_upper(uint16_t c) {
  return c & class_upper;
}
bool is_lower(uint16_t c) {
  return c & class_lower;
}
bool is_other(uint16_t c) {
  return !(c & (class_letter | class_number | class_space));
}
// Among characters of both kinds of words, those of capital and those of small letters, marks are what is no letter.
bool is_mark(uint16_t c) {
  return (c & class_upper) && !(c & class_letter);
}
bool is_letter_or_mark(uint16_t c) {
  return c & (class_letter | class_upper);
}
bool is_symbol(uint16_t c) {
  return c & class_symbol;
}
bool is_other_but_marks(uint16_t c) {
  return is_other(c) && !is_mark(c);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// 's 't 're 've 'm 'll 'd after the apostrophe at `at`: the end, or `at` where none stands there.
size_t contraction_end(std::string_view text, size_t at, bool fold_case) {
  std::string_view rest = text.substr(at + 1, 2);
  auto letter = [&](size_t i) { return i < rest.size() ? (fold_case ? lower(rest[i]) : rest[i]) : '\0'; };
  char first = letter(0), second = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  if (fold_case && rest == "\u017F") return at + 3; // the long s folds to s
  return at;
}

// \s+(?!\S)|\s+ : a run of white space, but its last character goes to the word behind it.
size_t space_end(std::string_view text, size_t at) {
  size_t last = at, end = at;
  const uint16_t* classes = char_classes();
  while (end < text.size()) {
    Decoded decoded = decode_at(text, end);
    if (!is_space(classes[decoded.point])) return last > at ? last : end;
    last = end;
    end += decoded.length;
  }
  return end;
}

size_t gpt2_end(std::string_view text, size_t at) {
  Scanner scan(text);
  if (text[at] == '\'')
    if (size_t end = contraction_end(text, at, false); end > at) return end;
  size_t body = text[at] == ' ' ? at + 1 : at;
  if (body < text.size()) {
    uint16_t kind = scan.class_at(body);
    if (is_letter(kind)) return scan.skip(body, is_letter);
    if (is_number(kind)) return scan.skip(body, is_number);
    if (is_other(kind)) return scan.skip(body, is_other);
  }
  return space_end(text, at);
}

// What GPT-4's pattern and Mistral's end with, after words and numbers: punctuation with the characters of `behind`
// that follow, and white space.
template <class Condition>
size_t punctuation_or_space_end(std::string_view text, size_t at, const char* behind, Condition is_punctuation) {
  Scanner scan(text);
  size_t body = text[at] == ' ' ? at + 1 : at; //  ?[^\s\p{L}\p{N}]+[behind]*
  if (body < text.size() && is_punctuation(scan.class_at(body)))
    return std::min(text.find_first_not_of(behind, scan.skip(body, is_punctuation)), text.size());
  // \s*[\r\n]+ : up to the last line break of the run of white space
  size_t run = scan.skip(at, is_space);
  size_t line_break = text.substr(at, run - at).find_last_of("\r\n");
  if (line_break != std::string_view::npos) return at + line_break + 1;
  return space_end(text, at);
}

// GPT-4's pattern, with at most `max_digits` digits in a word. `in_word` is \p{L}, or with it \p{M}, which then is no
// punctuation.
template <class InWord, class Punctuation>
size_t gpt4_end(std::string_view text, size_t at, int max_digits, InWord in_word, Punctuation is_punctuation) {
  Scanner scan(text);
  if (text[at] == '\'')
    if (size_t end = contraction_end(text, at, true); end > at) return end;
  Decoded first = decode_at(text, at);
  uint16_t kind = char_classes()[first.point];
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (in_word(kind)) return scan.skip(at, in_word);
  size_t second = at + first.length;
  if (!is_number(kind) && !is_line_break(kind) && second < text.size() && in_word(scan.class_at(second)))
    return scan.skip(second, in_word);
  if (is_number(kind)) { // \p{N}{1,max_digits}
    size_t end = at;
    for (int i = 0; i < max_digits && end < text.size() && is_number(scan.class_at(end)); ++i)
      end += decode_at(text, end).length;
    return end;
  }
  return punctuation_or_space_end(text, at, "\r\n", is_punctuation);
}

// [upper]*[lower]+ with the longest [upper]* that leaves something to [lower]+; `at` where there is no such word. What
// belongs to both classes has no case.
size_t lower_word_end(std::string_view text, size_t at) {
  const uint16_t* classes = char_classes();
  size_t end = at, last_lower_end = at;
  while (end < text.size()) {
    const Decoded decoded = decode_at(text, end);
    const uint16_t kind = classes[decoded.point];
    if (!is_upper(kind)) return is_lower(kind) ? Scanner(text).skip(end, is_lower) : last_lower_end;
    end += decoded.length;
    if (is_lower(kind)) last_lower_end = end;
  }
  return last_lower_end;
}

size_t tekken_end(std::string_view text, size_t at) {
  Scanner scan(text);
  const Decoded first = decode_at(text, at);
  const uint16_t kind = char_classes()[first.point];
  // [^\r\n\p{L}\p{N}]? before a word, which may be a mark that a word could begin with, too
  const bool skips_first = !is_letter(kind) && !is_number(kind) && !is_line_break(kind);
  const size_t begin = skips_first ? at + first.length : at;
  if (const size_t end = lower_word_end(text, begin); end > begin) return end;
  if (const size_t end = lower_word_end(text, at); end > at) return end;
  if (const size_t end = scan.skip(begin, is_upper); end > begin) return end; // [upper]+[lower]*
  if (is_number(kind)) return at + first.length;
  return punctuation_or_space_end(text, at, "\r\n/", is_other);
}

bool is_ascii_letter(uint32_t point) {
  return (point >= 'A' && point <= 'Z') || (point >= 'a' && point <= 'z');
}

// `at` where nothing of the pattern begins there: numbers, and what is of no class.
size_t deepseek3_end(std::string_view text, size_t at) {
  const uint16_t* classes = char_classes();
  const Scanner scan(text);
  const Decoded first = decode_at(text, at);
  const uint16_t kind = classes[first.point];
  const size_t second = at + first.length;
  const bool has_second = second < text.size();
  // [ASCII punctuation][A-Za-z]+
  if (first.point < 0x80 && is_symbol(kind) && has_second && is_ascii_letter(decode_at(text, second).point)) {
    size_t end = second;
    while (end < text.size() && is_ascii_letter(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  }
  // [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
  if (is_letter_or_mark(kind)) return scan.skip(at, is_letter_or_mark);
  if (!is_line_break(kind) && !is_symbol(kind) && has_second && is_letter_or_mark(scan.class_at(second)))
    return scan.skip(second, is_letter_or_mark);
  return punctuation_or_space_end(text, at, "\r\n", is_symbol); // [\p{P}\p{S}]
}

// Where the white space at the end of a text begins.
size_t trailing_space_begin(std::string_view text) {
  size_t begin = text.size();
  for (size_t at = begin; at > 0; begin = at) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    if (!is_space(char_classes()[decode_at(text, at).point])) break;
  }
  return begin;
}

// The end of what matches at `at`, or `at`: nothing does.
size_t match_end(const WordSplit& split, std::string_view text, size_t at) {
  switch (split.pattern) {
  case WordPattern::gpt2:
    return gpt2_end(text, at);
  case WordPattern::llama3:
    return gpt4_end(text, at, 3, is_letter, is_other);
  case WordPattern::qwen2:
    return gpt4_end(text, at, 1, is_letter, is_other);
  case WordPattern::qwen3_5:
    return gpt4_end(text, at, 1, is_letter_or_mark, is_other_but_marks);
  case WordPattern::nanochat:
    return gpt4_end(text, at, 2, is_letter, is_other);
  case WordPattern::tekken:
    return tekken_end(text, at);
  case WordPattern::deepseek3:
    return deepseek3_end(text, at);
  case WordPattern::digits: {
    const Decoded decoded = decode_at(text, at);
    return char_classes()[decoded.point] & class_digit_split ? at + decoded.length : at;
  }
  case WordPattern::characters:
    return split.characters->end(text, at);
  case WordPattern::trailing_space:
    break; // see word_end()
  }
  return at;
}

} // namespace

std::string_view pattern_text(WordPattern pattern) {
  switch (pattern) {
  case WordPattern::gpt2:
    return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  case WordPattern::llama3:
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  case WordPattern::qwen2:
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  case WordPattern::qwen3_5:
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  case WordPattern::tekken:
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  case WordPattern::nanochat:
    return R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
  case WordPattern::deepseek3:
    return R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  case WordPattern::trailing_space:
    return R"(\s+$)";
  case WordPattern::digits:
  case WordPattern::characters:
    break;
  }
  return "";
}

size_t word_end(const WordSplit& split, std::string_view text, size_t at) {
  if (split.pattern == WordPattern::trailing_space) {
    const size_t begin = trailing_space_begin(text);
    return at < begin ? begin : text.size();
  }
  if (const size_t end = match_end(split, text, at); end > at) return end;
  do at += decode_at(text, at).length;
  while (at < text.size() && match_end(split, text, at) == at);
  return at;
}

} // namespace fvlm
