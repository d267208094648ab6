#include "jinja/format.h"

#include "jinja/code_points.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace fvlm::jinja {
namespace {

// Whether repr() writes the code point as it is. Unassigned code points count as printable here.
bool is_printable(uint32_t point) {
  if (point < 0x7F) return point >= 0x20;
  const bool is_format = point == 0xAD || (point >= 0x200B && point <= 0x200F) ||
                         (point >= 0x202A && point <= 0x202E) || (point >= 0x2060 && point <= 0x206F) ||
                         point == 0xFEFF || (point >= 0xFFF9 && point <= 0xFFFB) || (point >> 12) == 0xE0;
  const bool is_private = (point >= 0xE000 && point <= 0xF8FF) || point >= 0xF0000;
  return point > 0xA0 && !is_python_space(point) && !is_format && !is_private;
}

void append_escaped(std::string& out, std::string_view encoded, char quote) {
  const uint32_t point = code_point(encoded);
  if (point == static_cast<unsigned char>(quote) || point == '\\')
    out.append("\\").append(encoded);
  else if (point == '\n')
    out += "\\n";
  else if (point == '\r')
    out += "\\r";
  else if (point == '\t')
    out += "\\t";
  else if (is_printable(point))
    out += encoded;
  else if (point < 0x100)
    out += fmt::format("\\x{:02x}", point);
  else if (point < 0x10000)
    out += fmt::format("\\u{:04x}", point);
  else
    out += fmt::format("\\U{:08x}", point);
}

void append_quoted(std::string& out, const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (std::string_view point : code_points(text)) append_escaped(out, point, quote);
  out += quote;
}

void append_repr(Runtime& runtime, std::string& out, const Value& value);

void append_list(Runtime& runtime, std::string& out, const List& list) {
  if (list.kind == List::Kind::generator || list.kind == List::Kind::view)
    runtime.fail("a generator or view of a dictionary cannot be written as text", "pass it through the filter list");
  const bool tuple = list.kind == List::Kind::tuple;
  out += tuple ? '(' : '[';
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(runtime, out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
}

void append_dict(Runtime& runtime, std::string& out, const Dict& dict) {
  out += '{';
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(runtime, out, dict.items[i].first);
    out += ": ";
    append_repr(runtime, out, dict.items[i].second);
  }
  out += '}';
}

void append_repr(Runtime& runtime, std::string& out, const Value& value) {
  runtime.step();
  if (const std::string* text = value.text()) {
    runtime.charge_bytes(text->size() * 4);
    append_quoted(out, *text);
  } else if (const List* list = value.list()) {
    append_list(runtime, out, *list);
  } else if (const Dict* dict = value.dict()) {
    append_dict(runtime, out, *dict);
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else {
    out += to_text(runtime, value);
  }
}

} // namespace

std::string to_text(Runtime& runtime, const Value& value) {
  if (const std::string* text = value.text()) {
    runtime.charge_bytes(text->size());
    return *text;
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* flag = value.boolean()) return *flag ? "True" : "False";
  if (const LongInteger* const large = value.long_integer()) return large->digits;
  if (value.is_float()) return format_float(value.number());
  if (value.is_integer()) return fmt::format("{}", value.integer());
  if (!value.list() && !value.dict()) runtime.fail(fmt::format("a {} cannot be written as text", value.type()));
  std::string made;
  append_repr(runtime, made, value);
  return made;
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  auto scientific = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view written(buffer, static_cast<size_t>(scientific.ptr - buffer));
  const size_t mark = written.find('e');
  int exponent = 0;
  std::from_chars(written.data() + mark + (written[mark + 1] == '+' ? 2 : 1), written.data() + written.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) return std::string(written);
  auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string made(buffer, fixed.ptr);
  if (made.find('.') == std::string::npos) made += ".0";
  return made;
}

} // namespace fvlm::jinja
