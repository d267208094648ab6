// A shard: a tar file of samples with random access by index.
#pragma once
#include "data/shards/grouping.h"
#include "data/shards/retrying_file.h"
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
  std::filesystem::path cache; // empty: base's cache_folder()
  bool index_beside = true;    // stores the index beside the shard where the folder is writable, otherwise in the cache
  uint64_t most_unpacked = uint64_t{64} << 30; // limit on the decompressed bytes of a .tar.gz
  size_t open_shards = 128;                    // limit of a ShardSet; each open shard has two file descriptors
  int threads = 0;                             // threads that build the indices of a ShardSet; 0: one for each core
};

class Shard {
 public:
  // Builds the index and decompresses a .tar.gz unless that was done before. Throws ReadError for a failing disk or
  // when the index cannot be written, other Errors (data) for a file that is not a shard.
  static std::shared_ptr<const Shard> open(const std::filesystem::path& path, const ShardOptions& options = {});
  // Opens a shard again and throws ReadError when its stamp has changed.
  static std::shared_ptr<const Shard> reopen(const std::filesystem::path& path, const ShardOptions& options,
                                             const ShardStamp& stamp);

  const std::filesystem::path& path() const { return path_; } // as it was named
  const ShardStamp& stamp() const { return stamp_; }
  int64_t size() const { return size_; }
  // Takes two short reads of the index; a damaged index is rebuilt. [any thread]
  ShardSample sample(int64_t number) const;

  // Reads bytes of the tar. Throws ReadError when the disk fails. [any thread]
  void read(uint64_t offset, std::span<std::byte> into) const { file_->read(offset, into); }
  std::vector<std::byte> read(const Member& member) const;

  // The parts that cannot be used. Affected samples also have ShardSample::damage.
  std::vector<Damage> damage() const;
  uint64_t damages() const; // the full count, of which damage() lists Grouping::max_reported

 private:
  Shard(const std::filesystem::path& path, const ShardOptions& options, const ShardStamp* known);
  std::filesystem::path cached(const char* suffix, uint64_t more) const;
  std::filesystem::path unpacked(const RetryingFile& packed) const;
  std::shared_ptr<const ShardIndex> index() const;
  std::shared_ptr<const ShardIndex> find_index() const;
  std::shared_ptr<const ShardIndex> make_index() const;
  template <class Take>
  auto from_index(Take&& take) const;

  std::filesystem::path path_;
  ShardOptions options_;
  std::unique_ptr<RetryingFile> file_; // the tar: that of the path, or what it unpacks to
  ShardStamp stamp_;
  int64_t size_ = 0;
  mutable std::mutex lock_; // of index_
  mutable std::shared_ptr<const ShardIndex> index_;
};

} // namespace fvlm
