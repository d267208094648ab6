#include "recipe/schema/basic.h"

#include "base/text.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

namespace fvlm::recipe {
namespace {

std::optional<double> as_number(const Value& value) {
  if (auto* whole = std::get_if<int64_t>(&value.data)) return static_cast<double>(*whole);
  if (auto* number = std::get_if<double>(&value.data)) return *number;
  return std::nullopt;
}

std::string with_range(const char* noun, const Range& range) {
  std::string text = range.text();
  return text.empty() ? noun : fmt::format("{} {}", noun, text);
}

std::optional<double> finite_number(const Value& value) {
  const auto number = as_number(value);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<int64_t> whole_number(const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value.data)) return *whole;
  constexpr double exact = 9007199254740992; // 2^53: beyond it a double cannot hold every integer
  const auto* number = std::get_if<double>(&value.data);
  if (!number || !(std::abs(*number) <= exact && *number == std::floor(*number))) return std::nullopt;
  return static_cast<int64_t>(*number);
}

template <class T>
class NumberType : public Type<T> {
 public:
  using Convert = std::optional<T> (*)(const Value&);
  NumberType(const char* noun, const char* lua_type, Range range, Convert convert)
      : noun_(noun), lua_type_(lua_type), range_(range), convert_(convert) {}
  std::string expected() const override { return with_range(noun_, range_); }
  std::string lua_type() const override { return lua_type_; }
  bool accepts(const Value& value) const override { return as_number(value).has_value(); }
  bool read(Reader& reader, const Value& value, T& out) const override {
    reader.record_origin(value.origin);
    const auto number = convert_(value);
    if (!number || !range_.holds(static_cast<double>(*number))) return reader.report_unexpected(value, expected());
    out = *number;
    return true;
  }
  Json write(const T& in, Write) const override { return in; }

 private:
  const char *noun_, *lua_type_;
  Range range_;
  Convert convert_;
};

class BooleanType : public Type<bool> {
 public:
  std::string expected() const override { return "true or false"; }
  std::string lua_type() const override { return "boolean"; }
  bool accepts(const Value& value) const override { return std::holds_alternative<bool>(value.data); }
  bool read(Reader& reader, const Value& value, bool& out) const override {
    reader.record_origin(value.origin);
    if (!accepts(value)) return reader.report_unexpected(value, expected());
    out = std::get<bool>(value.data);
    return true;
  }
  Json write(const bool& in, Write) const override { return in; }
};

class TextType : public Type<std::string> {
 public:
  using Test = bool (*)(const std::string&);
  TextType(std::string expected, Test test) : expected_(std::move(expected)), test_(test) {}
  std::string expected() const override { return expected_; }
  std::string lua_type() const override { return "string"; }
  bool accepts(const Value& value) const override { return std::holds_alternative<std::string>(value.data); }
  bool read(Reader& reader, const Value& value, std::string& out) const override {
    reader.record_origin(value.origin);
    if (!accepts(value) || !test_(std::get<std::string>(value.data))) return reader.report_unexpected(value, expected_);
    out = std::get<std::string>(value.data);
    return true;
  }
  Json write(const std::string& in, Write) const override { return in; }
  Value assign(Reader& reader, const Assignment& assignment, const Value*,
               std::span<const std::string> rest) const override {
    return text_value(reader, assignment, rest, *this);
  }

 private:
  std::string expected_;
  Test test_;
};

// The Plan is JSON, whose strings must be UTF-8.
bool any_text(const std::string& text) {
  return is_utf8(text) && text.find('\0') == std::string::npos;
}

bool nonempty_text(const std::string& text) {
  return !text.empty() && any_text(text);
}

template <bool with_dots>
bool is_identifier(const std::string& text) {
  if (text.empty() || text.size() > 100 || !std::isalnum(static_cast<unsigned char>(text[0]))) return false;
  for (unsigned char c : text)
    if (!std::isalnum(c) && c != '_' && c != '-' && !(with_dots && c == '.')) return false;
  return true;
}

} // namespace

