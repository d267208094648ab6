#include "jinja/lexer.h"

#include "base/error.h"
#include "jinja/code_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace fvlm::jinja {
namespace {

using Kind = Token::Kind;

// \r\n and \r become \n, and one newline at the end is dropped.
std::string normalize_lines(std::string_view source) {
  std::string made;
  made.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      made += source[i];
    } else {
      made += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (made.ends_with('\n')) made.pop_back();
  return made;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

int hex_value(char c) {
  return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where) : source_(normalize_lines(source)), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, what).at("{}:{}", where_, line_);
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  void add(Kind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  void skip_space() {
    std::string_view left = strip(rest(), Side::left);
    advance_to(source_.size() - left.size());
  }

  // Text up to the next tag, and the tag.
  void root() {
    size_t tag = at_;
    while ((tag = source_.find('{', tag)) != std::string::npos &&
           (tag + 1 >= source_.size() || std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos))
      ++tag;
    if (tag == std::string::npos) {
      add(Kind::data, std::string(rest()));
      advance_to(source_.size());
      return;
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    data_before(tag, kind, sign);
    advance_to(tag + 2 + (sign == '-' || sign == '+'));
    if (kind == '#')
      comment();
    else if (kind == '{')
      tag_of(Kind::variable_begin, Kind::variable_end, "}}");
    else if (!raw())
      tag_of(Kind::block_begin, Kind::block_end, "%}");
  }

  void data_before(size_t tag, char kind, char sign) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (sign == '-')
      text = strip(text, Side::right);
    else if (sign != '+' && kind != '{') {
      const size_t line_break = text.rfind('\n');
      if (line_break != std::string_view::npos || line_starts_) {
        const size_t begin = line_break == std::string_view::npos ? 0 : line_break + 1;
        if (strip(text.substr(begin), Side::left).empty()) text = text.substr(0, begin);
      }
    }
    if (!text.empty()) add(Kind::data, std::string(text));
  }

  // What follows the end of a block or comment whose sign is before `closer`.
  void after_closer(char sign) {
    const size_t before = at_;
    if (sign == '-')
      skip_space();
    else if (sign != '+' && peek() == '\n')
      advance_to(at_ + 1);
    line_starts_ = source_[std::max(at_, before) - 1] == '\n';
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment '{#' is not closed by '#}'");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance_to(end + 2);
    after_closer(sign);
  }

  // {% raw %} up to {% endraw %}; false for another block.
  bool raw() {
    std::string_view inside = strip(rest(), Side::left);
    if (!inside.starts_with("raw")) return false;
    inside = strip(inside.substr(3), Side::left);
    const bool minus = inside.starts_with("-%}");
    if (!minus && !inside.starts_with("%}")) return false;
    const int begin_line = line_;
    advance_to(source_.size() - inside.size() + (minus ? 3 : 2));
    if (minus) skip_space();
    line_starts_ = source_[at_ - 1] == '\n';
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      std::string_view name = strip(std::string_view(source_).substr(tag + 2 + has_sign), Side::left);
      if (!name.starts_with("endraw")) continue;
      name = strip(name.substr(6), Side::left);
      const char closing = name.empty() ? '\0' : name[0];
      if (closing == '-' || closing == '+') name.remove_prefix(1);
      if (!name.starts_with("%}")) continue;
      data_before(tag, '%', has_sign ? sign : '\0');
      advance_to(source_.size() - name.size() + 2);
      after_closer(closing);
      return true;
    }
    line_ = begin_line;
    fail("{% raw %} is not closed by {% endraw %}");
  }

  void tag_of(Kind begin, Kind end, std::string_view closer) {
    const int begin_line = line_;
    add(begin, "");
    brackets_.clear();
    while (true) {
      skip_space();
      if (at_ >= source_.size()) {
        line_ = begin_line;
        fail(fmt::format("a '{}' is not closed by '{}'", begin == Kind::block_begin ? "{%" : "{{", closer));
      }
      const char sign = peek();
      const bool has_sign = sign == '-' || (sign == '+' && end == Kind::block_end);
      if (brackets_.empty() && rest().substr(has_sign).starts_with(closer)) {
        add(end, "");
        advance_to(at_ + has_sign + 2);
        if (end == Kind::block_end)
          after_closer(has_sign ? sign : '\0');
        else if (sign == '-')
          skip_space();
        line_starts_ = source_[at_ - 1] == '\n';
        return;
      }
      token();
    }
  }

