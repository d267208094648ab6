// Access to the fields of a sample's JSON by the engine's names; the recipe's `fields` map them to those of the shard.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

// Throws Error(data) that names the field in the shard and, where it differs, the engine's name.
class Parts {
 public:
  using Fields = std::map<std::string, std::string>;
  // Both must outlive it.
  Parts(const nlohmann::json& object, const Fields& fields) : object_(object), fields_(fields) {}

  // Null where the field is missing or null.
  const nlohmann::json* find(const std::string& part) const;
  bool has(const std::string& part) const { return find(part) != nullptr; }
  const nlohmann::json& need(const std::string& part) const;

  std::optional<std::string> text(const std::string& part) const;
  std::string need_text(const std::string& part) const;
  std::optional<int64_t> count(const std::string& part) const; // 0 or more

  const std::string& key(const std::string& part) const; // in the shard's JSON
  std::string pointer(const std::string& part) const;    // to it there (RFC 6901)
  // The name for messages: the key in the shard, and the engine's name where it differs.
  std::string name(const std::string& part) const;
  // Whether the recipe maps this field to a key of the shard.
  bool is_mapped(const std::string& part) const { return fields_.contains(part); }
  bool is_named(const std::string& key) const; // by the recipe, as the key of a part

 private:
  const nlohmann::json& object_;
  const Fields& fields_;
};

// A key as a part of a JSON pointer.
std::string escaped_key(const std::string& key);

[[noreturn]] void broken(std::string what);

// Returns the string, or throws an Error that says which type `name` has instead.
const std::string& text_in(const nlohmann::json& value, const std::string& name);

} // namespace fvlm
