#include "ops/packer.h"
#include "tools.h"

#include <random>

using namespace fvlm;
using namespace fvlm::ops;

namespace {

Packer packer(std::vector<int64_t> capacity, int64_t max_items = 0) {
  return {reference_backend<fvlm_packer_v1>(FVLM_PACKER_KIND), std::move(capacity), max_items};
}

using Bins = std::vector<int32_t>;

} // namespace

TEST(Packer, LargeItemsFirstIntoTheFirstBinThatFits) {
  const auto bins = packer({10}).pack({2, 7, 3, 8}, 0);
  // Item 0 opens bin 0, which 8 fits into as well; 7 opens bin 1 and 3 fills it.
  EXPECT_EQ(bins.of_item, (Bins{0, 1, 1, 0}));
  EXPECT_EQ(bins.count, 2);
}

TEST(Packer, FirstFittingItemLiesInBin0) {
  const auto bins = packer({10}).pack({11, 1, 10, 10}, 0);
  EXPECT_EQ(bins.of_item, (Bins{-1, 0, 1, 2}));
  EXPECT_EQ(bins.count, 3);
}

TEST(Packer, LimitsEveryDimensionAndTheNumberOfItems) {
  EXPECT_EQ(packer({10, 2}).pack({1, 2, 1, 1, 1, 1}, 0).of_item, (Bins{0, 1, 1}));
  EXPECT_EQ(packer({10}, 2).pack({1, 1, 1, 1, 1}, 0).of_item, (Bins{0, 0, 1, 1, 2}));
}

TEST(Packer, NothingToPackAndNothingThatFits) {
  EXPECT_EQ(packer({10}).pack({}, 0).count, 0);
  const auto bins = packer({10}).pack({11, 12}, 0);
  EXPECT_EQ(bins.of_item, (Bins{-1, -1}));
  EXPECT_EQ(bins.count, 0);
}

TEST(Packer, ItemsOfSizeZeroAndCapacityZero) {
  EXPECT_EQ(packer({0, 4}).pack({0, 3, 1, 1, 0, 0}, 0).of_item, (Bins{0, -1, 0}));
}

TEST(Packer, NoBinIsOverfullOrEmptyAndTheResultRepeats) {
  std::mt19937 generator(7);
  std::vector<int64_t> sizes;
  for (int item = 0; item < 500; ++item) {
    sizes.push_back(static_cast<int64_t>(generator() % 40));
    sizes.push_back(static_cast<int64_t>(generator() % 70));
  }
  const auto one = packer({32, 64}, 9).pack(sizes, 1), two = packer({32, 64}, 9).pack(sizes, 1);
  EXPECT_EQ(one.of_item, two.of_item);
  std::vector<std::array<int64_t, 3>> used(one.count);
  int64_t tokens = 0;
  for (size_t item = 0; item < one.of_item.size(); ++item) {
    const bool fits = sizes[2 * item] <= 32 && sizes[2 * item + 1] <= 64;
    ASSERT_EQ(one.of_item[item] >= 0, fits) << "item " << item;
    if (!fits) continue;
    auto& bin = used.at(one.of_item[item]);
    bin[0] += sizes[2 * item];
    bin[1] += sizes[2 * item + 1];
    ++bin[2];
    tokens += sizes[2 * item + 1];
  }
  for (const auto& bin : used) {
    EXPECT_LE(bin[0], 32);
    EXPECT_LE(bin[1], 64);
    EXPECT_LE(bin[2], 9);
    EXPECT_GE(bin[2], 1);
  }
  EXPECT_GT(static_cast<double>(tokens) / (64.0 * one.count), 0.75) << "bins " << one.count;
}
