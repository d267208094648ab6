// The tests of `a is b`.
#include "jinja/code_points.h"
#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/operators.h"

#include <fmt/format.h>

namespace fvlm::jinja {
namespace {

using Condition = bool (*)(const Value&);
using Conditions = std::map<std::string_view, Condition>;

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() || value.list() || value.dict() || value.loop();
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.is_undefined() || value.text() || value.dict() ||
         (list && (list->kind == List::Kind::list || list->kind == List::Kind::tuple));
}

const Conditions& plain_conditions() {
  static const Conditions conditions = {
      {"defined", [](const Value& value) { return !value.is_undefined(); }},
      {"undefined", [](const Value& value) { return value.is_undefined(); }},
      {"none", [](const Value& value) { return value.is_none(); }},
      {"boolean", [](const Value& value) { return value.boolean() != nullptr; }},
      {"true", [](const Value& value) { return value.boolean() && *value.boolean(); }},
      {"false", [](const Value& value) { return value.boolean() && !*value.boolean(); }},
      {"integer", [](const Value& value) { return value.long_integer() || (value.is_integer() && !value.boolean()); }},
      {"float", [](const Value& value) { return value.is_float() && !value.long_integer(); }},
      {"number", [](const Value& value) { return value.is_number(); }},
      {"string", [](const Value& value) { return value.text() != nullptr; }},
      {"mapping", [](const Value& value) { return value.dict() != nullptr; }},
      {"iterable", is_iterable},
      {"sequence", is_sequence},
      {"callable", [](const Value& value) { return value.callable() || value.is_undefined(); }},
  };
  return conditions;
}

// == and the other comparisons, by all their names.
std::string_view comparison_of(std::string_view name) {
  static const std::map<std::string_view, std::string_view> ops = {
      {"==", "=="}, {"eq", "=="},         {"equalto", "=="}, {"!=", "!="}, {"ne", "!="}, {"in", "in"},
      {"<", "<"},   {"lt", "<"},          {"lessthan", "<"}, {"<=", "<="}, {"le", "<="}, {">", ">"},
      {"gt", ">"},  {"greaterthan", ">"}, {">=", ">="},      {"ge", ">="}};
  auto found = ops.find(name);
  return found == ops.end() ? "" : found->second;
}

bool is_divisible(Runtime& runtime, const Value& value, const Value& by) {
  return equal(runtime, arithmetic(runtime, "%", value, by), 0);
}

bool is_same(Runtime& runtime, const Value& left, const Value& right) {
  if (left.list() || right.list()) return left.list() == right.list();
  if (left.dict() || right.dict()) return left.dict() == right.dict();
  const bool same_type = std::string_view(left.type()) == right.type();
  return same_type && equal(runtime, left, right);
}

bool has_case(Runtime& runtime, std::string_view name, const Value& value) {
  const std::string text = to_text(runtime, value);
  auto lowered = lower(text), raised = upper(text);
  if (!lowered) runtime.fail(fmt::format("the test '{}' of text beyond ASCII is not supported", name));
  return *lowered != *raised && text == (name == "lower" ? *lowered : *raised);
}

} // namespace

bool apply_test(Runtime& runtime, std::string_view name, const Value& subject, const Arguments& arguments) {
  runtime.step();
  if (auto plain = plain_conditions().find(name); plain != plain_conditions().end()) {
    bind_arguments(runtime, fmt::format("the test '{}'", name), arguments, {});
    return plain->second(subject);
  }
  if (std::string_view op = comparison_of(name); !op.empty())
    return compare(runtime, op, subject,
                   *bind_arguments(runtime, fmt::format("the test '{}'", name), arguments, {"b"}, 1)[0]);
  if (name == "odd" || name == "even") return is_divisible(runtime, subject, 2) == (name == "even");
  if (name == "divisibleby")
    return is_divisible(runtime, subject, *bind_arguments(runtime, "divisibleby", arguments, {"num"}, 1)[0]);
  if (name == "sameas")
    return is_same(runtime, subject, *bind_arguments(runtime, "sameas", arguments, {"other"}, 1)[0]);
  if (name == "lower" || name == "upper") return has_case(runtime, name, subject);
  if (name == "filter") {
    const std::string& wanted = text_of(runtime, "the test 'filter'", subject);
    return text_filters().contains(wanted) || sequence_filters().contains(wanted);
  }
  runtime.fail(fmt::format("the test '{}' is not supported", name));
}

} // namespace fvlm::jinja
