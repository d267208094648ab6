// The parts of a sample's JSON, by the engine's names for them, whatever the shard calls them.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

// "'answer' (the recipe's assistant) is a number, a text was expected" and the like: Errors (data) of what is wrong.
class Parts {
 public:
  using Fields = std::map<std::string, std::string>;
  // Both must outlive it.
  Parts(const nlohmann::json& object, const Fields& fields) : object_(object), fields_(fields) {}

  // Null where the part is not there, or is null.
  const nlohmann::json* find(const std::string& part) const;
  bool has(const std::string& part) const { return find(part) != nullptr; }
  const nlohmann::json& need(const std::string& part) const;

  std::optional<std::string> text(const std::string& part) const;
  std::string need_text(const std::string& part) const;
  std::optional<int64_t> count(const std::string& part) const; // 0 or more

  // As messages name it: the shard's key, and the engine's name where they differ.
  std::string name(const std::string& part) const;
  // The recipe says where this part is found.
  bool is_mapped(const std::string& part) const { return fields_.contains(part); }

 private:
  const nlohmann::json& object_;
  const Fields& fields_;
};

[[noreturn]] void broken(std::string what);
[[noreturn]] void wrong_type(const std::string& name, const nlohmann::json& value, std::string_view expected);

// The text, or an Error that says what `name` is instead.
const std::string& text_in(const nlohmann::json& value, const std::string& name);

} // namespace fvlm
