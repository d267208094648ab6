// Groups consecutive members of a tar whose base names agree up to the first dot into samples.
#pragma once
#include "data/shards/tar_scan.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace fvlm {

struct Member {
  std::string name; // what follows the key and its dot: "jpg", "000.jpg", "json"
  uint64_t offset = 0, size = 0;
};

struct ShardSample {
  std::string key; // with its folder: "clips/000012"
  std::vector<Member> members;
  std::string damage; // why a member of it cannot be used; empty for a complete sample
};

// A part of a shard that cannot be used, and its offset.
struct Damage {
  uint64_t offset = 0;
  std::string reason;
};

struct MemberName {
  std::string_view key, rest; // the key is empty for names that belong to no sample ("README", ".hidden")
};
MemberName split_name(std::string_view name);

class Grouping {
 public:
  using Callback = std::function<void(const ShardSample&)>;
  explicit Grouping(Callback callback) : callback_(std::move(callback)) {}

  void add(TarEntry item);
  void finish();

  // The first `max_reported` of them; damages() is the full count.
  static constexpr size_t max_reported = 1000;
  const std::vector<Damage>& reported() const { return reported_; }
  uint64_t damages() const { return damages_; }

 private:
  void close();
  void report(uint64_t offset, std::string reason);

  Callback callback_;
  ShardSample open_;
  std::unordered_set<std::string> names_; // of its members
  bool duplicate_key_ = false;            // the key of the open sample occurred earlier in the shard
  struct Lost {
    std::string key, rest, reason;
  };
  std::vector<Lost> lost_;             // damaged members among and before those of the open sample
  size_t lost_before_last_member_ = 0; // so many of them before its last good member
  std::unordered_set<std::string> keys_;
  std::vector<Damage> reported_;
  uint64_t damages_ = 0;
};

} // namespace fvlm
