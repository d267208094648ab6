// The expressions of Interpreter.
#include "jinja/attributes.h"
#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/functions.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"
#include "jinja/operators.h"

#include <fmt/format.h>

namespace fvlm::jinja {

namespace {

bool is_escape(std::string_view filter) {
  return filter == "e" || filter == "escape";
}

} // namespace

Value Interpreter::evaluate(const Expression& expression) {
  Runtime::Deeper deeper(runtime_);
  runtime_.step();
  runtime_.at_line(expression.line);
  return std::visit([&](const auto& node) { return evaluate_node(node); }, expression.node);
}

Value Interpreter::look_up(const std::string& name) {
  if (const Value* local = scope_->find(name)) return *local;
  for (const auto& [key, value] : variables_)
    if (key == name) return value;
  if (!is_function(name)) return Value::undefined(fmt::format("'{}' is undefined", name));
  Callable function;
  function.name = name;
  return std::make_shared<const Callable>(std::move(function));
}

Value Interpreter::evaluate_node(const Sequence& node) {
  std::vector<Value> items;
  for (const auto& item : node.items) items.push_back(evaluate(*item));
  return runtime_.list(std::move(items), node.tuple ? List::Kind::tuple : List::Kind::list);
}

Value Interpreter::evaluate_node(const Mapping& node) {
  Dict dict;
  for (const auto& [key, value] : node.items) {
    Value name = evaluate(*key);
    if (name.list() || name.dict() || name.space()) runtime_.fail(fmt::format("a {} cannot be a key", name.type()));
    set(runtime_, dict, std::move(name), evaluate(*value));
  }
  return runtime_.dict(std::move(dict));
}

Value Interpreter::evaluate_node(const Attribute& node) {
  const int line = runtime_.line();
  const Value object = evaluate(*node.object);
  runtime_.at_line(line);
  return attribute_of(runtime_, object, node.name);
}

Value Interpreter::evaluate_node(const Item& node) {
  const int line = runtime_.line();
  const Value object = evaluate(*node.object), index = evaluate(*node.index);
  runtime_.at_line(line);
  return item_of(runtime_, object, index);
}

Value Interpreter::evaluate_node(const Slice& node) {
  const int line = runtime_.line();
  const Value object = evaluate(*node.object);
  Value bounds[3];
  const ExpressionPtr* nodes[3] = {&node.begin, &node.end, &node.step};
  for (size_t i = 0; i < 3; ++i)
    if (*nodes[i]) bounds[i] = evaluate(**nodes[i]);
  runtime_.at_line(line);
  return slice(runtime_, object, &bounds[0], &bounds[1], &bounds[2]);
}

Arguments Interpreter::evaluate(const ArgumentNodes& nodes) {
  Arguments made;
  for (const auto& node : nodes.positional) made.positional.push_back(evaluate(*node));
  for (const auto& [name, node] : nodes.named) made.named.emplace_back(name, evaluate(*node));
  return made;
}

Value Interpreter::evaluate_node(const Call& node) {
  const int line = runtime_.line();
  const Value callee = evaluate(*node.callee);
  const Arguments arguments = evaluate(node.arguments);
  runtime_.at_line(line);
  const Callable* callable = callee.callable();
  if (!callable)
    runtime_.fail(callee.is_undefined() ? fmt::format("{}, so it cannot be called", callee.undefined_name())
                                        : fmt::format("a {} cannot be called", callee.type()));
  if (callable->macro) return call_macro(*callable, arguments);
  if (callable->is_method) return call_method(runtime_, *callable, arguments);
  return call_function(runtime_, callable->name, arguments, namespaces_);
}

Value Interpreter::call_macro(const Callable& callable, const Arguments& arguments) {
  const Macro& macro = *callable.macro;
  std::vector<const char*> names;
  for (const auto& [name, fallback] : macro.parameters) names.push_back(name.c_str());
  const auto bound = bind_arguments(runtime_, fmt::format("the macro '{}'", macro.name), arguments, names);
  auto scope = std::make_shared<Scope>(Scope{callable.scope, {}});
  const auto outside = std::exchange(scope_, scope); // defaults may refer to parameters before them
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    scope->set(name, bound[i]   ? *bound[i]
                     : fallback ? evaluate(*fallback)
                                : Value::undefined(fmt::format("the macro's parameter '{}' was not given", name)));
  }
  scope_ = outside;
  return captured(macro.body, scope);
}

Value Interpreter::evaluate_node(const Filter& node) {
  const int line = runtime_.line();
  const Value subject = evaluate(*node.subject);
  const Arguments arguments = evaluate(node.arguments);
  runtime_.at_line(line);
  const auto* const inner = std::get_if<Filter>(&node.subject->node);
  if (is_escape(node.name) && inner && (is_escape(inner->name) || inner->name == "safe"))
    runtime_.fail(fmt::format("the filter '{}' behind '{}' is not supported", node.name, inner->name),
                  "leave it out: it changes nothing there");
  return apply_filter(runtime_, node.name, subject, arguments);
}

// Applies a chain of filters whose innermost one has no subject.
Value Interpreter::filtered(const Expression& expression, Value text) {
  const auto& filter = std::get<Filter>(expression.node);
  if (filter.subject) text = filtered(*filter.subject, std::move(text));
  const Arguments arguments = evaluate(filter.arguments);
  runtime_.at_line(expression.line);
  return apply_filter(runtime_, filter.name, text, arguments);
}

Value Interpreter::evaluate_node(const Test& node) {
  const int line = runtime_.line();
  const Value subject = evaluate(*node.subject);
  const Arguments arguments = evaluate(node.arguments);
  runtime_.at_line(line);
  return apply_test(runtime_, node.name, subject, arguments);
}

Value Interpreter::evaluate_node(const Unary& node) {
  const int line = runtime_.line();
  const Value operand = evaluate(*node.operand);
  runtime_.at_line(line);
  if (node.op == "not") return !operand.truthy();
  if (node.op == "-") return negative(runtime_, operand);
  if (!operand.is_number()) runtime_.fail(fmt::format("operator + cannot take a {}", operand.type()));
  return operand.is_integer() ? Value(operand.integer()) : operand;
}

Value Interpreter::evaluate_node(const Binary& node) {
  const int line = runtime_.line();
  Value left = evaluate(*node.left);
  if (node.op == "and" || node.op == "or")
    return left.truthy() == (node.op == "or") ? std::move(left) : evaluate(*node.right);
  const Value right = evaluate(*node.right);
  runtime_.at_line(line);
  return arithmetic(runtime_, node.op, left, right);
}

Value Interpreter::evaluate_node(const Concatenation& node) {
  std::string made;
  for (const auto& part : node.parts) made += to_text(runtime_, evaluate(*part));
  return runtime_.text(std::move(made));
}

Value Interpreter::evaluate_node(const Comparison& node) {
  const int line = runtime_.line();
  Value left = evaluate(*node.first);
  for (const auto& [op, other] : node.others) {
    Value right = evaluate(*other);
    runtime_.at_line(line);
    if (!compare(runtime_, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_node(const Conditional& node) {
  if (evaluate(*node.condition).truthy()) return evaluate(*node.then);
  if (node.otherwise) return evaluate(*node.otherwise);
  return Value::undefined("the inline if has no else");
}

} // namespace fvlm::jinja
