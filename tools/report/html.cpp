#include "report/html.h"

#include "base/text.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <cmath>

namespace fvlm::report {
namespace {

constexpr const char* dash = "–";
constexpr int palette_colours = 18, colours = 64;

// Length in bytes of the UTF-8 character at `at`; 0 for invalid UTF-8.
size_t character(std::string_view text, size_t at) {
  const size_t size = utf8_size(text.substr(at));
  return at + size <= text.size() ? size : 0;
}

} // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t size = character(text, at);
    char c = text[at];
    if (size == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
      out += "\xEF\xBF\xBD";
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += text.substr(at, size);
    at += std::max<size_t>(1, size);
  }
  return out;
}

std::string script_string(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    size_t size = character(text, at);
    auto c = static_cast<unsigned char>(text[at]);
    if (size == 0)
      out += "\xEF\xBF\xBD";
    else if (c < 0x20 || c == 0x7F || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", c);
    else
      out += text.substr(at, size);
    at += std::max<size_t>(1, size);
  }
  return out + "\"";
}

std::string figure(double value) {
  if (!std::isfinite(value)) return dash;
  double size = std::abs(value);
  if (size >= 1000 && size < 1e7) return grouped(std::llround(value));
  std::string out = fmt::format("{:.4g}", value);
  size_t e = out.find('e');
  if (e == out.npos) return out;
  size_t digits = out.find_first_not_of("+-0", e + 1); // "2e-05" -> "2e-5"
  return out.substr(0, e + 1) + (out[e + 1] == '-' ? "-" : "") + out.substr(digits);
}

std::string figure(const std::optional<double>& value) {
  return value ? figure(*value) : dash;
}

std::string fixed(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return dash;
  double size = std::abs(*value);
  if (size >= 1000 || (size < 0.01 && size > 0)) return figure(*value);
  return fmt::format("{:.3f}", *value);
}

std::string percent(const std::optional<double>& share, int decimals) {
  if (!share || !std::isfinite(*share)) return dash;
  return fmt::format("{:.{}f}\u202f%", 100 * *share, decimals);
}

std::string count_text(const std::optional<double>& value) {
  if (!value || !(std::abs(*value) < 9e15)) return dash;
  return grouped(std::llround(*value));
}

std::string short_count(double value) {
  constexpr const char* units[] = {"", "\u202fK", "\u202fM", "\u202fB", "\u202fT"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(units)) value /= 1000, ++unit;
  if (unit == 0) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}{}", value, units[unit]);
}

std::string colour_class(int number) {
  return fmt::format("c{}", (number - 1) % colours + 1);
}

// Hues far from the previous ones, in three lightnesses that are legible on light and dark pages.
std::string further_colours() {
  std::string rules;
  for (int number = palette_colours + 1; number <= colours; ++number)
    rules += fmt::format(".c{} {{ --c: hsl({} {}% {}%); }}\n", number, number * 137 % 360, 45 + number % 2 * 25,
                         40 + number % 3 * 12);
  return rules;
}

std::string cell(std::string_view text) {
  return fmt::format("<td>{}</td>", escaped(text));
}

std::string text_cell(std::string_view text, std::string_view traits) {
  return fmt::format("<td class=\"text{}{}\">{}</td>", traits.empty() ? "" : " ", traits, escaped(text));
}

std::string table(const std::vector<std::string>& header, const std::string& rows, std::string_view traits) {
  std::string head;
  for (const auto& name : header)
    head += name.starts_with('<') ? fmt::format("<th class=\"text\">{}</th>", escaped(name.substr(1)))
                                  : fmt::format("<th>{}</th>", escaped(name));
  return fmt::format(
      "<div class=\"wide\"><table class=\"{}\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>\n", traits,
      head, rows);
}

} // namespace fvlm::report
