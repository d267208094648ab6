// Limits of samples whose images are cut: no image has more rows for each of its frames, and some have as many.
#include "../data/small_tokenizer.h"
#include "budget/frame_rows.h"
#include "data/visual_marks.h"
#include "recipe/frame_lines.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fvlm::budget {
namespace {

ImageProcessor cutting(TileForm form) {
  ImageProcessor processor;
  processor.tile = 8;
  processor.splits_into_tiles = true;
  processor.tile_form = form;
  const int64_t most = form == TileForm::llava_onevision ? 6 : 2;
  for (int64_t rows = 1; rows <= most; ++rows)
    for (int64_t columns = 1; columns <= most; ++columns) processor.grids.push_back({rows, columns});
  if (form == TileForm::llava_onevision) processor.padding_of_several = {0, 0, 0};
  return processor;
}

TEST(FrameRows, CutImagesHaveNoMoreThanTheLimitAndSomeHaveAsMany) {
  for (const TileForm form : {TileForm::llava_next, TileForm::llava_onevision}) {
    const bool is_pooled = form == TileForm::llava_onevision;
    const FrameLines lines{4, is_pooled};
    const plan::VisualRows rows{.per_frame = lines.rows(), .in_place = true};
    const ImageProcessor processor = cutting(form);
    const int64_t limit = most_rows_per_frame(rows, processor);
    EXPECT_LT(limit, rows.per_frame);
    const Tokenizer tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "tokenizer.json");
    int64_t most = 0;
    for (int64_t height = 1; height <= 56; ++height)
      for (int64_t width = 1; width <= 56; ++width)
        for (const int64_t images : {1, 2}) {
          const TileGrid grid = layout_of(for_images(processor, images), {height, width}).grid();
          const int64_t taken = std::ssize(tile_text(tokenizer, form, grid, rows.per_frame, 0)),
                        each = (taken + grid.frames() - 1) / grid.frames();
          ASSERT_LE(each, limit) << height << " x " << width << ": " << taken << " rows of " << grid.frames();
          most = std::max(most, each);
        }
    EXPECT_EQ(most, limit);
  }
}

TEST(FrameRows, OtherFramesHaveAllRows) {
  const plan::VisualRows rows{.per_frame = 20, .in_place = true};
  EXPECT_EQ(most_rows_per_frame(rows, std::nullopt), 20);
  EXPECT_EQ(most_rows_per_frame(rows, cutting(TileForm::internvl)), 20);
  EXPECT_EQ(most_rows_per_frame(rows, cutting(TileForm::idefics3)), 20);
}

} // namespace
} // namespace fvlm::budget
