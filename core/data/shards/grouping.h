// Groups the members of a tar whose names agree up to the first dot of the file name into samples.
#pragma once
#include "data/shards/tar_scan.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fvlm {

struct Member {
  std::string name; // what follows the key and its dot: "jpg", "000.jpg", "json"
  uint64_t offset = 0, size = 0;
  std::string file = {};    // that it is, where it does not lie in the shard
  std::string pointer = {}; // to the value that it is in the JSON of its row (RFC 6901)
  int64_t row = -1;         // and that row
};

struct ShardSample {
  std::string key; // with its folder: "clips/000012"; of other forms "line 12", "item 3 (line 12)", "row 12"
  std::vector<Member> members = {};
  std::string damage = {}; // why a member of it cannot be used; empty for a complete sample
  int64_t number = -1;     // in its shard
};

// For messages: "sample 'clips/000012'", "line 12".
std::string sample_name(const std::string& key);

// A part of a shard that cannot be used, and its offset.
struct Damage {
  uint64_t offset = 0;
  std::string reason;
};

struct MemberName {
  std::string_view key, rest; // the key is empty for names that belong to no sample ("README", ".hidden")
};
MemberName split_name(std::string_view name);

// Whether the reason is about the names in a shard, which another copy or download of it would not mend.
bool is_about_names(const Damage& damage);

// Takes the members in the order of the shard and calls back in finish(), with the samples in the order of their first
// members. The members of a sample need not be adjacent: plain tar writes them in the order of the folder.
class Grouping {
 public:
  using Callback = std::function<void(const ShardSample&)>;
  explicit Grouping(Callback callback) : callback_(std::move(callback)) {}

  void add(TarEntry item);
  void finish();

  // After finish(), in the order of the shard: the first `max_reported` of them; damages() is the full count.
  static constexpr size_t max_reported = 1000;
  const std::vector<Damage>& reported() const { return reported_; }
  uint64_t damages() const { return damages_; }

 private:
  struct Part {
    Member member;
    uint64_t header;
    bool begins_run; // the member before it belongs to another sample
  };
  struct Group {
    std::string key;
    std::vector<Part> parts;
  };
  struct Lost {
    std::string rest, reason;
  };

  ShardSample complete(Group& group);
  void report(uint64_t offset, std::string reason) { reported_.push_back({offset, std::move(reason)}); }

  Callback callback_;
  std::deque<Group> groups_; // whose elements stay where they are, for the keys of by_key_
  std::unordered_map<std::string_view, Group*> by_key_;
  Group* open_ = nullptr;                                   // of the last member
  std::unordered_map<std::string, std::vector<Lost>> lost_; // damaged members by the key that they seem to have
  std::vector<Damage> reported_;
  uint64_t damages_ = 0;
};

} // namespace fvlm
