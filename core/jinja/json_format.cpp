#include "jinja/code_points.h"
#include "jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value) {
    runtime_.step();
    if (const std::string* text = value.text())
      string(*text);
    else if (const List* list = value.list(); list && list->kind != List::Kind::generator)
      array(*list);
    else if (const Dict* dict = value.dict())
      object(*dict);
    else if (value.is_none())
      out_ += "null";
    else if (const bool* flag = value.boolean())
      out_ += *flag ? "true" : "false";
    else if (const LongInteger* const large = value.long_integer())
      out_ += large->digits;
    else if (value.is_float())
      number(value.number());
    else if (value.is_integer())
      out_ += fmt::format("{}", value.integer());
    else
      runtime_.fail(
          fmt::format("tojson cannot write {}", value.is_undefined() ? value.undefined_name() : value.type()));
    if (out_.size() > runtime_.limits().output_bytes)
      runtime_.fail(fmt::format("tojson writes more than {} bytes", runtime_.limits().output_bytes));
  }

  std::string take() {
    runtime_.charge_bytes(out_.size());
    return std::move(out_);
  }

 private:
  void number(double value) {
    out_ += std::isnan(value)   ? "NaN"
            : std::isinf(value) ? (value < 0 ? "-Infinity" : "Infinity")
                                : format_float(value);
  }

  void string(const std::string& text) {
    runtime_.charge_bytes(text.size() * 2);
    out_ += '"';
    for (std::string_view encoded : code_points(text)) escape(encoded);
    out_ += '"';
  }

  void escape(std::string_view encoded) {
    static constexpr std::string_view special = "\"\\\n\r\t\f\b", letters = "\"\\nrtfb";
    const uint32_t point = code_point(encoded);
    if (size_t at = special.find(encoded); at != std::string_view::npos)
      out_.append("\\").append(1, letters[at]);
    else if (point < 0x20 || (style_.ascii_only && point >= 0x7F && point < 0x10000))
      out_ += fmt::format("\\u{:04x}", point);
    else if (style_.ascii_only && point >= 0x10000)
      out_ +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF));
    else
      out_ += encoded;
  }

  // Numbers and constants are written as strings where they are keys.
  void key(const Value& value) {
    if (value.text()) return string(*value.text());
    if (!value.is_number() && !value.is_none()) runtime_.fail(fmt::format("tojson: a {} as a key", value.type()));
    out_ += '"';
    write(value);
    out_ += '"';
  }

  void line_break() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  template <class Items, class Write>
  void nested(const Items& items, char open, char close, Write&& write_item) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      line_break();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) line_break();
    out_ += close;
  }

  void array(const List& list) {
    nested(list.items, '[', ']', [&](const Value& item) { write(item); });
  }

  void object(const Dict& dict) {
    auto items = dict.items;
    auto before = [&](const auto& a, const auto& b) {
      return text_of(runtime_, "tojson with sort_keys", a.first) < text_of(runtime_, "tojson with sort_keys", b.first);
    };
    if (style_.sort_keys) std::ranges::stable_sort(items, before);
    nested(items, '{', '}', [&](const auto& item) {
      key(item.first);
      out_ += style_.key_separator;
      write(item.second);
    });
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

} // namespace

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

} // namespace fvlm::jinja
