// The kind packer: first-fit decreasing, ordered by the largest fraction of a bin's capacity that an item takes.
#include "ops/reference/references.h"

#include <algorithm>
#include <span>
#include <vector>

namespace fvlm::ops::reference {
namespace {

struct Bin {
  std::vector<int64_t> room;
  int64_t items = 0;
};

class Packing {
 public:
  Packing(const fvlm_packer_query& query, const fvlm_packer_pack& arguments)
      : capacity_(query.capacity, query.capacity + query.dimensions),
        limit_(query.max_items > 0 ? query.max_items : INT64_MAX), arguments_(arguments), smallest_(capacity_) {
    for (int64_t item = 0; item < arguments.item_count; ++item)
      for (size_t dimension = 0; dimension < capacity_.size(); ++dimension)
        smallest_[dimension] = std::min(smallest_[dimension], size(item, dimension));
  }

  bool fits(int64_t item, std::span<const int64_t> room) const {
    for (size_t dimension = 0; dimension < capacity_.size(); ++dimension)
      if (size(item, dimension) > room[dimension]) return false;
    return true;
  }
  bool fits_alone(int64_t item) const { return fits(item, capacity_); }

  double fraction(int64_t item) const {
    double largest = 0;
    for (size_t dimension = 0; dimension < capacity_.size(); ++dimension)
      if (capacity_[dimension] > 0)
        largest =
            std::max(largest, static_cast<double>(size(item, dimension)) / static_cast<double>(capacity_[dimension]));
    return largest;
  }

  void place(int64_t item) {
    while (open_ < bins_.size() && is_full(bins_[open_])) ++open_;
    auto bin = std::find_if(bins_.begin() + static_cast<std::ptrdiff_t>(open_), bins_.end(),
                            [&](const Bin& b) { return b.items < limit_ && fits(item, b.room); });
    if (bin == bins_.end()) bin = bins_.insert(bins_.end(), Bin{capacity_});
    for (size_t dimension = 0; dimension < capacity_.size(); ++dimension) bin->room[dimension] -= size(item, dimension);
    ++bin->items;
    arguments_.bin_of_item[item] = static_cast<int32_t>(bin - bins_.begin());
  }

  int32_t bins() const { return static_cast<int32_t>(bins_.size()); }

 private:
  bool is_full(const Bin& bin) const {
    for (size_t dimension = 0; dimension < capacity_.size(); ++dimension)
      if (bin.room[dimension] < smallest_[dimension]) return true;
    return bin.items >= limit_;
  }
  int64_t size(int64_t item, size_t dimension) const { return arguments_.sizes[item * capacity_.size() + dimension]; }

  std::vector<int64_t> capacity_;
  int64_t limit_;
  const fvlm_packer_pack& arguments_;
  std::vector<int64_t> smallest_; // of all items, in each dimension
  std::vector<Bin> bins_;
  size_t open_ = 0; // no item fits a bin before this one
};

} // namespace

sdk::Support Packer::supports(const Query& query) {
  if (query.dimensions < 1) return sdk::refuse("%d dimensions", query.dimensions);
  for (int32_t dimension = 0; dimension < query.dimensions; ++dimension)
    if (query.capacity[dimension] < 0)
      return sdk::refuse("capacity %lld", static_cast<long long>(query.capacity[dimension]));
  return sdk::accept(1, "first-fit decreasing");
}

void Packer::pack(const Query& query, const Pack& arguments) {
  Packing packing(query, arguments);
  std::vector<int64_t> order;
  for (int64_t item = 0; item < arguments.item_count; ++item) {
    arguments.bin_of_item[item] = -1;
    if (packing.fits_alone(item)) order.push_back(item);
  }
  std::vector<double> fractions(arguments.item_count);
  for (int64_t item : order) fractions[item] = packing.fraction(item);
  // The first item always goes into bin 0, so that none can be postponed for ever.
  if (!order.empty())
    std::stable_sort(order.begin() + 1, order.end(), [&](int64_t a, int64_t b) { return fractions[a] > fractions[b]; });
  for (int64_t item : order) packing.place(item);
  *arguments.bin_count = packing.bins();
}

} // namespace fvlm::ops::reference
