#include "infer/page_pool.h"

#include "base/error.h"

namespace fvlm::infer {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages + 1)) {
  for (int64_t page = pages; page > 0; --page) free_.push_back(static_cast<int32_t>(page));
}

std::optional<int32_t> PagePool::allocate() {
  int32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (!cached_.empty()) {
    page = cached_.front();
    cached_.pop_front();
    published_.erase(at(page).key);
    at(page).key.clear();
  } else {
    return std::nullopt;
  }
  at(page).references = 1;
  return page;
}

void PagePool::share(int32_t page) {
  if (at(page).references++ == 0) cached_.erase(at(page).waiting);
}

void PagePool::release(int32_t page) {
  Page& released = at(page);
  if (released.references < 1) throw Error(ErrorKind::internal, "page {} is released twice", page);
  if (--released.references > 0) return;
  if (released.key.empty())
    free_.push_back(page);
  else
    released.waiting = cached_.insert(cached_.end(), page);
}

void PagePool::publish(int32_t page, const std::string& key) {
  if (published_.emplace(key, page).second) at(page).key = key;
}

std::optional<int32_t> PagePool::find(const std::string& key) const {
  const auto found = published_.find(key);
  return found == published_.end() ? std::nullopt : std::optional(found->second);
}

} // namespace fvlm::infer
