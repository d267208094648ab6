// Members of a tar as samples: those that follow each other and share the name up to the first dot of its last part.
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
  std::string damage; // what is wrong with a member that it should have; empty: nothing
};

// What could not be used of a shard, and where it begins.
struct Damage {
  uint64_t offset = 0;
  std::string reason;
};

struct MemberName {
  std::string_view key, rest; // empty key: no sample goes by this name ("README", ".hidden")
};
MemberName split_name(std::string_view name);

class Grouping {
 public:
  using Give = std::function<void(const ShardSample&)>;
  explicit Grouping(Give give) : give_(std::move(give)) {}

  void add(TarItem item);
  void finish();

  // At most `most_told` of them; how many there were in all is damages().
  static constexpr size_t most_told = 1000;
  const std::vector<Damage>& told() const { return told_; }
  uint64_t damages() const { return damages_; }

 private:
  void close();
  void tell(uint64_t offset, std::string reason);

  Give give_;
  ShardSample open_;
  std::unordered_set<std::string> names_; // of its members
  bool repeated_ = false;                 // the open sample's key stood earlier in the shard
  struct Lost {
    std::string key, rest, reason;
  };
  std::vector<Lost> lost_; // damaged members among and before those of the open sample
  size_t lost_before_ = 0; // so many of them before its last good member
  std::unordered_set<std::string> keys_;
  std::vector<Damage> told_;
  uint64_t damages_ = 0;
};

} // namespace fvlm
