// best_fit.h: best-fit decreasing in several dimensions.
#pragma once

#include <cstdint>
#include <vector>

namespace fvlm::plugins {

// The open bins, ordered by what is left of the main dimension. A treap in which every node knows the largest rest of
// each dimension below it, so that the tightest bin with room in all of them is found in logarithmic time.
class OpenBins {
 public:
  OpenBins(std::vector<std::int64_t> capacity, std::size_t main);

  // The bin with the least left of the main dimension that holds `size` more, or -1.
  std::int32_t tightest(const std::int64_t* size) const;
  // A new bin with this in it.
  std::int32_t open(const std::int64_t* size);
  void put(std::int32_t bin, const std::int64_t* size);
  std::int32_t count() const { return static_cast<std::int32_t>(nodes_.size()); }

 private:
  struct Node {
    std::int32_t left = -1, right = -1;
    std::uint64_t priority = 0;
  };

  std::int64_t* rest(std::int32_t bin) { return &rest_[static_cast<std::size_t>(bin) * dimensions_]; }
  const std::int64_t* rest(std::int32_t bin) const { return &rest_[static_cast<std::size_t>(bin) * dimensions_]; }
  Node& node(std::int32_t bin) { return nodes_[static_cast<std::size_t>(bin)]; }
  const Node& node(std::int32_t bin) const { return nodes_[static_cast<std::size_t>(bin)]; }
  bool before(std::int32_t a, std::int32_t b) const;
  bool holds(const std::int64_t* room, const std::int64_t* size) const;
  void renew(std::int32_t bin);
  std::int32_t merge(std::int32_t low, std::int32_t high);
  void split(std::int32_t root, std::int32_t at, std::int32_t& low, std::int32_t& high);
  std::int32_t without(std::int32_t root, std::int32_t bin);
  void insert(std::int32_t bin);
  std::int32_t search(std::int32_t root, const std::int64_t* size, int& patience) const;

  std::vector<std::int64_t> capacity_;
  std::size_t dimensions_, main_;
  std::vector<Node> nodes_;
  std::vector<std::int64_t> rest_, largest_; // [bin, dimension]; of the bin, of all below it
  std::int32_t root_ = -1;
};

// The bin of each item, -1 for one that is larger than an empty bin. sizes [items, capacity.size()]. Bins are numbered
// by their oldest item, so the first item that fits at all lies in bin 0.
struct Packing {
  std::vector<std::int32_t> bin_of_item;
  std::int32_t bins = 0;
};
Packing best_fit_decreasing(const std::int64_t* sizes, std::int64_t items, const std::vector<std::int64_t>& capacity,
                            std::int64_t max_items);

} // namespace fvlm::plugins
