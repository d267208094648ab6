#include "jinja/attributes.h"

#include "jinja/code_points.h"
#include "jinja/methods.h"
#include "jinja/operators.h"

#include <fmt/format.h>

#include <charconv>

namespace fvlm::jinja {
namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto at = static_cast<int64_t>(loop.index), size = std::ssize(loop.items);
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return size - at;
  if (name == "revindex0") return size - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at == size - 1;
  if (name == "length") return size;
  if (name == "depth") return 1; // of recursive loops, which there are none
  if (name == "depth0") return 0;
  if (name == "previtem") return at > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return at + 1 < size ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", name));
}

// An attribute or a method, or nothing.
std::optional<Value> own_attribute(const Value& object, std::string_view name) {
  if (const Namespace* space = object.space()) {
    for (const auto& [key, value] : space->attributes)
      if (key == name) return value;
    return std::nullopt;
  }
  if (is_method(object, name)) {
    Callable method;
    method.name = name;
    method.self = object;
    method.is_method = true;
    return Value(std::make_shared<const Callable>(std::move(method)));
  }
  if (const Loop* loop = object.loop()) return loop_attribute(*loop, name);
  return std::nullopt;
}

std::optional<Value> item_at(Runtime& runtime, const Value& object, const Value& index) {
  if (const Dict* dict = object.dict()) {
    const Value* found = find(runtime, *dict, index);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (!index.is_integer()) return std::nullopt;
  if (const std::string* text = object.text()) {
    const auto points = code_points(*text);
    runtime.step(std::ssize(points) / 8);
    const int64_t at = index.integer() < 0 ? index.integer() + std::ssize(points) : index.integer();
    return at >= 0 && at < std::ssize(points) ? std::optional<Value>(points[static_cast<size_t>(at)]) : std::nullopt;
  }
  const List* list = object.list();
  if (!list || (list->kind != List::Kind::list && list->kind != List::Kind::tuple)) return std::nullopt;
  const int64_t at = index.integer() < 0 ? index.integer() + std::ssize(list->items) : index.integer();
  if (at < 0 || at >= std::ssize(list->items)) return std::nullopt;
  return list->items[static_cast<size_t>(at)];
}

Value missing(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("a {} has no attribute '{}'", object.type(), name));
}

} // namespace

Value attribute_of(Runtime& runtime, const Value& object, std::string_view name) {
  runtime.step();
  if (object.is_undefined()) runtime.fail(fmt::format("{}, so it has no '{}'", object.undefined_name(), name));
  if (auto own = own_attribute(object, name)) return std::move(*own);
  if (const Dict* dict = object.dict())
    if (const Value* found = find(runtime, *dict, name)) return *found;
  return missing(object, name);
}

Value item_of(Runtime& runtime, const Value& object, const Value& index) {
  runtime.step();
  if (object.is_undefined())
    runtime.fail(index.text() ? fmt::format("{}, so it has no '{}'", object.undefined_name(), *index.text())
                              : fmt::format("{}, so it has no items", object.undefined_name()));
  if (auto item = item_at(runtime, object, index)) return std::move(*item);
  if (const std::string* name = index.text()) {
    if (auto own = own_attribute(object, *name)) return std::move(*own);
    return missing(object, *name);
  }
  return Value::undefined(index.is_integer() ? fmt::format("a {} has no item {}", object.type(), index.integer())
                                             : fmt::format("a {} has no such item", object.type()));
}

Value path_of(Runtime& runtime, const Value& object, const Value& path) {
  if (path.is_integer()) return item_of(runtime, object, path);
  std::string_view rest = text_of(runtime, "an attribute", path);
  Value value = object;
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t number = 0;
    auto parsed = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = parsed.ec == std::errc{} && parsed.ptr == part.data() + part.size() && part[0] != '-';
    value = item_of(runtime, value, is_number ? Value(number) : Value(part));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

} // namespace fvlm::jinja
