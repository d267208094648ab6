// Runs the tree of a template.
#pragma once
#include "jinja/runtime.h"
#include "jinja/template.h"
#include "jinja/tree.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::jinja {

// Variables of a block. A loop's iteration, a macro and a block that is assigned have a scope of their own; what they
// set is not seen outside.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* find(std::string_view name) const; // here or in a scope around it
  void set(std::string_view name, Value value);
};

class Interpreter {
 public:
  // Both must outlive it.
  Interpreter(Runtime& runtime, const Variables& variables);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Rendered run(const Block& block);

 private:
  enum class Flow { proceeds, breaks, continues };

  // Statements, in interpreter.cpp.
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_node(const Text& node);
  Flow execute_node(const Print& node);
  Flow execute_node(const If& node);
  Flow execute_node(const For& node);
  Flow execute_node(const Set& node);
  Flow execute_node(const SetBlock& node);
  Flow execute_node(const With& node);
  Flow execute_node(const FilterBlock& node);
  Flow execute_node(const Macro& node);
  Flow execute_node(const Generation& node);
  Flow execute_node(const Break&) { return Flow::breaks; }
  Flow execute_node(const Continue&) { return Flow::continues; }
  std::vector<Value> loop_items(const For& node);
  void assign(const Target& target, const Value& value);
  void write(std::string_view text);
  // What a block writes, in a scope of its own.
  std::string captured(const Block& block, std::shared_ptr<Scope> scope);

  // Expressions, in evaluate.cpp.
  Value evaluate(const Expression& expression);
  Value evaluate_node(const Constant& node) { return node.value; }
  Value evaluate_node(const Name& node) { return look_up(node.name); }
  Value evaluate_node(const Sequence& node);
  Value evaluate_node(const Mapping& node);
  Value evaluate_node(const Attribute& node);
  Value evaluate_node(const Item& node);
  Value evaluate_node(const Slice& node);
  Value evaluate_node(const Call& node);
  Value evaluate_node(const Filter& node);
  Value evaluate_node(const Test& node);
  Value evaluate_node(const Unary& node);
  Value evaluate_node(const Binary& node);
  Value evaluate_node(const Concatenation& node);
  Value evaluate_node(const Comparison& node);
  Value evaluate_node(const Conditional& node);
  Value look_up(const std::string& name);
  Arguments evaluate(const ArgumentNodes& nodes);
  Value call_macro(const Callable& callable, const Arguments& arguments);
  Value filtered(const Expression& filter, Value text);

  std::shared_ptr<Scope> child_scope() const { return std::make_shared<Scope>(Scope{scope_, {}}); }

  Runtime& runtime_;
  const Variables& variables_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  Rendered rendered_;
  std::string* out_ = &rendered_.text;
  // Macros and namespaces can refer to each other in circles, which the destructor breaks.
  std::vector<std::shared_ptr<Scope>> macro_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

} // namespace fvlm::jinja
