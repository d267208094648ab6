// A shard: a file or folder of samples with random access by index.
#pragma once
#include "base/hash.h"
#include "data/media/random_access.h"
#include "data/shards/grouping.h"
#include "data/shards/retrying_file.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace fvlm {

struct ShardOptions {
  RetryPolicy retry;
  std::filesystem::path cache; // empty: base's cache_folder()
  std::filesystem::path root;  // of the paths in JSON files; empty: the folder of the file
  bool index_beside = true;    // stores the index beside the shard where the folder is writable, otherwise in the cache
  uint64_t most_unpacked = uint64_t{64} << 30; // limit on the decompressed bytes of a .gz or .zst
  size_t open_shards = 0; // limit for all sets of the process, with two file descriptors each; 0: by `ulimit -n`
  int threads = 0;        // threads that build the indices of a ShardSet; 0: one for each core
};

class Shard {
 public:
  // Builds the index and decompresses a .gz or .zst unless that was done before. Throws ReadError for a failing disk or
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

  const ShardForm& form() const { return *form_; }
  bool names_media() const { return form_->names_media; }
  // Where a file is that the JSON of a sample names.
  std::filesystem::path media_path(const std::string& name) const;
  // The JSON of a sample, if it has one. Throws Error(data) where it is no object or too long. [any thread]
  std::optional<nlohmann::json> json(const ShardSample& sample) const;

  // Throws ReadError when the disk fails, Error(data) where the member is a file that is not there. The shard must
  // outlive what open() returns. [any thread]
  std::unique_ptr<const RandomAccess> open(const Member& member) const;
  std::vector<std::byte> read(const Member& member) const;

  // Adds up to about so many bytes of its file to the hash: all of it, or pieces from all over it. Of a folder of
  // files, which has no such file, the names and of some samples the first bytes. [any thread]
  void hash_content(Xxh64& hash, uint64_t most) const;
  // Adds sizes and first bytes of the members that are files of their own. [any thread]
  void hash_files(const ShardSample& sample, Xxh64& hash) const;

  // The parts that cannot be used. Affected samples also have ShardSample::damage.
  std::vector<Damage> damage() const;
  uint64_t damages() const; // the full count, of which damage() lists Grouping::max_reported

 private:
  Shard(const std::filesystem::path& path, const ShardOptions& options, const ShardStamp* known);
  std::filesystem::path cached(const char* suffix, uint64_t more) const;
  std::filesystem::path unpacked(const RetryingFile& packed) const;
  std::filesystem::path plain_file(bool is_known);
  std::shared_ptr<const ShardIndex> index() const;
  std::shared_ptr<const ShardIndex> find_index() const;
  std::shared_ptr<const ShardIndex> make_index() const;
  void add_files(ShardSample& sample) const;
  template <class Take>
  auto from_index(Take&& take) const;

  std::filesystem::path path_;
  ShardOptions options_;
  const ShardForm* form_;
  std::unique_ptr<RetryingFile> file_;    // that of the path, what it unpacks to, or what says what is in the folder
  std::unique_ptr<const RowReader> rows_; // of a table
  ShardStamp stamp_;
  int64_t size_ = 0;
  mutable std::mutex lock_; // of index_
  mutable std::shared_ptr<const ShardIndex> index_;
};

} // namespace fvlm
