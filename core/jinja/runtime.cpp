#include "jinja/runtime.h"

#include "base/error.h"
#include "jinja/code_points.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::jinja {

void Runtime::fail(const std::string& what, const std::string& advice) const {
  throw Error(ErrorKind::data, what).at("{}:{}", where_, line_).advise(advice);
}

void Runtime::too_many_steps() const {
  fail(fmt::format("the template takes more than {} steps", limits_.steps), "look for a loop that multiplies its work");
}

void Runtime::too_deep() {
  --depth_;
  fail(fmt::format("the template nests or calls itself more than {} levels deep", limits_.depth));
}

void Runtime::charge_bytes(size_t bytes) {
  step(static_cast<int64_t>(std::min<size_t>(bytes, SIZE_MAX / 4) / 64));
}

Value Runtime::text(std::string made) {
  charge_bytes(made.size());
  return made;
}

Value Runtime::list(std::vector<Value> items, List::Kind kind) {
  step(std::ssize(items));
  Value value = make_list(std::move(items), kind);
  if (value.depth() > Limits::value_depth)
    fail(fmt::format("lists are nested more than {} levels deep", Limits::value_depth));
  return value;
}

Value Runtime::dict(Dict made) {
  step(std::ssize(made.items));
  if (made.depth > Limits::value_depth)
    fail(fmt::format("dictionaries are nested more than {} levels deep", Limits::value_depth));
  return make_dict(std::move(made));
}

std::vector<const Value*> bind_arguments(Runtime& runtime, std::string_view function, const Arguments& arguments,
                                         const std::vector<const char*>& parameters, size_t required) {
  if (arguments.positional.size() > parameters.size())
    runtime.fail(fmt::format("{} takes at most {} arguments, but got {}", function, parameters.size(),
                             arguments.positional.size()));
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    auto found = std::ranges::find(parameters, name);
    if (found == parameters.end()) runtime.fail(fmt::format("{} has no argument '{}'", function, name));
    const Value*& slot = bound[static_cast<size_t>(found - parameters.begin())];
    if (slot) runtime.fail(fmt::format("{} got its argument '{}' twice", function, name));
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!bound[i]) runtime.fail(fmt::format("{} needs the argument '{}'", function, parameters[i]));
  return bound;
}

int64_t integer_of(Runtime& runtime, std::string_view function, const Value& value) {
  if (!value.is_integer()) runtime.fail(fmt::format("{} expects an integer but got a {}", function, value.type()));
  return value.integer();
}

const std::string& text_of(Runtime& runtime, std::string_view function, const Value& value) {
  if (value.is_undefined()) runtime.fail(fmt::format("{}: {}", function, value.undefined_name()));
  if (!value.text()) runtime.fail(fmt::format("{} expects a string but got a {}", function, value.type()));
  return *value.text();
}

std::vector<Value> items_of(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return {};
  std::vector<Value> items;
  if (const List* list = value.list()) {
    runtime.step(std::ssize(list->items));
    if (list->kind == List::Kind::generator && std::exchange(list->consumed, true)) return {};
    items = list->items;
  } else if (const Dict* dict = value.dict()) {
    runtime.step(std::ssize(dict->items));
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (const std::string* text = value.text()) {
    runtime.step(std::ssize(*text));
    for (std::string_view point : code_points(*text)) items.emplace_back(point);
  } else {
    runtime.fail(fmt::format("a {} cannot be iterated over", value.type()));
  }
  return items;
}

} // namespace fvlm::jinja
