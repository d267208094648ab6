#include "dist/slices.h"

#include <gtest/gtest.h>

namespace fvlm::dist {
namespace {

TEST(Slices, CoverTheBufferInOrder) {
  for (const int64_t elements : {0, 1, 63, 64, 1000, 100000})
    for (const int64_t ranks : {1, 2, 3, 7, 64}) {
      const auto slices = divide(elements, ranks);
      ASSERT_EQ(std::ssize(slices), ranks);
      int64_t end = 0;
      for (const Slice& slice : slices) {
        EXPECT_EQ(slice.begin, end) << elements << " among " << ranks;
        end = slice.end();
      }
      EXPECT_EQ(end, elements) << "among " << ranks;
    }
}

TEST(Slices, AreEqualWhereTheBufferIsAMultiple) {
  for (const Slice& slice : divide(4096, 4)) EXPECT_EQ(slice.length, 1024);
}

TEST(Slices, BeginAtMultiplesOf64) {
  for (const Slice& slice : divide(1000, 3)) EXPECT_EQ(slice.begin % 64, 0) << slice.begin;
}

TEST(Slices, CutNoMatrix) {
  // A quarter is inside the first matrix, nearer to its beginning; the half inside the second one, nearer to its end.
  const std::vector<Slice> matrices = {{200, 290}, {490, 40}};
  const std::vector<Slice> expected = {{0, 200}, {200, 330}, {530, 238}, {768, 256}};
  EXPECT_EQ(divide(1024, 4, matrices), expected);
}

TEST(Slices, LeaveARankWithoutAnyWhereOneMatrixIsAll) {
  const std::vector<Slice> expected = {{0, 0}, {0, 1024}};
  EXPECT_EQ(divide(1024, 2, std::vector<Slice>{{0, 1024}}), expected);
}

} // namespace
} // namespace fvlm::dist
