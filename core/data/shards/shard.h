// A shard: a tar file of samples, each of which can be read by its number.
#pragma once
#include "data/shards/grouping.h"
#include "data/shards/retried_file.h"
#include "data/shards/shard_index.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace fvlm {

struct ShardOptions {
  RetryPolicy retry;
  std::filesystem::path cache;                 // empty: base's cache_folder()
  bool index_beside = true;                    // where that folder is writable; else, or without, in the cache
  uint64_t most_unpacked = uint64_t{64} << 30; // bytes of what a .tar.gz holds
  size_t open_shards = 128;                    // of a ShardSet, two descriptors each
  int threads = 0;                             // that make a ShardSet's indices; 0: one for each core
};

class Shard {
 public:
  // Makes the index, and unpacks a .tar.gz, where that was not done before. Throws ReadError for a failing disk and
  // where there is no place for the index, other Errors (data) for what is no shard.
  static std::shared_ptr<const Shard> open(const std::filesystem::path& path, const ShardOptions& options = {});
  // The same of a shard that was open before: it must still be the one of that stamp, else ReadError.
  static std::shared_ptr<const Shard> reopen(const std::filesystem::path& path, const ShardOptions& options,
                                             const ShardStamp& stamp);

  const std::filesystem::path& path() const { return path_; } // as it was named
  const ShardStamp& stamp() const { return stamp_; }
  int64_t size() const { return size_; }
  // Two short reads of the index, which is made again if it is damaged. [any thread]
  ShardSample sample(int64_t number) const;

  // Bytes of the tar: a member's, or any. Throws ReadError when the disk fails. [any thread]
  void read(uint64_t offset, std::span<std::byte> into) const { file_->read(offset, into); }
  std::vector<std::byte> read(const Member& member) const;

  // What could not be used of it. The samples that miss something of it say so in ShardSample::damage.
  std::vector<Damage> damage() const;
  uint64_t damages() const; // also those that are not told: no more than Grouping::most_told are

 private:
  Shard(const std::filesystem::path& path, const ShardOptions& options, const ShardStamp* known);
  std::filesystem::path cached(const char* suffix, uint64_t more) const;
  std::filesystem::path unpacked(const RetriedFile& packed) const;
  std::shared_ptr<const ShardIndex> index() const;
  std::shared_ptr<const ShardIndex> find_index() const;
  std::shared_ptr<const ShardIndex> make_index() const;
  template <class Take>
  auto from_index(Take&& take) const;

  std::filesystem::path path_;
  ShardOptions options_;
  std::unique_ptr<RetriedFile> file_; // the tar: that of the path, or what it unpacks to
  ShardStamp stamp_;
  int64_t size_ = 0;
  mutable std::mutex lock_; // of index_
  mutable std::shared_ptr<const ShardIndex> index_;
};

} // namespace fvlm
