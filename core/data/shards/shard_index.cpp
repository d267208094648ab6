#include "data/shards/shard_index.h"

#include "base/atomic_file.h"
#include "base/hash.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm {
namespace {

static_assert(std::endian::native == std::endian::little); // numbers lie in the file as they do in memory

constexpr std::array<char, 8> magic = {'f', 'v', 'l', 'm', 't', 'a', 'r', '\n'};
// Of tars, version 1 has the same form and left out members that are not adjacent to the others of their sample, each
// as damage: one without damage is good still.
constexpr uint64_t version_of_tar = 2, version_of_adjacent = 1;
constexpr uint64_t piece = 4096; // of the shard, for its fingerprint

// The file: this head; the records of the samples and the one of the damage; a table with where each sample's record
// begins and, behind the last, where the damage's does. A record ends with a hash of itself and its number.
struct Head {
  std::array<char, 8> magic;
  uint64_t version;
  ShardStamp stamp;
  uint64_t samples, table, damage, damages, bytes;
  uint64_t hash; // of all before it
};
constexpr uint64_t hash_size = sizeof(uint64_t);

uint64_t hash_of(std::string_view bytes, uint64_t number) {
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  hash.update(std::as_bytes(std::span(&number, 1)));
  return hash.value();
}

uint64_t hash_of(const Head& head) {
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(&head, 1)).first(offsetof(Head, hash)));
  return hash.value();
}

void put(std::string& out, uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out += text;
}

// Reads what put() wrote; once a record proves too short, nothing more is taken and good() is false.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : rest_(bytes) {}
  bool good() const { return good_; }
  uint64_t left() const { return rest_.size(); }

  uint64_t number() {
    uint64_t value = 0;
    if (auto bytes = take(sizeof value); good_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number())); }

 private:
  std::string_view take(uint64_t size) {
    good_ = good_ && size <= rest_.size();
    if (!good_) return {};
    auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool good_ = true;
};

} // namespace

ShardStamp stamp_of(const RetryingFile& shard) {
  Xxh64 hash;
  std::vector<std::byte> bytes(std::min(piece, shard.size()));
  for (uint64_t begin : {uint64_t{0}, (shard.size() - bytes.size()) / 2}) {
    shard.read(begin, bytes);
    hash.update(bytes);
  }
  return {shard.size(), shard.modified(), hash.value()};
}

void IndexWriter::close_record(size_t begin, uint64_t number) {
  put(records_, hash_of(std::string_view(records_).substr(begin), number));
}

void IndexWriter::add(const ShardSample& sample) {
  const size_t begin = records_.size();
  table_.push_back(sizeof(Head) + begin);
  put(records_, sample.key);
  put(records_, sample.damage);
  put(records_, sample.members.size());
  for (const Member& member : sample.members) {
    put(records_, member.name);
    put(records_, member.offset);
    put(records_, member.size);
  }
  close_record(begin, table_.size() - 1);
}

void IndexWriter::report(Damage damage) {
  ++damages_;
  if (reported_.size() < Grouping::max_reported) reported_.push_back(std::move(damage));
}

void IndexWriter::write(const std::filesystem::path& path) {
  const size_t damage = records_.size();
  put(records_, reported_.size());
  for (const Damage& each : reported_) {
    put(records_, each.offset);
    put(records_, each.reason);
  }
  close_record(damage, table_.size());
  table_.push_back(sizeof(Head) + damage);

  Head head{magic, version_, stamp_};
  head.samples = table_.size() - 1;
  head.damage = table_.back();
  head.damages = damages_;
  head.table = sizeof(Head) + records_.size();
  head.bytes = head.table + table_.size() * sizeof(uint64_t);
  head.hash = hash_of(head);

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&head, 1)));
  file.write(records_);
  file.write(std::as_bytes(std::span(table_)));
  file.commit();
}

bool ShardIndex::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    ssize_t got = pread(file_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into = into.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

std::optional<ShardIndex> ShardIndex::load(const std::filesystem::path& path, const ShardStamp& stamp,
                                           uint64_t version) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && is_out_of_descriptors(errno))
    throw ReadError(path, 0, errno, fmt::format("cannot open the index: {}", std::strerror(errno)));
  struct stat info;
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  ShardIndex index(std::move(file));
  Head head{};
  if (!index.read(0, std::as_writable_bytes(std::span(&head, 1)))) return std::nullopt;
  const bool is_known = head.version == version ||
                        (head.version == version_of_adjacent && version == version_of_tar && head.damages == 0);
  if (head.magic != magic || !is_known || head.hash != hash_of(head) || head.stamp != stamp ||
      head.bytes != static_cast<uint64_t>(info.st_size))
    return std::nullopt;
  index.shard_size_ = stamp.size;
  index.samples_ = head.samples;
  index.table_ = head.table;
  index.damage_ = head.damage;
  index.damages_ = head.damages;
  index.bytes_ = head.bytes;
  return index;
}

std::optional<std::string> ShardIndex::record(uint64_t begin, uint64_t end, uint64_t number) const {
  if (begin < sizeof(Head) || end > bytes_ || end < begin + hash_size) return std::nullopt;
  std::string bytes(end - begin, '\0');
  if (!read(begin, std::as_writable_bytes(std::span(bytes)))) return std::nullopt;
  uint64_t told = 0;
  std::memcpy(&told, bytes.data() + bytes.size() - hash_size, hash_size);
  bytes.resize(bytes.size() - hash_size);
  if (told != hash_of(bytes, number)) return std::nullopt;
  return bytes;
}

std::optional<ShardSample> ShardIndex::sample(int64_t number) const {
  std::array<uint64_t, 2> range{};
  if (!read(table_ + static_cast<uint64_t>(number) * sizeof(uint64_t), std::as_writable_bytes(std::span(range))))
    return std::nullopt;
  auto bytes = record(range[0], range[1], static_cast<uint64_t>(number));
  if (!bytes) return std::nullopt;
  RecordReader reader(*bytes);
  ShardSample sample{.key = reader.text(), .damage = reader.text()};
  uint64_t members = reader.number();
  for (uint64_t i = 0; i < members && reader.good(); ++i) {
    Member member{.name = reader.text(), .offset = reader.number(), .size = reader.number()};
    if (member.offset > shard_size_ || member.size > shard_size_ - member.offset) return std::nullopt;
    sample.members.push_back(std::move(member));
  }
  if (!reader.good() || reader.left()) return std::nullopt;
  return sample;
}

std::optional<std::vector<Damage>> ShardIndex::damage() const {
  auto bytes = record(damage_, table_, samples_);
  if (!bytes) return std::nullopt;
  RecordReader reader(*bytes);
  std::vector<Damage> all;
  for (uint64_t i = 0, count = reader.number(); i < count && reader.good(); ++i)
    all.push_back({.offset = reader.number(), .reason = reader.text()});
  if (!reader.good() || reader.left()) return std::nullopt;
  return all;
}

} // namespace fvlm
