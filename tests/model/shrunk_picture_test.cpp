// What the placeholders of a shrunk picture say. That its rows are transformers': tests/model/whole_test.py.
#include "base/error.h"
#include "recipe/placeholders.h"

#include <gmock/gmock.h>
#include <numeric>

using namespace fvlm;
using testing::HasSubstr;

namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
    return "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
}

TEST(ShrunkPicture, HasAboutThePatchesOfNineTiles) {
  const auto size_of = [](const ShrunkPicture& picture) {
    const auto size = picture.size(27);
    return size ? std::pair(size->lines, size->columns) : std::pair<int64_t, int64_t>(0, 0);
  };
  EXPECT_EQ(size_of({6, 6, 0, 0}), std::pair(81L, 81L));
  EXPECT_EQ(size_of({3, 4, 0, 0}), std::pair(70L, 93L));
  EXPECT_EQ(size_of({3, 3, 0, 0}), std::pair(0L, 0L));
  EXPECT_EQ(size_of({2, 5, 0, 0}), std::pair(0L, 0L)) << "ten tiles are few enough";
  EXPECT_EQ(size_of({3, 5, 2, 0}), std::pair(61L, 107L)) << "the margins do not count";
}

TEST(ShrunkPicture, PlaceholdersSayWhatTheyAreOf) {
  for (const ShrunkPicture& picture : {ShrunkPicture{4, 4, 0, 0}, {6, 5, 80, 0}, {15, 15, 0, 127}, {4, 3, 0, 1}})
    for (const int64_t patch : {0, 1, 6560, 16383}) {
      const int32_t id = shrunk_placeholder(picture, patch);
      EXPECT_TRUE(is_placeholder(id) && is_shrunk_placeholder(id)) << id;
      EXPECT_EQ(ShrunkPatch::of(id).picture, picture);
      EXPECT_EQ(ShrunkPatch::of(id).patch, patch);
    }
  EXPECT_FALSE(is_shrunk_placeholder(numbered_placeholder(100'000'000)));
  EXPECT_THAT(refusal([] {
                (void)shrunk_placeholder({16, 4, 0, 0}, 0);
              }),
              AllOf(HasSubstr("4 x 16 tiles"), HasSubstr("image_grid_pinpoints")));
}

TEST(ShrunkPicture, RowsAreMeansOfFour) {
  constexpr int64_t rows_per_frame = 4 * 5 + 4; // lines of 4 patches and a newline, and 4 pooled
  const ShrunkPicture picture{4, 4, 1, 0};      // 14 lines of 16 patches become 11 of 12
  for (int64_t patch = 0; patch < 11 * 12; ++patch) {
    const ShrunkPatch::Mean mean = ShrunkPatch{picture, patch}.mean(rows_per_frame);
    EXPECT_NEAR(std::accumulate(mean.shares.begin(), mean.shares.end(), 0.0), 1, 1e-6);
    for (const int64_t row : mean.rows) {
      EXPECT_LT(row, 16 * rows_per_frame) << "not of the whole image";
      EXPECT_LT(row % rows_per_frame % 5, 4) << "no newline";
    }
  }
  EXPECT_EQ((ShrunkPatch{picture, 0}.mean(rows_per_frame).rows[0]), 5) << "the first line is a margin";
  EXPECT_THAT(refusal([&] { (void)ShrunkPatch{picture, 132}.mean(rows_per_frame); }), HasSubstr("which has fewer"));
  EXPECT_THAT(refusal([&] { (void)ShrunkPatch{{3, 3, 0, 0}, 0}.mean(rows_per_frame); }), HasSubstr("is not shrunk"));
  EXPECT_THAT(refusal([&] { (void)ShrunkPatch{picture, 0}.mean(17); }), HasSubstr("frames of 17 rows"));
}

} // namespace
