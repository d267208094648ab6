#include "data/parquet/page_cache.h"

#include <algorithm>
#include <unistd.h>
#include <utility>
#include <vector>

namespace fvlm::parquet {
namespace {

uint64_t usual_limit() {
  constexpr uint64_t most = uint64_t{8} << 30, share = 16;
  const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(most, memory / share);
}

} // namespace

PageCache::PageCache() : limit_(usual_limit()) {}

PageCache& PageCache::of_process() {
  static PageCache& cache = *new PageCache; // never destroyed: files may be closed at the end of the process
  return cache;
}

void PageCache::forget(const GroupPages& group) {
  const auto found = places_.find(&group);
  if (found == places_.end()) return;
  bytes_ -= found->second->bytes;
  recent_.erase(found->second);
  places_.erase(found);
}

void PageCache::keep(const std::shared_ptr<GroupPages>& group, uint64_t bytes) {
  std::vector<std::shared_ptr<GroupPages>> dropped;
  {
    const std::lock_guard guard(lock_);
    forget(*group);
    recent_.push_front({group, bytes});
    places_[group.get()] = recent_.begin();
    bytes_ += bytes;
    while (bytes_ > limit_ && recent_.size() > 1) {
      dropped.push_back(recent_.back().group);
      forget(*dropped.back());
    }
  }
  for (const auto& each : dropped) {
    const std::lock_guard guard(each->lock);
    for (ColumnPages& column : each->columns) column.forget();
  }
}

void PageCache::remove(const GroupPages& group) {
  const std::lock_guard guard(lock_);
  forget(group);
}

uint64_t PageCache::bytes() const {
  const std::lock_guard guard(lock_);
  return bytes_;
}

uint64_t PageCache::set_limit(uint64_t bytes) {
  const std::lock_guard guard(lock_);
  return std::exchange(limit_, bytes);
}

} // namespace fvlm::parquet
