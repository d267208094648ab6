// The expressions of Parser, from the loosest binding to the tightest.
#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::jinja {
namespace {

constexpr int max_expression_depth = 150;

int deepest_of(std::initializer_list<const ExpressionPtr*> children) {
  int deepest = 0;
  for (const ExpressionPtr* child : children)
    if (*child) deepest = std::max(deepest, (*child)->depth);
  return deepest;
}

int deepest_of(const std::vector<ExpressionPtr>& children) {
  int deepest = 0;
  for (const ExpressionPtr& child : children) deepest = std::max(deepest, child->depth);
  return deepest;
}

// Behind names or operators.
int deepest_of(const std::vector<std::pair<std::string, ExpressionPtr>>& children) {
  int deepest = 0;
  for (const auto& [name, child] : children) deepest = std::max(deepest, child->depth);
  return deepest;
}

int deepest_of(const ArgumentNodes& arguments) {
  return std::max(deepest_of(arguments.positional), deepest_of(arguments.named));
}

// Of the tree below a node.
struct DepthBelow {
  int operator()(const Constant&) const { return 0; }
  int operator()(const Name&) const { return 0; }
  int operator()(const Sequence& node) const { return deepest_of(node.items); }
  int operator()(const Mapping& node) const {
    int deepest = 0;
    for (const auto& [key, value] : node.items) deepest = std::max(deepest, deepest_of({&key, &value}));
    return deepest;
  }
  int operator()(const Attribute& node) const { return node.object->depth; }
  int operator()(const Item& node) const { return deepest_of({&node.object, &node.index}); }
  int operator()(const Slice& node) const { return deepest_of({&node.object, &node.begin, &node.end, &node.step}); }
  int operator()(const Call& node) const { return std::max(node.callee->depth, deepest_of(node.arguments)); }
  int operator()(const Filter& node) const { return std::max(deepest_of({&node.subject}), deepest_of(node.arguments)); }
  int operator()(const Test& node) const { return std::max(node.subject->depth, deepest_of(node.arguments)); }
  int operator()(const Unary& node) const { return node.operand->depth; }
  int operator()(const Binary& node) const { return deepest_of({&node.left, &node.right}); }
  int operator()(const Concatenation& node) const { return deepest_of(node.parts); }
  int operator()(const Comparison& node) const { return std::max(node.first->depth, deepest_of(node.others)); }
  int operator()(const Conditional& node) const { return deepest_of({&node.condition, &node.then, &node.otherwise}); }
};

} // namespace

using Kind = Token::Kind;

template <class Node>
ExpressionPtr Parser::make(int line, Node node) {
  const int depth = DepthBelow()(node) + 1;
  if (depth > max_expression_depth)
    fail(line, fmt::format("an expression is more than {} operations deep", max_expression_depth));
  return std::make_unique<const Expression>(Expression{line, depth, std::move(node)});
}

