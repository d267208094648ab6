// The index of a shard: one file that says where each sample's members lie, so that any of them is two short reads away
// and an open shard takes no memory for those it does not read.
//
// It stands beside the shard as ".NAME.fvlm-index", else in the cache. It is good for a shard of the same size, time
// of change and fingerprint, which is a hash of two short pieces. A name, an inode or a full checksum would not do:
// data sets are moved and mounted elsewhere with their indices, time alone is the same for all files of some images and
// archives, and a full checksum would read all that the index saves reading.
#pragma once
#include "base/descriptor.h"
#include "data/shards/grouping.h"
#include "data/shards/retrying_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

struct ShardStamp {
  uint64_t size = 0;
  int64_t modified = 0;
  uint64_t fingerprint = 0;
  bool operator==(const ShardStamp&) const = default;
};

ShardStamp stamp_of(const RetryingFile& shard);

// Takes the samples and the damage that a form finds in a file, each in the order of the file.
class IndexWriter {
 public:
  IndexWriter(const ShardStamp& stamp, uint64_t version) : stamp_(stamp), version_(version) {}
  void add(const ShardSample& sample);
  void report(Damage damage);
  void count_damages(uint64_t more) { damages_ += more; } // that are not reported one by one
  // Writes the index atomically.
  void write(const std::filesystem::path& path);

 private:
  void close_record(size_t begin, uint64_t number);

  ShardStamp stamp_;
  uint64_t version_;
  std::string records_;
  std::vector<uint64_t> table_;
  std::vector<Damage> reported_;
  uint64_t damages_ = 0;
};

class ShardIndex {
 public:
  // None: there is none, it is of another shard or version, or it is damaged.
  static std::optional<ShardIndex> load(const std::filesystem::path& path, const ShardStamp& stamp, uint64_t version);

  int64_t size() const { return static_cast<int64_t>(samples_); }
  // None: the index is damaged, or cannot be read. [any thread]
  std::optional<ShardSample> sample(int64_t number) const;
  std::optional<std::vector<Damage>> damage() const;
  uint64_t damages() const { return damages_; }

 private:
  explicit ShardIndex(Descriptor file) : file_(std::move(file)) {}
  bool read(uint64_t offset, std::span<std::byte> into) const;
  // The record between two offsets, if its checksum is right.
  std::optional<std::string> record(uint64_t begin, uint64_t end, uint64_t number) const;

  Descriptor file_;
  uint64_t shard_size_ = 0, samples_ = 0, table_ = 0, damage_ = 0, damages_ = 0, bytes_ = 0;
};

} // namespace fvlm
