#include "jinja/interpreter.h"

#include "jinja/format.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::jinja {
namespace {

// Restores a variable at the end of a block, also when an error leaves it.
template <class T>
class Restored {
 public:
  Restored(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restored() { variable_ = std::move(before_); }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& variable_;
  T before_;
};

} // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get())
    for (const auto& [key, value] : scope->variables)
      if (key == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  auto found = std::ranges::find_if(variables, [&](const auto& item) { return item.first == name; });
  if (found == variables.end())
    variables.emplace_back(name, std::move(value));
  else
    found->second = std::move(value);
}

Interpreter::Interpreter(Runtime& runtime, const Variables& variables) : runtime_(runtime), variables_(variables) {}

Interpreter::~Interpreter() {
  for (auto& scope : macro_scopes_) scope->variables.clear();
  for (auto& space : namespaces_) space->attributes.clear();
}

Rendered Interpreter::run(const Block& block) {
  execute(block);
  return std::move(rendered_);
}

void Interpreter::write(std::string_view text) {
  runtime_.charge_bytes(text.size());
  *out_ += text;
  if (out_->size() > runtime_.limits().output_bytes)
    runtime_.fail(fmt::format("the template writes more than {} bytes", runtime_.limits().output_bytes));
}

std::string Interpreter::captured(const Block& block, std::shared_ptr<Scope> scope) {
  std::string text;
  Restored<std::string*> output(out_, &text);
  Restored<std::shared_ptr<Scope>> inner(scope_, std::move(scope));
  execute(block);
  return text;
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  Runtime::Deeper deeper(runtime_);
  for (const Statement& statement : block)
    if (Flow flow = execute(statement); flow != Flow::proceeds) return flow;
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  runtime_.step();
  runtime_.at_line(statement.line);
  return std::visit([&](const auto& node) { return execute_node(node); }, statement.node);
}

Interpreter::Flow Interpreter::execute_node(const Text& node) {
  write(node.text);
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const Print& node) {
  write(to_text(runtime_, evaluate(*node.value)));
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const If& node) {
  for (const auto& [condition, body] : node.branches)
    if (evaluate(*condition).truthy()) return execute(body);
  return execute(node.otherwise);
}

// The items to loop over, without those that the condition of the loop excludes.
std::vector<Value> Interpreter::loop_items(const For& node) {
  const Value source = evaluate(*node.items);
  std::vector<Value> items = items_of(runtime_, source);
  if (!node.condition) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    Restored<std::shared_ptr<Scope>> inner(scope_, child_scope());
    assign(node.target, item);
    if (evaluate(*node.condition).truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::execute_node(const For& node) {
  auto loop = std::make_shared<Loop>();
  loop->items = loop_items(node);
  if (loop->items.empty()) {
    Restored<std::shared_ptr<Scope>> inner(scope_, child_scope());
    return execute(node.otherwise);
  }
  for (; loop->index < loop->items.size(); ++loop->index) {
    runtime_.step();
    Restored<std::shared_ptr<Scope>> inner(scope_, child_scope());
    scope_->set("loop", loop);
    assign(node.target, loop->items[loop->index]);
    if (execute(node.body) == Flow::breaks) break;
  }
  loop->ended = true;
  loop->changed.clear();
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const SetBlock& node) {
  Value text = captured(node.body, child_scope());
  assign(node.target, node.filter ? filtered(*node.filter, std::move(text)) : std::move(text));
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const With& node) {
  auto scope = child_scope();
  std::vector<Value> values; // all of them are evaluated outside
  for (const auto& [target, value] : node.values) values.push_back(evaluate(*value));
  Restored<std::shared_ptr<Scope>> inner(scope_, std::move(scope));
  for (size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
  return execute(node.body);
}

Interpreter::Flow Interpreter::execute_node(const FilterBlock& node) {
  write(to_text(runtime_, filtered(*node.filter, captured(node.body, child_scope()))));
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const Macro& node) {
  Callable macro;
  macro.name = node.name;
  macro.macro = &node;
  macro.scope = scope_;
  macro_scopes_.push_back(scope_);
  scope_->set(node.name, std::make_shared<const Callable>(std::move(macro)));
  return Flow::proceeds;
}

Interpreter::Flow Interpreter::execute_node(const Generation& node) {
  if (out_ != &rendered_.text)
    runtime_.fail("{% generation %} inside of a macro or of a block that is assigned or filtered is not supported");
  const size_t begin = rendered_.text.size();
  Restored<std::shared_ptr<Scope>> inner(scope_, child_scope());
  execute(node.body);
  rendered_.generations.emplace_back(begin, rendered_.text.size());
  return Flow::proceeds;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.elements.empty()) {
    const auto items = items_of(runtime_, value);
    if (items.size() != target.elements.size())
      runtime_.fail(fmt::format("{} values are assigned to {} names", items.size(), target.elements.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.elements[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value object = look_up(target.name);
  if (!object.space())
    runtime_.fail(
        fmt::format("'{}' is a {}: attributes are assigned to a namespace alone", target.name, object.type()));
  if (target.attribute.starts_with('_'))
    runtime_.fail(fmt::format("a namespace cannot hold '{}', which begins with _", target.attribute));
  auto& attributes = object.space()->attributes;
  auto found = std::ranges::find_if(attributes, [&](const auto& item) { return item.first == target.attribute; });
  if (found == attributes.end())
    attributes.emplace_back(target.attribute, value);
  else
    found->second = value;
}

} // namespace fvlm::jinja