  void token() {
    const char c = peek();
    if (is_digit(c))
      number();
    else if (begins_name(c))
      name();
    else if (c == '\'' || c == '"')
      string(c);
    else
      op();
  }

  void name() {
    size_t end = at_;
    while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
    add(Kind::name, source_.substr(at_, end - at_));
    advance_to(end);
  }

  void number() {
    std::string digits;
    size_t end = at_;
    auto take_digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) ||
                                      (source_[end] == '_' && end + 1 < source_.size() && is_digit(source_[end + 1]))))
        digits += source_[end++];
    };
    take_digits();
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    bool real = false;
    auto is_digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    if (!after_dot && end < source_.size() && source_[end] == '.' && is_digit_at(end + 1)) {
      real = true;
      digits += source_[end++];
      take_digits();
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (is_digit_at(end + 1 + sign)) {
        real = true;
        digits.append(source_, end, 1 + sign);
        end += 1 + sign;
        take_digits();
      }
    }
    std::erase(digits, '_');
    add(real ? Kind::real : Kind::integer, digits);
    Token& made = tokens_.back();
    auto parsed = real ? std::from_chars(digits.data(), digits.data() + digits.size(), made.real)
                       : std::from_chars(digits.data(), digits.data() + digits.size(), made.integer);
    if (parsed.ec != std::errc{}) fail(fmt::format("the number {} is out of range", digits));
    if (!real && digits.size() > 1 && digits[0] == '0') fail(fmt::format("the number {} begins with a zero", digits));
    advance_to(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed");
    add(Kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance_to(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    static constexpr std::string_view letters = "abfnrtv\\'\"", values = "\a\b\f\n\r\t\v\\'\"";
    std::string made;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        made += text[i];
        continue;
      }
      const char c = text[++i];
      if (size_t at = letters.find(c); at != std::string_view::npos)
        made += values[at];
      else if (c == '\n') // continues on the next line
        continue;
      else if (c == 'x' || c == 'u' || c == 'U')
        i = hexadecimal(text, i, c == 'x' ? 2 : c == 'u' ? 4 : 8, made);
      else if (c >= '0' && c <= '7')
        i = octal(text, i, made);
      else if (c == 'N')
        fail("an escape \\N{...} in a string is not supported");
      else
        made.append(1, '\\').append(1, c);
    }
    return made;
  }

  size_t hexadecimal(std::string_view text, size_t at, size_t digits, std::string& made) const {
    uint32_t point = 0;
    for (size_t i = at + 1; i <= at + digits; ++i) {
      const int value = i < text.size() ? hex_value(text[i]) : -1;
      if (value < 0) fail(fmt::format("an escape \\{} in a string needs {} hexadecimal digits", text[at], digits));
      point = point << 4 | static_cast<uint32_t>(value);
    }
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      fail(fmt::format("an escape in a string names U+{:04X}, which is no character", point));
    append_utf8(made, point);
    return at + digits;
  }

  static size_t octal(std::string_view text, size_t at, std::string& made) {
    uint32_t point = 0;
    size_t end = at;
    while (end < text.size() && end < at + 3 && text[end] >= '0' && text[end] <= '7')
      point = point << 3 | static_cast<uint32_t>(text[end++] - '0');
    append_utf8(made, point);
    return end - 1;
  }

  void op() {
    static constexpr std::array<std::string_view, 25> known = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                               ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (std::string_view candidate : known) {
      if (!rest().starts_with(candidate)) continue;
      balance(candidate[0]);
      add(Kind::op, std::string(candidate));
      advance_to(at_ + candidate.size());
      return;
    }
    fail(fmt::format("unexpected character '{}'", code_points(rest().substr(0, 4)).front()));
  }

  void balance(char c) {
    static constexpr std::string_view open = "([{", close = ")]}";
    if (open.find(c) != std::string_view::npos) brackets_ += c;
    const size_t closing = close.find(c);
    if (closing == std::string_view::npos) return;
    if (brackets_.empty() || brackets_.back() != open[closing]) fail(fmt::format("unexpected '{}'", c));
    brackets_.pop_back();
  }

  std::string source_;
  const std::string& where_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true; // the last tag ended with a line break, or there was none
  std::string brackets_;
  std::vector<Token> tokens_;
};

} // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  return Lexer(source, where).run();
}

} // namespace fvlm::jinja