// Items separated by commas are a tuple; a single one without a comma is itself.
ExpressionPtr Parser::parse_tuple(bool conditional, bool parentheses) {
  const int line = current().line;
  auto at_end = [&] {
    return current().kind == Kind::variable_end || current().kind == Kind::block_end || is_op(")") ||
           is_name("recursive");
  };
  std::vector<ExpressionPtr> items;
  bool tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (at_end()) break;
    items.push_back(conditional ? parse_conditional() : parse_or());
    if (!is_op(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return std::move(items.front());
  if (!tuple && !parentheses) fail(line, fmt::format("expected an expression but got {}", describe(current())));
  return make(line, Sequence{std::move(items), true});
}

ExpressionPtr Parser::parse_conditional() {
  Nested nested(*this);
  ExpressionPtr then = parse_or();
  while (is_name("if")) {
    const int line = next().line;
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_conditional() : nullptr;
    then = make(line, Conditional{std::move(condition), std::move(then), std::move(otherwise)});
  }
  return then;
}

ExpressionPtr Parser::parse_or() {
  return parse_binary(&Parser::parse_and, {"or"});
}

ExpressionPtr Parser::parse_and() {
  return parse_binary(&Parser::parse_not, {"and"});
}

ExpressionPtr Parser::parse_not() {
  Nested nested(*this);
  if (!is_name("not")) return parse_comparison();
  const int line = next().line;
  return make(line, Unary{"not", parse_not()});
}

ExpressionPtr Parser::parse_comparison() {
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  std::vector<std::pair<std::string, ExpressionPtr>> others;
  while (true) {
    static constexpr std::initializer_list<const char*> ops = {"==", "!=", "<", "<=", ">", ">="};
    std::string op;
    for (const char* known : ops)
      if (skip_op(known)) {
        op = known;
        break;
      }
    if (op.empty() && skip_name("in")) op = "in";
    if (op.empty() && is_name("not") && ahead().kind == Kind::name && ahead().text == "in") {
      next(), next();
      op = "not in";
    }
    if (op.empty()) break;
    others.emplace_back(op, parse_sum());
  }
  if (others.empty()) return first;
  return make(line, Comparison{std::move(first), std::move(others)});
}

ExpressionPtr Parser::parse_binary(Rule operand, std::initializer_list<const char*> ops) {
  ExpressionPtr left = (this->*operand)();
  while (true) {
    auto found = std::ranges::find_if(ops, [&](const char* op) { return is_op(op) || is_name(op); });
    if (found == ops.end()) return left;
    const int line = next().line;
    left = make(line, Binary{*found, std::move(left), (this->*operand)()});
  }
}

ExpressionPtr Parser::parse_sum() {
  return parse_binary(&Parser::parse_concatenation, {"+", "-"});
}

ExpressionPtr Parser::parse_concatenation() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  do parts.push_back(parse_product());
  while (skip_op("~"));
  return parts.size() == 1 ? std::move(parts.front()) : make(line, Concatenation{std::move(parts)});
}

ExpressionPtr Parser::parse_product() {
  return parse_binary(&Parser::parse_power, {"*", "/", "//", "%"});
}

ExpressionPtr Parser::parse_power() {
  return parse_binary(&Parser::parse_operand, {"**"});
}

ExpressionPtr Parser::parse_unary(bool with_filters) {
  Nested nested(*this);
  const int line = current().line;
  ExpressionPtr value;
  if (skip_op("-"))
    value = make(line, Unary{"-", parse_unary(false)});
  else if (skip_op("+"))
    value = make(line, Unary{"+", parse_unary(false)});
  else
    value = parse_primary();
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::parse_primary() {
  const Token& token = next();
  const int line = token.line;
  if (token.kind == Kind::name) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return make(line, Constant{true});
    if (name == "false" || name == "False") return make(line, Constant{false});
    if (name == "none" || name == "None") return make(line, Constant{});
    return make(line, Name{name});
  }
  if (token.kind == Kind::string) { // strings side by side are one
    std::string text = token.text;
    while (current().kind == Kind::string) text += next().text;
    return make(line, Constant{std::move(text)});
  }
  if (token.kind == Kind::integer) return make(line, Constant{token.integer});
  if (token.kind == Kind::real) return make(line, Constant{token.real});
  if (token.kind == Kind::op && token.text == "(") {
    ExpressionPtr inside = parse_tuple(true, true);
    expect_op(")");
    return inside;
  }
  if (token.kind == Kind::op && token.text == "[") return parse_list();
  if (token.kind == Kind::op && token.text == "{") return parse_dict();
  fail(line, fmt::format("expected an expression but got {}", describe(token)));
}

ExpressionPtr Parser::parse_list() {
  const int line = current().line;
  Sequence made{{}, false};
  while (!is_op("]")) {
    if (!made.items.empty()) expect_op(",");
    if (is_op("]")) break;
    made.items.push_back(parse_expression());
  }
  next();
  return make(line, std::move(made));
}

ExpressionPtr Parser::parse_dict() {
  const int line = current().line;
  Mapping made;
  while (!is_op("}")) {
    if (!made.items.empty()) expect_op(",");
    if (is_op("}")) break;
    ExpressionPtr key = parse_expression();
    expect_op(":");
    made.items.emplace_back(std::move(key), parse_expression());
  }
  next();
  return make(line, std::move(made));
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr object) {
  while (true) {
    const int line = current().line;
    if (is_op(".") || is_op("["))
      object = parse_subscript(std::move(object));
    else if (is_op("("))
      object = make(line, Call{std::move(object), parse_arguments()});
    else
      return object;
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr object) {
  const int line = current().line;
  if (skip_op(".")) {
    if (current().kind == Kind::integer)
      return make(line, Item{std::move(object), make(line, Constant{next().integer})});
    return make(line, Attribute{std::move(object), expect_any_name()});
  }
  expect_op("[");
  ExpressionPtr bounds[3];
  int colons = 0;
  while (!is_op("]")) {
    if (skip_op(":")) {
      if (++colons > 2) fail(line, "a slice has at most three parts");
    } else if (bounds[colons]) {
      fail(current().line, fmt::format("expected ']' but got {}", describe(current())));
    } else {
      bounds[colons] = parse_expression();
    }
  }
  next();
  if (colons > 0)
    return make(line, Slice{std::move(object), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])});
  if (!bounds[0]) fail(line, "expected an expression between '[' and ']'");
  return make(line, Item{std::move(object), std::move(bounds[0])});
}

ArgumentNodes Parser::parse_arguments() {
  ArgumentNodes made;
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) expect_op(",");
    if (is_op(")")) break;
    first = false;
    if (is_op("*") || is_op("**"))
      fail(current().line, fmt::format("arguments of '{}' are not supported in a call", current().text));
    if (current().kind == Kind::name && ahead().kind == Kind::op && ahead().text == "=") {
      std::string name = next().text;
      next();
      made.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!made.named.empty()) fail(current().line, "an argument without a name follows one with a name");
      made.positional.push_back(parse_expression());
    }
  }
  next();
  return made;
}

ExpressionPtr Parser::parse_filters(ExpressionPtr subject) {
  while (true) {
    const int line = current().line;
    if (skip_op("|"))
      subject = parse_filter(std::move(subject));
    else if (is_name("is"))
      subject = parse_test(std::move(subject));
    else if (is_op("("))
      subject = make(line, Call{std::move(subject), parse_arguments()});
    else
      return subject;
  }
}

std::string Parser::dotted_name() {
  std::string name = expect_any_name();
  while (skip_op(".")) name += "." + expect_any_name();
  return name;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr subject) {
  const int line = current().line;
  std::string name = dotted_name();
  ArgumentNodes arguments;
  if (is_op("(")) arguments = parse_arguments();
  return make(line, Filter{std::move(subject), std::move(name), std::move(arguments)});
}

ExpressionPtr Parser::parse_test(ExpressionPtr subject) {
  const int line = next().line;
  const bool negated = skip_name("not");
  std::string name = dotted_name();
  ArgumentNodes arguments;
  const bool value = current().kind == Kind::name || current().kind == Kind::string ||
                     current().kind == Kind::integer || current().kind == Kind::real || is_op("[") || is_op("{");
  if (is_op("("))
    arguments = parse_arguments();
  else if (value && !is_any_name({"else", "or", "and"})) {
    if (is_name("is")) fail(line, "tests with 'is' cannot be chained");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExpressionPtr test = make(line, Test{std::move(subject), std::move(name), std::move(arguments)});
  return negated ? make(line, Unary{"not", std::move(test)}) : std::move(test);
}

} // namespace fvlm::jinja
