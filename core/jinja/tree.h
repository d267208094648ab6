// The syntax tree of a template.
#pragma once
#include "jinja/value.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct ArgumentNodes {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct Sequence { // [a, b] or (a, b)
  std::vector<ExpressionPtr> items;
  bool tuple;
};
struct Mapping { // {a: b}
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Attribute { // a.b
  ExpressionPtr object;
  std::string name;
};
struct Item { // a[b]
  ExpressionPtr object, index;
};
struct Slice { // a[b:c:d], where each bound may be null
  ExpressionPtr object, begin, end, step;
};
struct Call {
  ExpressionPtr callee;
  ArgumentNodes arguments;
};
struct Filter {          // a | b(c)
  ExpressionPtr subject; // null in {% filter %} and {% set x | b %}, which filter a block
  std::string name;
  ArgumentNodes arguments;
};
struct Test { // a is b(c)
  ExpressionPtr subject;
  std::string name;
  ArgumentNodes arguments;
};
struct Unary { // "not", "-" or "+"
  std::string op;
  ExpressionPtr operand;
};
struct Binary { // arithmetic, "and" or "or"
  std::string op;
  ExpressionPtr left, right;
};
struct Concatenation { // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct Comparison { // a < b <= c
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> others;
};
struct Conditional { // a if b else c; without else, c is null
  ExpressionPtr condition, then, otherwise;
};

struct Expression {
  int line;
  int depth; // of the tree below
  std::variant<Constant, Name, Sequence, Mapping, Attribute, Item, Slice, Call, Filter, Test, Unary, Binary,
               Concatenation, Comparison, Conditional>
      node;
};

struct Statement;
using Block = std::vector<Statement>;

// What is assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name, attribute;
  std::vector<Target> elements;
};

struct Text {
  std::string text;
};
struct Print { // {{ a }}
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr items, condition; // the condition may be null
  Block body, otherwise;
};
struct Set { // {% set x = a %}
  Target target;
  ExpressionPtr value;
};
struct SetBlock { // {% set x %}...{% endset %}
  Target target;
  ExpressionPtr filter; // may be null
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters; // with defaults, which may be null
  Block body;
};
struct Generation { // {% generation %}: what the assistant says
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Text, Print, If, For, Set, SetBlock, With, FilterBlock, Macro, Generation, Break, Continue> node;
};

} // namespace fvlm::jinja
