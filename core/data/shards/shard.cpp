#include "data/shards/shard.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/shards/unpack.h"

#include <array>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

// One thread at a time makes a shard's index or unpacks it; other processes meet in an atomic rename.
std::mutex& making(const fs::path& path) {
  static std::array<std::mutex, 64> locks;
  return locks[xxh64(path.string()) % locks.size()];
}

uint64_t hash_of(const ShardStamp& stamp) {
  return xxh64(fmt::format("{} {} {}", stamp.size, stamp.modified, stamp.fingerprint));
}

fs::path beside(const fs::path& tar) {
  return tar.parent_path() / fmt::format(".{}.fvlm-index", tar.filename().string());
}

} // namespace

std::shared_ptr<const Shard> Shard::open(const fs::path& path, const ShardOptions& options) {
  return std::shared_ptr<const Shard>(new Shard(path, options, nullptr));
}

std::shared_ptr<const Shard> Shard::reopen(const fs::path& path, const ShardOptions& options, const ShardStamp& stamp) {
  return std::shared_ptr<const Shard>(new Shard(path, options, &stamp));
}

Shard::Shard(const fs::path& path, const ShardOptions& options, const ShardStamp* known)
    : path_(path), options_(options), form_(&form_of(path)) {
  file_ = std::make_unique<RetryingFile>(plain_file(known != nullptr), options.retry);
  file_->advise_random_access();
  if (known) { // its fingerprint was looked at then: that is two reads less for each shard that comes back
    if (file_->size() != known->size || file_->modified() != known->modified)
      throw ReadError(path_, 0, 0, "the shard was changed or replaced while it was in use");
    stamp_ = *known;
  } else {
    stamp_ = stamp_of(*file_);
  }
  index_ = find_index();
  if (!index_) index_ = make_index();
  size_ = index_->size();
  if (form_->rows && size_ > 0) rows_ = form_->rows(*file_);
}

// The file that says where the samples are. A folder is listed when its shard is opened first.
fs::path Shard::plain_file(bool is_known) {
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) {
    const fs::path list = cached(".list", 0);
    std::lock_guard guard(making(list));
    const fs::path file = is_known && fs::exists(list, ignored) ? list : file_of_folder(path_, list);
    form_ = file == list ? &folder_form() : &form_of(file);
    return file;
  }
  const RetryingFile packed(path_, options_.retry);
  return is_packed(packed) ? unpacked(packed) : path_;
}

fs::path Shard::cached(const char* suffix, uint64_t more) const {
  std::error_code failed;
  auto folder = (options_.cache.empty() ? cache_folder() : options_.cache) / "shards";
  fs::create_directories(folder, failed);
  auto whole = fs::absolute(path_, failed).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path(); // "photos/"
  return folder / fmt::format("{:016x}-{:016x}-{}{}", xxh64(whole.string()), more, whole.filename().string(), suffix);
}

fs::path Shard::unpacked(const RetryingFile& packed) const {
  const std::string suffix(form_->endings.empty() ? ".tar" : form_->endings.front());
  auto out = cached(suffix.c_str(), hash_of(stamp_of(packed)));
  std::lock_guard guard(making(out));
  std::error_code ignored;
  if (fs::exists(out, ignored)) return out;
  log_info("{}: unpacking it to {}, once", path_.string(), out.string());
  unpack(packed, out, options_.most_unpacked, form_->damage_mark);
  // Its stamp then is the same whenever it is unpacked, should the cache be emptied while a run goes on.
  fs::last_write_time(out, fs::last_write_time(path_, ignored), ignored);
  // What an earlier version of this file unpacked to serves nobody any more.
  auto same_path = out.filename().string().substr(0, 17);
  for (const auto& entry : fs::directory_iterator(out.parent_path(), ignored)) {
    auto name = entry.path().filename().string();
    if (name.starts_with(same_path) && name.ends_with(suffix) && name != out.filename().string())
      fs::remove(entry.path(), ignored);
  }
  return out;
}

std::shared_ptr<const ShardIndex> Shard::find_index() const {
  if (options_.index_beside)
    if (auto index = ShardIndex::load(beside(file_->path()), stamp_, form_->index_version))
      return std::make_shared<const ShardIndex>(std::move(*index));
  try {
    if (auto index = ShardIndex::load(cached(".fvlm-index", 0), stamp_, form_->index_version))
      return std::make_shared<const ShardIndex>(std::move(*index));
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) { // there is no place for a cache, so nothing is in it
  }
  return nullptr;
}

std::shared_ptr<const ShardIndex> Shard::make_index() const {
  std::lock_guard guard(making(file_->path()));
  if (auto made = find_index()) return made; // by another thread
  IndexWriter writer(stamp_, form_->index_version);
  form_->scan(*file_, writer);
  if (options_.index_beside) {
    auto path = beside(file_->path());
    if (access(file_->path().parent_path().empty() ? "." : file_->path().parent_path().c_str(), W_OK) == 0) {
      try {
        writer.write(path);
      } catch (const Error& failed) { // no room there, say
        log_info("{}; the index goes into the cache", failed.text());
      }
      if (auto index = ShardIndex::load(path, stamp_, form_->index_version))
        return std::make_shared<const ShardIndex>(std::move(*index));
    }
  }
  auto path = cached(".fvlm-index", 0);
  try {
    writer.write(path);
  } catch (const Error& failed) {
    throw ReadError(path_, 0, 0, fmt::format("there is no place for the shard's index: {}", failed.text()),
                    "make the shard's folder writable, or set FVLM_CACHE to a folder that is");
  }
  auto index = ShardIndex::load(path, stamp_, form_->index_version);
  if (!index) throw ReadError(path_, 0, 0, fmt::format("{} cannot be read, and was just made", path.string()));
  return std::make_shared<const ShardIndex>(std::move(*index));
}

std::shared_ptr<const ShardIndex> Shard::index() const {
  std::lock_guard guard(lock_);
  return index_;
}

// What `take` finds in the index, which is made again once if it finds nothing.
template <class Take>
auto Shard::from_index(Take&& take) const {
  auto used = index();
  if (auto found = take(*used)) return std::move(*found);
  std::lock_guard guard(lock_);
  if (used == index_) {
    log_warning("{}: its index is damaged, and is made again", path_.string());
    std::error_code ignored;
    fs::remove(beside(file_->path()), ignored);
    fs::remove(cached(".fvlm-index", 0), ignored);
    index_ = make_index();
  }
  auto found = take(*index_);
  if (!found || index_->size() != size_)
    throw ReadError(path_, 0, 0, "its index cannot be read, though it was just made again");
  return std::move(*found);
}

ShardSample Shard::sample(int64_t number) const {
  if (number < 0 || number >= size_)
    throw Error(ErrorKind::internal, "sample {} of a shard with {}", number, size_).at(path_.string());
  ShardSample sample = from_index([&](const ShardIndex& index) { return index.sample(number); });
  sample.number = number;
  if (form_ == &folder_form()) add_files(sample);
  return sample;
}

std::vector<Damage> Shard::damage() const {
  return from_index([](const ShardIndex& index) { return index.damage(); });
}

uint64_t Shard::damages() const {
  return index()->damages();
}

} // namespace fvlm
