// Reads members of a tokenizer.json, and rejects those of another type by name.
#pragma once
#include "base/error.h"
#include "data/bpe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace fvlm {

class TokenizerJson {
 protected:
  using Json = nlohmann::json;
  explicit TokenizerJson(std::string where) : where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what, const std::string& advice = "") const {
    throw Error(ErrorKind::data, what).at(where_).advise(advice);
  }

  static Json member(const Json& parent, const char* key, const Json& fallback) {
    auto found = parent.find(key);
    return found == parent.end() || found->is_null() ? fallback : *found;
  }

  const Json& object(const Json& parent, const char* key) const {
    auto found = parent.find(key);
    if (found == parent.end() || !found->is_object()) fail(fmt::format("'{}' is missing or no object", key));
    return *found;
  }

  std::string text_of(const Json& value, const std::string& name) const {
    if (!value.is_string()) fail(fmt::format("'{}' must be a string", name));
    return value.get<std::string>();
  }

  bool flag(const Json& parent, const char* key, bool fallback) const {
    Json value = member(parent, key, fallback);
    if (!value.is_boolean()) fail(fmt::format("'{}' must be true or false", key));
    return value.get<bool>();
  }

  std::string type_of(const Json& parent, const std::string& name) const {
    if (!parent.is_object()) fail(fmt::format("'{}' must be an object", name));
    return text_of(member(parent, "type", ""), name + ".type");
  }

  TokenId id_of(const Json& value, const std::string& name) const {
    if (!value.is_number_integer()) fail(fmt::format("the id of {} must be a whole number", name));
    int64_t id = value.is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX))
                                            : value.get<int64_t>();
    if (id < 0 || id >= max_ids) fail(fmt::format("the id {} of {} is outside 0 .. {}", id, name, max_ids - 1));
    return static_cast<TokenId>(id);
  }

 private:
  static constexpr int64_t max_ids = 1 << 24;
  std::string where_;
};

} // namespace fvlm
