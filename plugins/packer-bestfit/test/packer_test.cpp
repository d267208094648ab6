// packer_test.cpp: the built packer-bestfit library on small and random items, and against a naive packer.
#include "packing.h"

namespace fvlm::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

// Best-fit decreasing by linear search, without a tree.
std::vector<std::int32_t> naive(const Sizes& sizes, const Sizes& capacity, std::int64_t max_items) {
  const std::size_t dimensions = capacity.size(), items = sizes.size() / dimensions;
  std::vector<std::size_t> order;
  std::vector<double> share(items), demand(dimensions);
  for (std::size_t i = 0; i < items; ++i) {
    bool fits = true;
    for (std::size_t d = 0; d < dimensions; ++d) fits = fits && sizes[i * dimensions + d] <= capacity[d];
    if (!fits) continue;
    order.push_back(i);
    for (std::size_t d = 0; d < dimensions; ++d) {
      const auto size = static_cast<double>(sizes[i * dimensions + d]);
      const double part = size > 0 ? size / static_cast<double>(capacity[d]) : 0;
      share[i] = std::max(share[i], part);
      demand[d] += part;
    }
  }
  std::vector<std::int32_t> bin(items, -1);
  if (order.empty()) return bin;
  std::stable_sort(order.begin() + 1, order.end(), [&](std::size_t a, std::size_t b) { return share[a] > share[b]; });
  const auto main = static_cast<std::size_t>(std::max_element(demand.begin(), demand.end()) - demand.begin());
  std::vector<Sizes> rest;
  std::vector<std::int64_t> held;
  for (const std::size_t item : order) {
    std::size_t best = rest.size();
    for (std::size_t b = 0; b < rest.size(); ++b) {
      bool fits = max_items == 0 || held[b] < max_items;
      for (std::size_t d = 0; d < dimensions; ++d) fits = fits && sizes[item * dimensions + d] <= rest[b][d];
      if (fits && (best == rest.size() || rest[b][main] < rest[best][main])) best = b;
    }
    if (best == rest.size()) {
      rest.push_back(capacity);
      held.push_back(0);
    }
    for (std::size_t d = 0; d < dimensions; ++d) rest[best][d] -= sizes[item * dimensions + d];
    ++held[best];
    bin[item] = static_cast<std::int32_t>(best);
  }
  return bin;
}

// Whether two packings are equal up to the numbering of bins.
bool same_sharing(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::map<std::int32_t, std::int32_t> there, back;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((a[i] < 0) != (b[i] < 0)) return false;
    if (there.emplace(a[i], b[i]).first->second != b[i] || back.emplace(b[i], a[i]).first->second != a[i]) return false;
  }
  return true;
}

void expect_valid(const Packed& packed, const Sizes& sizes, const Sizes& capacity, std::int64_t max_items) {
  ASSERT_EQ(packed.status, FVLM_OK) << packed.error;
  const std::size_t dimensions = capacity.size();
  std::vector<Sizes> used(static_cast<std::size_t>(packed.bins), Sizes(dimensions));
  std::vector<std::int64_t> held(used.size());
  bool first = true;
  for (std::size_t i = 0; i < packed.bin.size(); ++i) {
    bool fits = true;
    for (std::size_t d = 0; d < dimensions; ++d) fits = fits && sizes[i * dimensions + d] <= capacity[d];
    ASSERT_EQ(packed.bin[i] >= 0, fits) << "item " << i;
    if (!fits) continue;
    ASSERT_LT(packed.bin[i], packed.bins) << "item " << i;
    ASSERT_TRUE(!first || packed.bin[i] == 0) << "item " << i << ", the first that fits, lies in bin " << packed.bin[i];
    first = false;
    const auto bin = static_cast<std::size_t>(packed.bin[i]);
    ++held[bin];
    for (std::size_t d = 0; d < dimensions; ++d) used[bin][d] += sizes[i * dimensions + d];
  }
  for (std::size_t b = 0; b < used.size(); ++b) {
    EXPECT_GT(held[b], 0) << "bin " << b << " is empty";
    EXPECT_TRUE(max_items == 0 || held[b] <= max_items) << "bin " << b << " holds " << held[b];
    for (std::size_t d = 0; d < dimensions; ++d)
      EXPECT_LE(used[b][d], capacity[d]) << "bin " << b << ", dimension " << d;
  }
}

TEST_F(PackerTest, perfect_pairs_find_each_other) {
  const Packed packed = pack({7, 1, 4, 6, 3, 9}, {10});
  expect_valid(packed, {7, 1, 4, 6, 3, 9}, {10}, 0);
  EXPECT_EQ(packed.bins, 3);
  EXPECT_EQ(packed.bin, (std::vector<std::int32_t>{0, 1, 2, 2, 0, 1}));
}

TEST_F(PackerTest, nothing_to_pack_is_no_bin) {
  const Packed packed = pack({}, {10});
  EXPECT_EQ(packed.status, FVLM_OK) << packed.error;
  EXPECT_EQ(packed.bins, 0);
}

TEST_F(PackerTest, an_item_larger_than_a_bin_is_left_out_and_the_next_one_lies_in_bin_0) {
  const Packed packed = pack({11, 0, 5, 5, 3, 21, 2, 2}, {10, 20});
  EXPECT_EQ(packed.bin, (std::vector<std::int32_t>{-1, 0, -1, 0}));
  EXPECT_EQ(packed.bins, 1);
  const Packed all_too_large = pack({11, 12}, {10});
  EXPECT_EQ(all_too_large.bins, 0);
  EXPECT_EQ(all_too_large.bin, (std::vector<std::int32_t>{-1, -1}));
}

