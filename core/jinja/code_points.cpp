#include "jinja/code_points.h"

#include <algorithm>

namespace fvlm::jinja {
namespace {

size_t length_at(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return std::min(length, text.size() - at);
}

bool is_line_end(uint32_t point) {
  return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 || point == 0x2028 ||
         point == 0x2029;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

} // namespace

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> points;
  for (size_t at = 0; at < text.size(); at += points.back().size())
    points.push_back(text.substr(at, length_at(text, at)));
  return points;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool is_python_space(uint32_t point) {
  return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 || point == 0xA0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
         point == 0x202F || point == 0x205F || point == 0x3000;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set) {
  std::vector<std::string_view> members = set ? code_points(*set) : std::vector<std::string_view>{};
  auto belongs = [&](std::string_view point) {
    return set ? std::ranges::find(members, point) != members.end() : is_python_space(code_point(point));
  };
  while (side != Side::right && !text.empty()) {
    size_t length = length_at(text, 0);
    if (!belongs(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (side != Side::left && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!belongs(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::optional<std::string> upper(std::string_view text) {
  if (!is_ascii(text)) return std::nullopt;
  std::string made(text);
  for (char& c : made)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  return made;
}

std::optional<std::string> lower(std::string_view text) {
  if (!is_ascii(text)) return std::nullopt;
  std::string made(text);
  for (char& c : made)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return made;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t length = length_at(text, at);
    if (!is_line_end(code_point(text.substr(at, length)))) {
      at += length;
      continue;
    }
    lines.push_back(text.substr(begin, at - begin));
    at += text.substr(at).starts_with("\r\n") ? 2 : length;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string made;
  size_t at = 0;
  if (from.empty()) { // before every character, and at the end
    for (std::string_view point : code_points(text)) {
      if (count != 0) made += to, --count;
      made += point;
    }
    if (count != 0) made += to;
    return made;
  }
  for (; count != 0; --count) {
    size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    made.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return made.append(text.substr(at));
}

} // namespace fvlm::jinja
