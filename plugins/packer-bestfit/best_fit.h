// best_fit.h: best-fit decreasing bin packing in several dimensions.
#pragma once

#include <cstdint>
#include <vector>

namespace fvlm::plugins {

// The open bins, ordered by the remaining capacity of the main dimension. A treap whose nodes store the
// maximum remaining capacity of their subtree in each dimension, so that the tightest bin that fits is found in
// logarithmic time.
class OpenBins {
 public:
  OpenBins(std::vector<std::int64_t> capacity, std::size_t main_dimension);

  // The bin with the smallest remaining capacity of the main dimension that fits an item of this size, or -1.
  std::int32_t find_tightest(const std::int64_t* size) const;
  // Opens a bin that contains an item of this size.
  std::int32_t open(const std::int64_t* size);
  void add(std::int32_t bin, const std::int64_t* size);
  std::int32_t count() const { return static_cast<std::int32_t>(nodes_.size()); }

 private:
  struct Node {
    std::int32_t left = -1, right = -1;
    std::uint64_t priority = 0;
  };

  std::int64_t* remaining(std::int32_t bin) { return &remaining_[static_cast<std::size_t>(bin) * dimensions_]; }
  const std::int64_t* remaining(std::int32_t bin) const {
    return &remaining_[static_cast<std::size_t>(bin) * dimensions_];
  }
  Node& node(std::int32_t bin) { return nodes_[static_cast<std::size_t>(bin)]; }
  const Node& node(std::int32_t bin) const { return nodes_[static_cast<std::size_t>(bin)]; }
  bool precedes(std::int32_t a, std::int32_t b) const;
  bool fits(const std::int64_t* room, const std::int64_t* size) const;
  void update_subtree_max(std::int32_t bin);
  std::int32_t merge(std::int32_t low, std::int32_t high);
  void split(std::int32_t root, std::int32_t at, std::int32_t& low, std::int32_t& high);
  std::int32_t erase(std::int32_t root, std::int32_t bin);
  void insert(std::int32_t bin);
  std::int32_t search(std::int32_t root, const std::int64_t* size, int& visits_left) const;

  std::vector<std::int64_t> capacity_;
  std::size_t dimensions_, main_dimension_;
  std::vector<Node> nodes_;
  std::vector<std::int64_t> remaining_, subtree_max_; // [bin, dimension]: of the bin, and the maximum over its subtree
  std::int32_t root_ = -1;
};

// The bin of each item, or -1 for an item larger than an empty bin. sizes [items, capacity.size()]. Bins are numbered
// by their first item, so the first item that fits at all is in bin 0.
struct Packing {
  std::vector<std::int32_t> bin_of_item;
  std::int32_t bins = 0;
};
Packing best_fit_decreasing(const std::int64_t* sizes, std::int64_t items, const std::vector<std::int64_t>& capacity,
                            std::int64_t max_items);

} // namespace fvlm::plugins
