// What tells data from others that have as many samples: sizes and content, of which large data are read in part, and
// neither names of shards nor times, so that a copy of them elsewhere has the same hash.
#include "base/parallel.h"
#include "data/shards/shard.h"
#include "data/shards/shard_set.h"

#include <algorithm>

namespace fvlm {
namespace {

constexpr uint64_t whole = uint64_t{64} << 20;   // data up to this size are read whole,
constexpr uint64_t sampled = uint64_t{16} << 20; // larger ones in pieces of so many bytes together
constexpr uint64_t piece = uint64_t{64} << 10;
constexpr int64_t files_of_folder = 256; // samples of a folder whose files are read in part

void add(Xxh64& hash, std::string_view text) {
  hash.update(std::as_bytes(std::span(text)));
}

void add(Xxh64& hash, uint64_t number) {
  hash.update(std::as_bytes(std::span(&number, 1)));
}

} // namespace

void Shard::hash_content(Xxh64& hash, uint64_t most) const {
  std::vector<std::byte> bytes(std::min(piece, file_->size()));
  const uint64_t all = bytes.empty() ? 0 : (file_->size() + piece - 1) / piece, count = std::min(all, most / piece);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = i * all / count * piece;
    bytes.resize(std::min(piece, file_->size() - begin));
    file_->read(begin, bytes);
    hash.update(bytes);
  }
  if (form_ != &folder_form()) return;
  const int64_t files = std::min(size_, files_of_folder);
  for (int64_t i = 0; i < files; ++i) hash_files(sample(i * size_ / files), hash);
}

void Shard::hash_files(const ShardSample& sample, Xxh64& hash) const {
  for (const Member& member : sample.members) {
    if (member.file.empty()) continue;
    add(hash, member.size);
    try {
      const auto file = open(member);
      std::vector<std::byte> bytes(std::min(piece, file->size()));
      file->read(0, bytes);
      hash.update(bytes);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) { // a file that is not there any more
      add(hash, "absent");
    }
  }
}

uint64_t ShardSet::content_hash() const {
  uint64_t bytes = 0;
  for (const ShardStamp& stamp : stamps_) bytes += stamp.size;
  const auto share_of = [&](const ShardStamp& stamp) {
    if (bytes <= whole) return stamp.size + piece;
    return static_cast<uint64_t>(static_cast<double>(sampled) * static_cast<double>(stamp.size) /
                                 static_cast<double>(bytes));
  };
  std::vector<uint64_t> hashes(stamps_.size());
  in_parallel(std::ssize(stamps_), threads_or_cores(options_.threads), [&](int64_t number) {
    const ShardStamp& stamp = stamps_[static_cast<size_t>(number)];
    Xxh64 hash;
    add(hash, stamp.size);
    add(hash, stamp.fingerprint);
    if (const uint64_t share = share_of(stamp); share >= piece) shard(number)->hash_content(hash, share);
    hashes[static_cast<size_t>(number)] = hash.value();
  });
  Xxh64 hash;
  for (const uint64_t each : hashes) add(hash, each);
  return hash.value();
}

} // namespace fvlm
