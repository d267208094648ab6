// Reads a JSON object key by key, with defaults and ranges, and gathers all that is wrong with it.
#pragma once
#include "base/problems.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class ConfigReader {
 public:
  // `object` must be a JSON object and outlive the reader. `where`: its file, for the error.
  ConfigReader(const nlohmann::json& object, std::string where);

  // Without a fallback the key must be there. What is wrong is noted, and something harmless returned.
  int64_t whole(const char* key, std::optional<int64_t> fallback, int64_t least, int64_t most = int64_t{1} << 24);
  std::optional<int64_t> whole_or_null(const char* key, int64_t most); // from 1
  double number(const char* key, std::optional<double> fallback, double least, double most);
  bool flag(const char* key, bool fallback);
  std::string text(const char* key, const std::optional<std::string>& fallback);
  // A whole number, or a list of two equal ones: [height, width].
  int64_t square(const char* key, int64_t fallback, int64_t least, int64_t most);
  // A whole number, a list of them, or null.
  std::vector<int64_t> wholes(const char* key, std::vector<int64_t> fallback);
  // A list of texts; empty where there is none.
  std::vector<std::string> texts(const char* key);
  // An object, or null where there is none.
  const nlohmann::json* object(const char* key);
  bool has(const char* key) const;      // and it is not null
  bool has_null(const char* key) const; // and it is null

  // Notes that `key` has a value that the engine does not support.
  void refuse_unless(bool supported, const char* key, const std::string& why);
  void refuse_unknown(std::span<const char* const> known);

  Problems& problems() { return problems_; }
  const std::string& where() const { return where_; }
  const nlohmann::json& content() const { return object_; }
  // Throws all that was noted.
  void finish(const std::string& advice) const { problems_.raise(where_, advice); }

 private:
  const nlohmann::json* find(const char* key) const;
  std::string shown_value(const char* key) const;
  const nlohmann::json& object_;
  std::string where_;
  Problems problems_;
};

} // namespace fvlm
