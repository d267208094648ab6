// best_fit.cpp: the treap of open bins, and best-fit decreasing on top of it.
#include "best_fit.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

// Upper bound of the nodes that a search visits before a new bin is opened. With one dimension no visit is in vain,
// and with two few are; with more, unlucky items would make the packing quadratic without this bound.
constexpr int max_visits = 1000;

std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

} // namespace

OpenBins::OpenBins(std::vector<std::int64_t> capacity, std::size_t main_dimension)
    : capacity_(std::move(capacity)), dimensions_(capacity_.size()), main_dimension_(main_dimension) {}

bool OpenBins::precedes(std::int32_t a, std::int32_t b) const {
  const std::int64_t x = remaining(a)[main_dimension_], y = remaining(b)[main_dimension_];
  return x != y ? x < y : a < b;
}

bool OpenBins::fits(const std::int64_t* room, const std::int64_t* size) const {
  for (std::size_t d = 0; d < dimensions_; ++d) {
    if (size[d] > room[d]) return false;
  }
  return true;
}

void OpenBins::update_subtree_max(std::int32_t bin) {
  std::int64_t* subtree_max = &subtree_max_[static_cast<std::size_t>(bin) * dimensions_];
  std::copy_n(remaining(bin), dimensions_, subtree_max);
  for (const std::int32_t child : {node(bin).left, node(bin).right}) {
    if (child < 0) continue;
    const std::int64_t* below = &subtree_max_[static_cast<std::size_t>(child) * dimensions_];
    for (std::size_t d = 0; d < dimensions_; ++d) subtree_max[d] = std::max(subtree_max[d], below[d]);
  }
}

// All bins of `low` are ordered before all bins of `high`.
std::int32_t OpenBins::merge(std::int32_t low, std::int32_t high) {
  if (low < 0) return high;
  if (high < 0) return low;
  if (node(low).priority > node(high).priority) {
    node(low).right = merge(node(low).right, high);
    update_subtree_max(low);
    return low;
  }
  node(high).left = merge(low, node(high).left);
  update_subtree_max(high);
  return high;
}

void OpenBins::split(std::int32_t root, std::int32_t at, std::int32_t& low, std::int32_t& high) {
  if (root < 0) {
    low = high = -1;
    return;
  }
  if (precedes(root, at)) {
    split(node(root).right, at, node(root).right, high);
    low = root;
  } else {
    split(node(root).left, at, low, node(root).left);
    high = root;
  }
  update_subtree_max(root);
}

std::int32_t OpenBins::erase(std::int32_t root, std::int32_t bin) {
  if (root == bin) return merge(node(bin).left, node(bin).right);
  std::int32_t& side = precedes(bin, root) ? node(root).left : node(root).right;
  side = erase(side, bin);
  update_subtree_max(root);
  return root;
}

void OpenBins::insert(std::int32_t bin) {
  node(bin).left = node(bin).right = -1;
  update_subtree_max(bin);
  std::int32_t low, high;
  split(root_, bin, low, high);
  root_ = merge(merge(low, bin), high);
}

std::int32_t OpenBins::search(std::int32_t root, const std::int64_t* size, int& visits_left) const {
  if (root < 0 || --visits_left < 0 || !fits(&subtree_max_[static_cast<std::size_t>(root) * dimensions_], size))
    return -1;
  if (remaining(root)[main_dimension_] >= size[main_dimension_]) {
    const std::int32_t tighter = search(node(root).left, size, visits_left);
    if (tighter >= 0) return tighter;
    if (fits(remaining(root), size)) return root;
  }
  return search(node(root).right, size, visits_left);
}

std::int32_t OpenBins::find_tightest(const std::int64_t* size) const {
  int visits_left = max_visits;
  return search(root_, size, visits_left);
}

std::int32_t OpenBins::open(const std::int64_t* size) {
  const std::int32_t bin = count();
  nodes_.push_back({-1, -1, mix_bits(static_cast<std::uint64_t>(bin) + 1)});
  remaining_.insert(remaining_.end(), capacity_.begin(), capacity_.end());
  subtree_max_.resize(remaining_.size());
  for (std::size_t d = 0; d < dimensions_; ++d) remaining(bin)[d] -= size[d];
  insert(bin);
  return bin;
}

void OpenBins::add(std::int32_t bin, const std::int64_t* size) {
  root_ = erase(root_, bin);
  for (std::size_t d = 0; d < dimensions_; ++d) remaining(bin)[d] -= size[d];
  insert(bin);
}

Packing best_fit_decreasing(const std::int64_t* sizes, std::int64_t items, const std::vector<std::int64_t>& capacity,
                            std::int64_t max_items) {
  Packing packing;
  packing.bin_of_item.assign(static_cast<std::size_t>(items), -1);
  const std::size_t dimensions = capacity.size();

  // The size of an item is the largest share of a bin's capacity that it takes in any dimension.
  struct Candidate {
    double share;
    std::int64_t item;
  };
  std::vector<Candidate> order;
  std::vector<double> demand(dimensions);
  for (std::int64_t i = 0; i < items; ++i) {
    const std::int64_t* size = sizes + i * static_cast<std::int64_t>(dimensions);
    double share = 0;
    bool fits = true;
    for (std::size_t d = 0; d < dimensions; ++d) {
      fits = fits && size[d] <= capacity[d];
      if (size[d] > 0) share = std::max(share, static_cast<double>(size[d]) / static_cast<double>(capacity[d]));
    }
    if (!fits) continue;
    order.push_back({share, i});
    for (std::size_t d = 0; d < dimensions; ++d) {
      if (size[d] > 0) demand[d] += static_cast<double>(size[d]) / static_cast<double>(capacity[d]);
    }
  }
  if (order.empty()) return packing;
  // The first item opens the first bin, then the others follow in decreasing size: small ones fill the bins up.
  std::sort(order.begin() + 1, order.end(), [](const Candidate& a, const Candidate& b) {
    return a.share != b.share ? a.share > b.share : a.item < b.item;
  });

  // The number of items is an additional dimension.
  std::vector<std::int64_t> limits = capacity;
  if (max_items > 0) limits.push_back(max_items);
  const auto main_dimension = static_cast<std::size_t>(std::max_element(demand.begin(), demand.end()) - demand.begin());
  OpenBins bins(limits, main_dimension);
  std::vector<std::int64_t> size(limits.size(), 1);
  for (const Candidate& candidate : order) {
    std::copy_n(sizes + candidate.item * static_cast<std::int64_t>(dimensions), dimensions, size.begin());
    std::int32_t bin = bins.find_tightest(size.data());
    if (bin < 0) {
      bin = bins.open(size.data());
    } else {
      bins.add(bin, size.data());
    }
    packing.bin_of_item[static_cast<std::size_t>(candidate.item)] = bin;
  }

  std::vector<std::int32_t> number(static_cast<std::size_t>(bins.count()), -1);
  for (std::int32_t& bin : packing.bin_of_item) {
    if (bin < 0) continue;
    std::int32_t& assigned = number[static_cast<std::size_t>(bin)];
    if (assigned < 0) assigned = packing.bins++;
    bin = assigned;
  }
  return packing;
}

} // namespace fvlm::plugins
