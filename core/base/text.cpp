#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace fvlm {
namespace {

// Edit distance with transpositions, ignoring case.
size_t distance(std::string_view a, std::string_view b) {
  auto low = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t cost = low(a[i - 1]) == low(b[j - 1]) ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && low(a[i - 1]) == low(b[j - 2]) && low(a[i - 2]) == low(b[j - 1]))
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

} // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > 64) return std::nullopt;
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    size_t d = distance(word, candidate);
    if (d < best_distance) best_distance = d, best = candidate;
  }
  return best;
}

std::string join(std::span<const std::string> words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::string join_or(std::span<const std::string> words) {
  if (words.empty()) return "";
  if (words.size() == 1) return words[0];
  return join(words.first(words.size() - 1), ", ") + " or " + words.back();
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1)
    parts.emplace_back(text.substr(begin, end - begin));
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string lower_case(std::string text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return text;
}

std::string trimmed(std::string_view text) {
  constexpr const char* space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(space) + 1 - begin));
}

std::string human_bytes(uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string grouped(int64_t number) {
  if (number > -1000 && number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", grouped(number / 1000), std::abs(number % 1000));
}

std::string counted(int64_t number, std::string_view noun) {
  return grouped(number).append(" ").append(noun).append(number == 1 ? "" : "s");
}

std::string human_duration(double seconds) {
  if (!(seconds < 1e15)) return "forever";
  if (seconds < 9.95) return fmt::format("{:.1f} s", std::max(0.0, seconds));
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  int64_t minutes = (whole + 30) / 60;
  if (minutes < 24 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  int64_t hours = (minutes + 30) / 60;
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

size_t display_width(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++columns;
  }
  return columns;
}

std::string shown(std::string_view name) {
  constexpr size_t most = 160;
  std::string text = nlohmann::json(std::string(name)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > most) {
    text.resize(most);
    text += "...\"";
  }
  return text;
}

} // namespace fvlm
