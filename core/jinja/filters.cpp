#include "jinja/filters.h"

#include "jinja/code_points.h"
#include "jinja/format.h"
#include "jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fvlm::jinja {
namespace {

// Calls a string method on the text of any value.
Value method_on_text(const char* name, Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Callable method;
  method.name = name;
  method.self = to_text(runtime, subject);
  return call_method(runtime, method, arguments);
}

// Unlike str.title(), words begin behind white space, - ( { [ and < alone.
Value filter_title(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "title", arguments, {});
  auto made = lower(to_text(runtime, subject));
  if (!made) runtime.fail("title of text beyond ASCII is not supported", "change the case before templating");
  bool begins = true;
  for (char& c : *made) {
    const bool separates =
        is_python_space(static_cast<unsigned char>(c)) || std::string_view("-({[<").find(c) != std::string_view::npos;
    if (begins && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    begins = separates;
  }
  return runtime.text(std::move(*made));
}

Value filter_string(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "string", arguments, {});
  return to_text(runtime, subject);
}

Value filter_replace(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  Arguments texts{{to_text(runtime, *bound[0]), to_text(runtime, *bound[1])}, {}};
  if (bound[2] && !bound[2]->is_none()) texts.positional.push_back(*bound[2]);
  return method_on_text("replace", runtime, subject, texts);
}

Value filter_default(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "default", arguments, {"default_value", "boolean"});
  const bool falls_back = subject.is_undefined() || (bound[1] && bound[1]->truthy() && !subject.truthy());
  return !falls_back ? subject : bound[0] ? *bound[0] : Value("");
}

Value filter_indent(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "indent", arguments, {"width", "first", "blank"});
  const std::string text = text_of(runtime, "indent", subject) + "\n";
  std::string width = "    ";
  if (bound[0] && bound[0]->text())
    width = *bound[0]->text();
  else if (bound[0])
    width =
        std::string(static_cast<size_t>(std::clamp<int64_t>(integer_of(runtime, "indent", *bound[0]), 0, 1000)), ' ');
  const bool blank = bound[2] && bound[2]->truthy();
  std::string made = bound[1] && bound[1]->truthy() ? width : "";
  bool first = true;
  for (std::string_view line : split_lines(text)) {
    runtime.charge_bytes(line.size() + width.size() + 64);
    if (!first) made += "\n";
    if (!first && (blank || !line.empty())) made += width;
    made += line;
    first = false;
  }
  return made;
}

Value filter_tojson(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  auto given = [&](size_t i) { return bound[i] && !bound[i]->is_none(); };
  JsonStyle style;
  style.ascii_only = bound[0] && bound[0]->truthy();
  style.sort_keys = bound[3] && bound[3]->truthy();
  if (given(1) && bound[1]->text())
    style.indent = *bound[1]->text();
  else if (given(1))
    style.indent = std::string(
        static_cast<size_t>(std::clamp<int64_t>(integer_of(runtime, "tojson: indent", *bound[1]), 0, 100)), ' ');
  style.item_separator = style.indent ? "," : ", ";
  style.key_separator = ": ";
  if (given(2)) {
    const List* pair = bound[2]->list();
    if (!pair || pair->items.size() != 2) runtime.fail("tojson: 'separators' must be a pair of strings");
    style.item_separator = text_of(runtime, "tojson: separators", pair->items[0]);
    style.key_separator = text_of(runtime, "tojson: separators", pair->items[1]);
  }
  return to_json(runtime, subject, style);
}

// A number's text without white space around it and underscores between its digits; nothing where one stands elsewhere.
std::optional<std::string> bare_number(Runtime& runtime, std::string_view text, bool (*is_digit)(char)) {
  text = strip(text, Side::both);
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    runtime.fail("numbers in text beyond ASCII are not supported");
  std::string made;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_')
      made += text[i];
    else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1]))
      return std::nullopt;
  }
  return made;
}

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_any_digit(char c) {
  return is_decimal_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Python's float(text); nothing where it is none.
std::optional<double> parse_real(Runtime& runtime, std::string_view text) {
  const auto number = bare_number(runtime, text, is_decimal_digit);
  if (!number) return std::nullopt;
  std::string_view rest = *number;
  if (rest.starts_with('+') && !rest.starts_with("+-")) rest.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (rest.empty() || error != std::errc{} || end != rest.data() + rest.size()) return std::nullopt;
  return value;
}

[[noreturn]] void too_large(Runtime& runtime) {
  runtime.fail("an integer has more than 64 bits");
}

// Python's int(text, base); nothing where it is none. A base of 0 is that of the prefix.
std::optional<int64_t> parse_integer(Runtime& runtime, std::string_view text, int64_t base) {
  const auto number = bare_number(runtime, text, is_any_digit);
  if (!number || (base != 0 && (base < 2 || base > 36))) return std::nullopt;
  std::string_view digits = *number;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  static constexpr std::pair<char, int64_t> prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
  for (const auto& [letter, of] : prefixes)
    if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == letter && (base == 0 || base == of)) {
      digits.remove_prefix(2);
      base = of;
      break;
    }
  if (base == 0 && digits.starts_with('0') && digits.find_first_not_of('0') != std::string_view::npos)
    return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base == 0 ? 10 : static_cast<int>(base));
  if (digits.empty() || end == digits.data() || end != digits.data() + digits.size()) return std::nullopt;
  if (error != std::errc{} || value > uint64_t{INT64_MAX} + (is_negative ? 1 : 0)) too_large(runtime);
  return static_cast<int64_t>(is_negative ? 0 - value : value);
}

