#include "best_fit.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

// Bins are seldom visited in vain with two dimensions and never with one; with more, a search gives up after so many
// and a new bin is opened, lest unlucky items make the whole packing quadratic.
constexpr int most_visits = 1000;

std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

} // namespace

OpenBins::OpenBins(std::vector<std::int64_t> capacity, std::size_t main)
    : capacity_(std::move(capacity)), dimensions_(capacity_.size()), main_(main) {}

bool OpenBins::before(std::int32_t a, std::int32_t b) const {
  const std::int64_t x = rest(a)[main_], y = rest(b)[main_];
  return x != y ? x < y : a < b;
}

bool OpenBins::holds(const std::int64_t* room, const std::int64_t* size) const {
  for (std::size_t d = 0; d < dimensions_; ++d) {
    if (size[d] > room[d]) return false;
  }
  return true;
}

void OpenBins::renew(std::int32_t bin) {
  std::int64_t* largest = &largest_[static_cast<std::size_t>(bin) * dimensions_];
  std::copy_n(rest(bin), dimensions_, largest);
  for (const std::int32_t child : {node(bin).left, node(bin).right}) {
    if (child < 0) continue;
    const std::int64_t* below = &largest_[static_cast<std::size_t>(child) * dimensions_];
    for (std::size_t d = 0; d < dimensions_; ++d) largest[d] = std::max(largest[d], below[d]);
  }
}

// Everything in `low` comes before everything in `high`.
std::int32_t OpenBins::merge(std::int32_t low, std::int32_t high) {
  if (low < 0) return high;
  if (high < 0) return low;
  if (node(low).priority > node(high).priority) {
    node(low).right = merge(node(low).right, high);
    renew(low);
    return low;
  }
  node(high).left = merge(low, node(high).left);
  renew(high);
  return high;
}

void OpenBins::split(std::int32_t root, std::int32_t at, std::int32_t& low, std::int32_t& high) {
  if (root < 0) {
    low = high = -1;
    return;
  }
  if (before(root, at)) {
    split(node(root).right, at, node(root).right, high);
    low = root;
  } else {
    split(node(root).left, at, low, node(root).left);
    high = root;
  }
  renew(root);
}

std::int32_t OpenBins::without(std::int32_t root, std::int32_t bin) {
  if (root == bin) return merge(node(bin).left, node(bin).right);
  std::int32_t& side = before(bin, root) ? node(root).left : node(root).right;
  side = without(side, bin);
  renew(root);
  return root;
}

void OpenBins::insert(std::int32_t bin) {
  node(bin).left = node(bin).right = -1;
  renew(bin);
  std::int32_t low, high;
  split(root_, bin, low, high);
  root_ = merge(merge(low, bin), high);
}

std::int32_t OpenBins::search(std::int32_t root, const std::int64_t* size, int& patience) const {
  if (root < 0 || --patience < 0 || !holds(&largest_[static_cast<std::size_t>(root) * dimensions_], size)) return -1;
  if (rest(root)[main_] >= size[main_]) {
    const std::int32_t tighter = search(node(root).left, size, patience);
    if (tighter >= 0) return tighter;
    if (holds(rest(root), size)) return root;
  }
  return search(node(root).right, size, patience);
}

std::int32_t OpenBins::tightest(const std::int64_t* size) const {
  int patience = most_visits;
  return search(root_, size, patience);
}

std::int32_t OpenBins::open(const std::int64_t* size) {
  const std::int32_t bin = count();
  nodes_.push_back({-1, -1, scramble(static_cast<std::uint64_t>(bin) + 1)});
  rest_.insert(rest_.end(), capacity_.begin(), capacity_.end());
  largest_.resize(rest_.size());
  for (std::size_t d = 0; d < dimensions_; ++d) rest(bin)[d] -= size[d];
  insert(bin);
  return bin;
}

void OpenBins::put(std::int32_t bin, const std::int64_t* size) {
  root_ = without(root_, bin);
  for (std::size_t d = 0; d < dimensions_; ++d) rest(bin)[d] -= size[d];
  insert(bin);
}

Packing best_fit_decreasing(const std::int64_t* sizes, std::int64_t items, const std::vector<std::int64_t>& capacity,
                            std::int64_t max_items) {
  Packing packing;
  packing.bin_of_item.assign(static_cast<std::size_t>(items), -1);
  const std::size_t given = capacity.size();

  // How large an item is: the largest share of a bin that it takes in any dimension.
  struct Candidate {
    double share;
    std::int64_t item;
  };
  std::vector<Candidate> order;
  std::vector<double> demand(given);
  for (std::int64_t i = 0; i < items; ++i) {
    const std::int64_t* size = sizes + i * static_cast<std::int64_t>(given);
    double share = 0;
    bool fits = true;
    for (std::size_t d = 0; d < given; ++d) {
      fits = fits && size[d] <= capacity[d];
      if (size[d] > 0) share = std::max(share, static_cast<double>(size[d]) / static_cast<double>(capacity[d]));
    }
    if (!fits) continue;
    order.push_back({share, i});
    for (std::size_t d = 0; d < given; ++d) {
      if (size[d] > 0) demand[d] += static_cast<double>(size[d]) / static_cast<double>(capacity[d]);
    }
  }
  if (order.empty()) return packing;
  // The oldest item opens the first bin: there the large ones find it, and what fills it up comes last.
  std::sort(order.begin() + 1, order.end(), [](const Candidate& a, const Candidate& b) {
    return a.share != b.share ? a.share > b.share : a.item < b.item;
  });

  // The number of items is one dimension more.
  std::vector<std::int64_t> limits = capacity;
  if (max_items > 0) limits.push_back(max_items);
  const auto main = static_cast<std::size_t>(std::max_element(demand.begin(), demand.end()) - demand.begin());
  OpenBins bins(limits, main);
  std::vector<std::int64_t> size(limits.size(), 1);
  for (const Candidate& candidate : order) {
    std::copy_n(sizes + candidate.item * static_cast<std::int64_t>(given), given, size.begin());
    std::int32_t bin = bins.tightest(size.data());
    if (bin < 0) {
      bin = bins.open(size.data());
    } else {
      bins.put(bin, size.data());
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
