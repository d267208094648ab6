#include "jinja/value.h"

#include "base/exact_json.h"

#include <algorithm>
#include <cstdlib>

namespace fvlm::jinja {

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

int64_t Value::integer() const {
  const bool* flag = boolean();
  return flag ? int64_t{*flag} : std::get<int64_t>(data_);
}

double Value::number() const {
  if (const LongInteger* const large = long_integer()) return large->size;
  const auto* real = std::get_if<double>(&data_);
  return real ? *real : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const auto* string = text()) return !string->empty();
  if (const auto* sequence = list()) return sequence->kind == List::Kind::generator || !sequence->items.empty();
  if (const auto* map = dict()) return !map->items.empty();
  return true;
}

const char* Value::type() const {
  static constexpr const char* names[] = {"Undefined", "NoneType", "bool",      "int",         "float",    "str",
                                          "list",      "dict",     "namespace", "LoopContext", "function", "int"};
  const List* sequence = list();
  if (sequence && sequence->kind == List::Kind::tuple) return "tuple";
  if (sequence && sequence->kind == List::Kind::generator) return "generator";
  return names[data_.index()];
}

int Value::depth() const {
  return list() ? list()->depth : dict() ? dict()->depth : 0;
}

void Dict::set(std::string_view key, Value value) {
  depth = std::max(depth, value.depth() + 1);
  auto found =
      std::ranges::find_if(items, [&](const auto& item) { return item.first.text() && *item.first.text() == key; });
  if (found == items.end())
    items.emplace_back(key, std::move(value));
  else
    found->second = std::move(value);
}

Value make_list(std::vector<Value> items, List::Kind kind) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return std::make_shared<const List>(List{std::move(items), kind, depth + 1});
}

Value make_dict(Dict dict) {
  return std::make_shared<const Dict>(std::move(dict));
}

Value dict_of(std::initializer_list<std::pair<std::string_view, Value>> items) {
  Dict dict;
  for (const auto& [key, value] : items) dict.set(key, value);
  return make_dict(std::move(dict));
}

Value from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})
    return LongInteger{exact_text(json), json.get<double>()};
  if (json.is_binary()) {
    const std::string digits = exact_text(json);
    const double size = std::strtod(digits.c_str(), nullptr);
    return digits.find_first_of(".eE") == std::string::npos ? Value(LongInteger{digits, size}) : Value(size);
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json(item));
    return make_list(std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, value] : json.items()) {
      dict.items.emplace_back(key, from_json(value));
      dict.depth = std::max(dict.depth, dict.items.back().second.depth() + 1);
    }
    return make_dict(std::move(dict));
  }
  return {};
}

} // namespace fvlm::jinja
