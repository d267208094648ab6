// A store in memory: several of them in one process, one for each rank.
#pragma once
#include "dist/key_value_store.h"

#include <map>
#include <memory>
#include <mutex>

namespace fvlm::test {

class MemoryStore : public dist::KeyValueStore {
 public:
  struct Shared {
    std::mutex lock;
    std::map<std::string, std::string> values;
  };

  explicit MemoryStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard hold(shared_->lock);
    shared_->values[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard hold(shared_->lock);
    const auto found = shared_->values.find(key);
    return found == shared_->values.end() ? std::nullopt : std::optional(found->second);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    const std::lock_guard hold(shared_->lock);
    return shared_->values.try_emplace(key, value).first->second;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

} // namespace fvlm::test
