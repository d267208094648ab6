#include "base/config_reader.h"

#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm {

using Json = nlohmann::json;

namespace {

// A whole number within the range, if it is one; 64.0 is.
std::optional<int64_t> whole_within(const Json& value, int64_t least, int64_t most) {
  if (value.is_number_float()) {
    constexpr double exact = 1LL << 53; // up to which each whole number is a double
    const auto number = value.get<double>();
    if (std::trunc(number) != number || std::abs(number) > exact) return std::nullopt;
    return whole_within(static_cast<int64_t>(number), least, most);
  }
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  int64_t number = value.get<int64_t>();
  return number < least || number > most ? std::nullopt : std::optional(number);
}

} // namespace

ConfigReader::ConfigReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

const Json* ConfigReader::find(const char* key) const {
  auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

std::string ConfigReader::shown_value(const char* key) const {
  constexpr size_t most = 80;
  std::string text = find(key)->dump(-1, ' ', true);
  if (text.size() > most) text.replace(most, std::string::npos, "...");
  return text;
}

int64_t ConfigReader::whole(const char* key, std::optional<int64_t> fallback, int64_t least, int64_t most) {
  const Json* value = find(key);
  if (!value && !fallback) problems_.add("'{}' is missing", key);
  if (!value) return fallback.value_or(least);
  if (auto number = whole_within(*value, least, most)) return *number;
  problems_.add("'{}' is {}, and must be a whole number from {} to {}", key, shown_value(key), least, most);
  return fallback.value_or(least); // so that it is not complained of twice
}

std::optional<int64_t> ConfigReader::whole_or_null(const char* key, int64_t most) {
  return has(key) ? std::optional(whole(key, std::nullopt, 1, most)) : std::nullopt;
}

double ConfigReader::number(const char* key, std::optional<double> fallback, double least, double most) {
  const Json* value = find(key);
  if (!value && !fallback) problems_.add("'{}' is missing", key);
  if (!value) return fallback.value_or(least);
  double number = value->is_number() ? value->get<double>() : 0;
  if (value->is_number() && number >= least && number <= most) return number;
  problems_.add("'{}' is {}, and must be a number from {:g} to {:g}", key, shown_value(key), least, most);
  return least;
}

bool ConfigReader::flag(const char* key, bool fallback) {
  const Json* value = find(key);
  if (!value) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  problems_.add("'{}' is {}, and must be true or false", key, shown_value(key));
  return fallback;
}

std::string ConfigReader::text(const char* key, const std::optional<std::string>& fallback) {
  const Json* value = find(key);
  if (!value && !fallback) problems_.add("'{}' is missing", key);
  if (!value) return fallback.value_or("");
  if (value->is_string()) return value->get<std::string>();
  problems_.add("'{}' is {}, and must be text", key, shown_value(key));
  return fallback.value_or("");
}

int64_t ConfigReader::square(const char* key, int64_t fallback, int64_t least, int64_t most) {
  const Json* value = find(key);
  if (!value || !value->is_array()) return whole(key, fallback, least, most);
  if (value->size() == 2 && (*value)[0] == (*value)[1])
    if (auto number = whole_within((*value)[0], least, most)) return *number;
  problems_.add("'{}' is {}, and must be a square of {} to {}: one number, or two equal ones", key, shown_value(key),
                least, most);
  return fallback;
}

std::vector<int64_t> ConfigReader::wholes(const char* key, std::vector<int64_t> fallback) {
  const Json* value = find(key);
  if (!value) return fallback;
  std::vector<int64_t> out;
  bool good = true;
  auto take = [&](const Json& one) {
    auto number = whole_within(one, 0, INT32_MAX);
    good &= number.has_value();
    out.push_back(number.value_or(0));
  };
  if (value->is_array())
    for (const Json& one : *value) take(one);
  else if (!value->is_null())
    take(*value);
  if (!good) problems_.add("'{}' is {}, and must be a whole number from 0 on or a list of such", key, shown_value(key));
  return out;
}

std::vector<std::string> ConfigReader::texts(const char* key) {
  std::vector<std::string> out;
  if (!has(key)) return out;
  const Json* value = find(key);
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    good = (*value)[i].is_string();
    if (good) out.push_back((*value)[i].get<std::string>());
  }
  if (!good) problems_.add("'{}' is {}, and must be a list of texts", key, shown_value(key));
  return out;
}

const Json* ConfigReader::object(const char* key) {
  if (!has(key)) return nullptr;
  if (find(key)->is_object()) return find(key);
  problems_.add("'{}' is {}, and must be an object", key, shown_value(key));
  return nullptr;
}

bool ConfigReader::has(const char* key) const {
  const Json* value = find(key);
  return value && !value->is_null();
}

bool ConfigReader::has_null(const char* key) const {
  const Json* value = find(key);
  return value && value->is_null();
}

void ConfigReader::refuse_unless(bool supported, const char* key, const std::string& why) {
  if (!supported) problems_.add("'{}' = {} is not supported: {}", key, has(key) ? shown_value(key) : "null", why);
}

void ConfigReader::refuse_unknown(std::span<const char* const> known) {
  std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(names, key) != names.end()) continue;
    auto near = nearest(key, names);
    problems_.add("the key {} is unknown{}", shown(key), near ? fmt::format("; did you mean '{}'?", *near) : "");
  }
}

} // namespace fvlm
