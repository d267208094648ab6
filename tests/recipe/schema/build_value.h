// Value trees by hand, as the Sandbox would make them: stage(12, "align", {key("samples", 13, 100)}).
#pragma once
#include "recipe/value.h"

#include <string>
#include <vector>

namespace fvlm::recipe::build {

struct Key {
  std::string name;
  Value value;
};

template <class T>
Value value(int line, T data) {
  Value made;
  made.origin = {"r.lua", line};
  if constexpr (std::is_same_v<T, int>)
    made.data = int64_t{data};
  else if constexpr (std::is_convertible_v<T, std::string>)
    made.data = std::string(data);
  else
    made.data = data;
  return made;
}

inline Value table(int line, std::string constructor, std::vector<Key> keys, std::vector<Value> items = {},
                   std::vector<Value> arguments = {}) {
  auto made = std::make_shared<Table>();
  made->constructor = std::move(constructor);
  made->origin = {"r.lua", line};
  for (auto& key : keys) made->fields.emplace_back(std::move(key.name), std::move(key.value));
  made->items = std::move(items);
  made->arguments = std::move(arguments);
  return {std::shared_ptr<const Table>(made), made->origin};
}

template <class T>
Key key(std::string name, int line, T data) {
  if constexpr (std::is_same_v<T, Value>)
    return {std::move(name), data};
  else
    return {std::move(name), value(line, data)};
}

} // namespace fvlm::recipe::build
