// Keys and values that all ranks share, in the store where they met.
#pragma once
#include <optional>
#include <string>

namespace fvlm::dist {

// Throws std::exception where it cannot be reached. One thread at a time.
class KeyValueStore {
 public:
  KeyValueStore() = default;
  virtual ~KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0; // does not wait for it
  // What the key has afterwards: a value that was there before stays.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
};

} // namespace fvlm::dist
