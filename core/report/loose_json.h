// Lenient access to JSON: a value that is missing or has an unexpected type counts as absent.
#pragma once
#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>

namespace fvlm::report {

using Json = nlohmann::json;

inline const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// An empty array where there is none.
inline const Json& list(const Json& object, const char* key) {
  static const Json none = Json::array();
  const Json* found = find(object, key);
  return found && found->is_array() ? *found : none;
}

inline std::string text(const Json& object, const char* key) {
  const Json* found = find(object, key);
  return found && found->is_string() ? found->get<std::string>() : "";
}

inline std::optional<double> number(const Json& object, const char* key) {
  const Json* found = find(object, key);
  if (!found || !found->is_number() || !std::isfinite(found->get<double>())) return std::nullopt;
  return found->get<double>();
}

inline bool flag(const Json& object, const char* key) {
  const Json* found = find(object, key);
  return found && found->is_boolean() && found->get<bool>();
}

// A number that counts something.
inline std::optional<int64_t> count(const Json& object, const char* key) {
  auto found = number(object, key);
  if (!found || *found < 0 || *found > 9e15) return std::nullopt;
  return static_cast<int64_t>(*found);
}

} // namespace fvlm::report
