#include "evaluation/forms/python_list.h"

#include "base/text.h"
#include "base/utf8.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace fvlm::evaluation {
namespace {

class PythonList {
 public:
  explicit PythonList(std::string_view text) : text_(text) {}

  std::optional<std::vector<std::string>> read() {
    std::vector<std::string> items;
    if (!take('[')) return std::nullopt;
    while (!take(']')) {
      if (!items.empty() && !take(',')) return std::nullopt;
      if (!items.empty() && take(']')) break; // behind a last comma
      auto item = starts_with_quote() ? quoted() : plain();
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
    }
    skip_spaces();
    return text_.empty() ? std::optional(std::move(items)) : std::nullopt;
  }

 private:
  void skip_spaces() { text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size())); }

  bool take(char c) {
    skip_spaces();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool starts_with_quote() {
    skip_spaces();
    return text_.starts_with('\'') || text_.starts_with('"');
  }

  // A number or a name of Python's: "[See below]" is a text.
  std::optional<std::string> plain() {
    const size_t end = std::min(text_.find_first_of(",]"), text_.size());
    std::string item = trimmed(text_.substr(0, end));
    text_.remove_prefix(end);
    double number = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    const bool is_number = error == std::errc{} && rest == item.data() + item.size();
    const bool is_name = item == "None" || item == "True" || item == "False" || item == "null";
    return is_number || is_name ? std::optional(std::move(item)) : std::nullopt;
  }

  std::optional<std::string> quoted() {
    const char quote = text_.front();
    const char ends[] = {quote, '\\', '\0'};
    text_.remove_prefix(1);
    std::string item;
    while (true) {
      const size_t end = text_.find_first_of(ends);
      if (end == std::string_view::npos) return std::nullopt;
      item += text_.substr(0, end);
      const bool is_end = text_[end] == quote;
      text_.remove_prefix(end + 1);
      if (is_end) return item;
      if (!add_escaped(item)) return std::nullopt;
    }
  }

  // Of what stands behind a backslash. One that means nothing stays, as in Python.
  bool add_escaped(std::string& item) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    switch (c) {
    case 'n':
      item += '\n';
      return true;
    case 't':
      item += '\t';
      return true;
    case 'r':
      item += '\r';
      return true;
    case '\\':
    case '\'':
    case '"':
    case '/': // of JSON
      item += c;
      return true;
    case 'x':
      return add_code_point(2, item);
    case 'u':
      return add_code_point(4, item);
    case 'U':
      return add_code_point(8, item);
    default:
      item += '\\';
      item += c;
      return true;
    }
  }

  bool add_code_point(size_t digits, std::string& item) {
    uint32_t point = hexadecimal(digits);
    const bool is_high = point >= 0xD800 && point < 0xDC00; // JSON writes a surrogate pair
    if (is_high && text_.starts_with("\\u")) {
      text_.remove_prefix(2);
      point = 0x10000 + ((point - 0xD800) << 10) + (hexadecimal(4) - 0xDC00);
    }
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    append_utf8(item, point);
    return true;
  }

  // Beyond Unicode where so many digits are not there.
  uint32_t hexadecimal(size_t digits) {
    uint32_t value = 0;
    const std::string_view number = text_.substr(0, digits);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value, 16);
    if (number.size() < digits || error != std::errc{} || end != number.data() + digits) return UINT32_MAX;
    text_.remove_prefix(digits);
    return value;
  }

  std::string_view text_;
};

} // namespace

std::optional<std::vector<std::string>> python_list(std::string_view text) {
  return PythonList(text).read();
}

} // namespace fvlm::evaluation