bool Range::holds(double number) const {
  return (exclusive_min ? number > min : number >= min) && (exclusive_max ? number < max : number <= max);
}

std::string Range::text() const {
  bool has_min = std::isfinite(min), has_max = std::isfinite(max);
  if (has_min && has_max && !exclusive_min && !exclusive_max)
    return fmt::format("from {} to {}", shortest(min), shortest(max));
  std::vector<std::string> parts;
  if (has_min) parts.push_back(fmt::format("{} {}", exclusive_min ? "above" : "of at least", shortest(min)));
  if (has_max) parts.push_back(fmt::format("{} {}", exclusive_max ? "below" : "of at most", shortest(max)));
  return join(parts, " and ");
}

Ref<double> number(Range range) {
  return make_type<NumberType<double>>("a number", "number", range, finite_number);
}

Ref<int64_t> integer(Range range) {
  return make_type<NumberType<int64_t>>("an integer", "integer", range, whole_number);
}

Ref<bool> boolean() {
  return make_type<BooleanType>();
}

Ref<std::string> text() {
  return make_type<TextType>("a string", nonempty_text);
}

Ref<std::string> text_or_empty() {
  return make_type<TextType>("a string", any_text);
}

namespace {

class PathType : public TextType {
 public:
  PathType() : TextType("a path", nonempty_text) {}
  bool read(Reader& reader, const Value& value, std::string& out) const override {
    if (!TextType::read(reader, value, out)) return false;
    if (out != "~" && !out.starts_with("~/")) return true;
    return reader.report(value.origin, fmt::format("'{}': a recipe does not expand '~'", out.substr(0, 60)),
                         "write the full path, or pass it on the command line, where the shell expands it: "
                         "fvlm.arg(\"data\") and --arg data=$HOME/data");
  }
};

} // namespace

Ref<std::string> word(std::vector<WordInfo> words) {
  std::vector<std::string> names;
  for (const WordInfo& word : words) names.push_back(word.name);
  return make_type<Choice<std::string>>(std::move(words), std::move(names));
}

Ref<std::string> path() {
  return make_type<PathType>();
}

Ref<std::string> identifier(bool with_dots) {
  return with_dots ? make_type<TextType>("a name of letters, digits, '_', '-' and '.'", is_identifier<true>)
                   : make_type<TextType>("a name of letters, digits, '_' and '-'", is_identifier<false>);
}

std::optional<size_t> WordsNode::find_word(Reader& reader, const Value& value) const {
  reader.record_origin(value.origin);
  auto* text = std::get_if<std::string>(&value.data);
  if (!text) return reader.report_unexpected(value, expected_words()), std::nullopt;
  std::vector<std::string> names;
  for (size_t i = 0; i < words_.size(); ++i) {
    if (words_[i].name == *text) return i;
    names.push_back(words_[i].name);
  }
  auto near = nearest(*text, names);
  reader.report(value.origin, fmt::format("expected {}, got {}", expected_words(), describe_value(value)),
                near ? fmt::format("did you mean \"{}\"?", *near) : "");
  return std::nullopt;
}

std::vector<std::string> WordsNode::quoted() const {
  std::vector<std::string> quoted;
  quoted.reserve(words_.size());
  for (const auto& word : words_) quoted.push_back('"' + word.name + '"');
  return quoted;
}

std::string WordsNode::expected_words() const {
  return join_or(quoted());
}

std::string WordsNode::lua_words() const {
  return join(quoted(), "|");
}

Value text_value(Reader& reader, const Assignment& assignment, std::span<const std::string> rest, const Node& node) {
  if (!rest.empty()) return node.Node::assign(reader, assignment, nullptr, rest);
  return {assignment.text, assignment.origin};
}

} // namespace fvlm::recipe
