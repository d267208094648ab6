// The shards that match a list of patterns, as one list of samples. Only a limited number is open at a time, of all
// sets together.
#pragma once
#include "data/shards/shard.h"
#include "recipe/plan.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm {

struct SampleLocation {
  int64_t shard = 0, sample = 0;
  bool operator==(const SampleLocation&) const = default;
};

// For the shards of a source of a recipe, which may say where paths in them start.
ShardOptions with_root(ShardOptions options, const plan::Source& source);

class ShardSet {
 public:
  // Reports shards done and in total while indices are loaded or built. Calls are serialized, on any thread.
  using Progress = std::function<void(int64_t done, int64_t all)>;

  // Local paths with braces and wildcards, in the order of the patterns, those of one wildcard sorted; a file named
  // twice counts once. Throws Error(data) for a pattern, or a name in its braces, that finds no file, and when there is
  // no sample in all of them; ReadError when a disk fails.
  explicit ShardSet(const std::vector<std::string>& patterns, ShardOptions options = {}, const Progress& progress = {});
  ~ShardSet();
  ShardSet(const ShardSet&) = delete;
  ShardSet& operator=(const ShardSet&) = delete;

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); } // samples
  int64_t shards() const { return static_cast<int64_t>(paths_.size()); }
  const std::string& path(int64_t shard) const { return paths_.at(static_cast<size_t>(shard)); }
  int64_t first(int64_t shard) const { return shard == 0 ? 0 : ends_.at(static_cast<size_t>(shard) - 1); }
  int64_t samples(int64_t shard) const { return ends_.at(static_cast<size_t>(shard)) - first(shard); }
  uint64_t damages(int64_t shard) const { return damages_.at(static_cast<size_t>(shard)); }

  // Equal for a copy of the same shards at another place, and hardly ever for other data. Takes reading up to 64 MiB.
  // Without files that JSON names, which the fields of a source may be needed to find: see samples/content_hash.h.
  uint64_t content_hash() const;

  // The location of the i-th sample.
  SampleLocation locate(int64_t i) const;
  // Opens the shard unless it was used recently; it stays open as long as the pointer is held. [any thread]
  std::shared_ptr<const Shard> shard(int64_t number) const;
  std::shared_ptr<const Shard> shard(const SampleLocation& place) const { return shard(place.shard); }

 private:
  void index_all(const Progress& progress);
  std::string damage_text(size_t number) const;
  std::string first_damage() const;

  ShardOptions options_;
  std::vector<std::string> paths_;
  std::vector<int64_t> ends_; // samples up to the end of each shard
  std::vector<ShardStamp> stamps_;
  std::vector<uint64_t> damages_;
};

} // namespace fvlm
