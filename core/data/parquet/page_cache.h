// PageCache: how long decoded pages stay in memory, of all Parquet files that the process has open.
#pragma once
#include "data/parquet/pages.h"

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace fvlm::parquet {

// The columns of a group of rows, with the pages of each that were decoded last.
struct GroupPages {
  std::mutex lock; // of the columns
  std::deque<ColumnPages> columns;
};

class PageCache {
 public:
  // The one of the process. Its limit is a sixteenth of the machine's memory and at most 8 GiB.
  static PageCache& of_process();

  // `group` was read and now holds pages of `bytes`. Where all together are beyond the limit, those of the groups that
  // were not read for longest are dropped; the group itself keeps its own. Its lock must not be held. [any thread]
  void keep(const std::shared_ptr<GroupPages>& group, uint64_t bytes);
  void remove(const GroupPages& group); // whose file is closed

  uint64_t bytes() const;
  uint64_t set_limit(uint64_t bytes); // returns the previous one

 private:
  struct Kept {
    std::shared_ptr<GroupPages> group;
    uint64_t bytes;
  };
  PageCache();
  void forget(const GroupPages& group); // with lock_ held

  mutable std::mutex lock_;
  uint64_t limit_, bytes_ = 0;
  std::list<Kept> recent_; // most recently used first
  std::unordered_map<const GroupPages*, std::list<Kept>::iterator> places_;
};

} // namespace fvlm::parquet