Value filter_int(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "int", arguments, {"default", "base"});
  if (subject.is_integer()) return subject.integer();
  if (subject.long_integer()) return subject;
  std::optional<double> real = subject.is_float() ? std::optional(subject.number()) : std::nullopt;
  if (const std::string* text = subject.text()) {
    if (const auto value = parse_integer(runtime, *text, bound[1] ? integer_of(runtime, "int", *bound[1]) : 10))
      return *value;
    real = parse_real(runtime, *text);
  }
  if (!real || !std::isfinite(*real)) return bound[0] ? *bound[0] : Value(0);
  if (std::abs(*real) >= 0x1p63) too_large(runtime);
  return static_cast<int64_t>(*real);
}

Value filter_float(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "float", arguments, {"default"});
  if (subject.is_number()) return subject.number();
  if (const std::string* text = subject.text())
    if (auto real = parse_real(runtime, *text)) return *real;
  return bound[0] ? *bound[0] : Value(0.0);
}

Value filter_abs(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "abs", arguments, {});
  if (subject.is_float()) return std::abs(subject.number());
  const int64_t value = integer_of(runtime, "abs", subject);
  if (value == INT64_MIN) too_large(runtime);
  return value < 0 ? -value : value;
}

Value filter_round(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "round", arguments, {"precision", "method"});
  if (!subject.is_number()) runtime.fail(fmt::format("round expects a number but got a {}", subject.type()));
  const int64_t precision = bound[0] ? integer_of(runtime, "round", *bound[0]) : 0;
  const std::string method = bound[1] ? text_of(runtime, "round", *bound[1]) : "common";
  if (precision < 0 || precision > 15) runtime.fail("round: the precision must be 0 to 15");
  if (method == "common") {
    if (subject.is_integer()) return subject.integer();
    std::string written = fmt::format("{:.{}f}", subject.number(), precision); // rounds half to even, as Python does
    return *parse_real(runtime, written);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = subject.number() * scale;
  if (method == "ceil") return std::ceil(scaled) / scale;
  if (method == "floor") return std::floor(scaled) / scale;
  runtime.fail("round: the method must be common, ceil or floor");
}

Value filter_wordcount(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "wordcount", arguments, {});
  if (!to_text(runtime, subject).empty() && subject.text())
    for (std::string_view point : code_points(*subject.text()))
      if (code_point(point) >= 0x80) runtime.fail("wordcount of text beyond ASCII is not supported");
  int64_t words = 0;
  bool inside = false;
  for (char c : to_text(runtime, subject)) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value filter_escape(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "escape", arguments, {});
  std::string made;
  for (char c : to_text(runtime, subject)) {
    if (c == '&')
      made += "&amp;";
    else if (c == '<')
      made += "&lt;";
    else if (c == '>')
      made += "&gt;";
    else if (c == '\'')
      made += "&#39;";
    else if (c == '"')
      made += "&#34;";
    else
      made += c;
  }
  return runtime.text(std::move(made));
}

} // namespace

const Filters& text_filters() {
  static const Filters filters = {
      {"trim", std::bind_front(method_on_text, "strip")},
      {"upper", std::bind_front(method_on_text, "upper")},
      {"lower", std::bind_front(method_on_text, "lower")},
      {"title", filter_title},
      {"string", filter_string},
      {"capitalize", std::bind_front(method_on_text, "capitalize")},
      {"safe", filter_string},
      {"replace", filter_replace},
      {"default", filter_default},
      {"d", filter_default},
      {"indent", filter_indent},
      {"tojson", filter_tojson},
      {"int", filter_int},
      {"float", filter_float},
      {"abs", filter_abs},
      {"round", filter_round},
      {"escape", filter_escape},
      {"e", filter_escape},
      {"wordcount", filter_wordcount},
  };
  return filters;
}

Value apply_filter(Runtime& runtime, std::string_view name, const Value& subject, const Arguments& arguments) {
  runtime.step();
  Runtime::Deeper deeper(runtime); // map applies filters to filters' results
  for (const Filters* filters : {&text_filters(), &sequence_filters()})
    if (auto found = filters->find(name); found != filters->end()) return found->second(runtime, subject, arguments);
  runtime.fail(fmt::format("the filter '{}' is not supported", name));
}

} // namespace fvlm::jinja
