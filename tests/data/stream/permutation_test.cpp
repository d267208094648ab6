#include "data/stream/permutation.h"

#include <gtest/gtest.h>

#include <set>

namespace fvlm {
namespace {

std::vector<uint64_t> listed(uint64_t size, uint64_t seed, std::string_view name) {
  const Permutation permutation(size, seed, name);
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < size; ++i) all.push_back(permutation.at(i));
  return all;
}

TEST(Permutation, HoldsEachItemOnce) {
  for (uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097}) {
    const auto all = listed(size, 42, "openvid/0");
    const std::set<uint64_t> different(all.begin(), all.end());
    EXPECT_EQ(different.size(), size);
    EXPECT_EQ(*different.rbegin(), size - 1) << "of " << size;
  }
}

TEST(Permutation, DependsOnSeedAndName) {
  const auto one = listed(1000, 42, "openvid/0");
  for (const auto& other : {listed(1000, 43, "openvid/0"), listed(1000, 42, "openvid/1")}) {
    int equal = 0;
    for (size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i];
    EXPECT_LT(equal, 20) << "of 1000 places hold the same";
  }
}

// Neighbours end up anywhere: their distance is a third of the size on average.
TEST(Permutation, SeparatesNeighbours) {
  for (uint64_t size : {1000, 100000}) {
    const auto all = listed(size, 42, "webvid/3");
    double sum = 0;
    for (size_t i = 1; i < all.size(); ++i)
      sum += std::abs(static_cast<double>(all[i]) - static_cast<double>(all[i - 1]));
    EXPECT_NEAR(sum / static_cast<double>(size) / static_cast<double>(size), 1.0 / 3, 0.02);
  }
}

} // namespace
} // namespace fvlm