TEST_F(PackerTest, items_of_size_zero_take_a_place_but_no_room) {
  const Packed packed = pack({0, 10, 0, 0}, {10});
  expect_valid(packed, {0, 10, 0, 0}, {10}, 0);
  EXPECT_EQ(packed.bins, 1);
  const Packed limited = pack({0, 10, 0, 0}, {10}, 2);
  expect_valid(limited, {0, 10, 0, 0}, {10}, 2);
  EXPECT_EQ(limited.bins, 2);
}

TEST_F(PackerTest, a_dimension_without_capacity_takes_items_that_need_none_of_it) {
  const Packed packed = pack({0, 5, 1, 5, 0, 5}, {0, 10});
  EXPECT_EQ(packed.bin, (std::vector<std::int32_t>{0, -1, 0}));
  EXPECT_EQ(packed.bins, 1);
}

TEST_F(PackerTest, max_items_of_one_is_a_bin_each) {
  const Sizes sizes = {3, 1, 2, 9, 0};
  const Packed packed = pack(sizes, {10}, 1);
  expect_valid(packed, sizes, {10}, 1);
  EXPECT_EQ(packed.bins, 5);
}

TEST_F(PackerTest, both_dimensions_bind) {
  // By frames alone two items fit a bin, by tokens alone two others.
  const Sizes sizes = {8, 1, 8, 1, 1, 80, 1, 80};
  const Packed packed = pack(sizes, {10, 100});
  expect_valid(packed, sizes, {10, 100}, 0);
  EXPECT_EQ(packed.bins, 2);
  EXPECT_NE(packed.bin[0], packed.bin[1]);
  EXPECT_NE(packed.bin[2], packed.bin[3]);
}

TEST_F(PackerTest, random_items_are_packed_as_a_naive_packer_packs_them) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const auto pick = [&](int count) {
      return static_cast<std::int64_t>((random() + 1) / 2 * static_cast<float>(count));
    };
    const auto dimensions = static_cast<std::size_t>(1 + pick(3));
    Sizes capacity(dimensions), sizes;
    for (std::int64_t& value : capacity) value = 1 + pick(60);
    const std::int64_t items = pick(120), max_items = round % 3 == 0 ? 1 + pick(6) : 0, largest = 1 + pick(70);
    for (std::int64_t i = 0; i < items * static_cast<std::int64_t>(dimensions); ++i)
      sizes.push_back(pick(static_cast<int>(largest)));
    const Packed packed = pack(sizes, capacity, max_items);
    expect_valid(packed, sizes, capacity, max_items);
    EXPECT_TRUE(same_sharing(packed.bin, naive(sizes, capacity, max_items))) << "round " << round;
    EXPECT_EQ(pack(sizes, capacity, max_items).bin, packed.bin) << "round " << round << " is not repeatable";
    if (HasFailure()) return;
  }
}

TEST_F(PackerTest, the_answer_is_the_same_on_every_machine) {
  Random random(11);
  Sizes sizes;
  for (int i = 0; i < 2000; ++i) sizes.push_back(static_cast<std::int64_t>((random() + 1) * 700));
  std::uint64_t digest = 14695981039346656037ull;
  for (const std::int32_t bin : pack(sizes, {1000, 1300}).bin) {
    digest = (digest ^ static_cast<std::uint32_t>(bin)) * 1099511628211ull;
  }
  EXPECT_EQ(digest, 16737127633715448174ull) << "the packing changed: runs that resume would see other packs";
}

TEST_F(PackerTest, a_hundred_thousand_items_with_every_unlucky_shape) {
  for (const int kind : {0, 1, 2, 3}) {
    Random random(static_cast<std::uint64_t>(kind));
    Sizes sizes;
    for (int i = 0; i < 100000; ++i) {
      const auto value = static_cast<std::int64_t>((random() + 1) * 2047);
      switch (kind) {
      case 0:
        sizes.insert(sizes.end(), {value, value / 3});
        break;
      case 1:
        sizes.insert(sizes.end(), {2048 + i % 2, 7});
        break; // equal sizes
      case 2:
        sizes.insert(sizes.end(), {value, 4095 - value});
        break; // items that fit in one dimension do not in the other
      default:
        sizes.insert(sizes.end(), {1, 0});
        break;
      }
    }
    expect_valid(pack(sizes, {4096, 4096}, 100), sizes, {4096, 4096}, 100);
  }
}

TEST_F(PackerTest, broken_arguments_are_refused) {
  EXPECT_EQ(pack({3, -1}, {10}).status, FVLM_ERROR_ARGUMENT);
  EXPECT_EQ(pack({3, -1}, {10}).error, "item 1 has size -1");
  EXPECT_EQ(pack({3}, {-10}).error, "capacity[0] is -10");
  EXPECT_EQ(pack({3}, {10}, -2).error, "max_items is -2");
  const std::int64_t capacity = 5;
  fvlm_packer_query query{sizeof query, 0, 0, &capacity};
  EXPECT_EQ(support_of(plugin, query).score, 0);
  EXPECT_STREQ(support_of(plugin, query).reason, "expected at least one dimension but got 0");
  query.dimensions = 1;
  EXPECT_EQ(support_of(plugin, query).score, 100);
}

} // namespace
} // namespace fvlm::testing
