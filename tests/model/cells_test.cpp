// Packs whose frames are cells of images of any size.
#include "tiny.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>

namespace fvlm::model {
namespace {

using testing::HasSubstr;

// Keeps what it was asked to add.
class CellEncoder : public Encoder {
 public:
  int64_t width() const override { return 1; }
  int64_t tokens_per_frame(int64_t, int64_t) const override { return 4; }
  bool reads_cells() const override { return true; }
  int64_t step_frames() const override { return 2; }
  void add_maps(PackMaps&, const CellLayout& layout) const override { seen = layout; }
  Value forward(Tape&, Operations&, const at::Tensor&, const Segments&, const PackMaps&) const override { return {}; }
  double flops(int64_t, bool) const override { return 0; }
  bool trains() const override { return false; }
  mutable CellLayout seen;
};

Sample with_images(std::vector<ImageGrid> grids, int64_t cells) {
  Sample sample;
  if (cells > 0) sample.frames = at::zeros({cells, 3, 2, 2});
  sample.texts = {{{5, 6}, {false, true}}};
  sample.grids = std::move(grids);
  return sample;
}

struct Cells {
  Tiny tiny{};
  CellEncoder encoder;
  FrameReader reader{tiny.model.connector(), 4, 1, false, &encoder};

  Pack pack(const std::vector<Sample>& samples, const Capacity& capacity) {
    return make_pack(samples, capacity, reader, at::kFloat);
  }
  std::string refusal(const Sample& sample) {
    try {
      (void)pack({sample}, Capacity::of({sample}, 1));
      return "it was packed";
    } catch (const Error& refused) {
      return refused.text();
    }
  }
};

TEST(Cells, OfAnImageAreASegment) {
  Cells cells;
  const std::vector<Sample> samples{with_images({{2, 3}, {1, 1}}, 7), with_images({}, 0), with_images({{5, 1}}, 5)};
  Capacity capacity = Capacity::of(samples, 1);
  capacity.frames += 4;
  capacity.encoder_frames += 4;
  capacity.rows += 4;
  const Pack pack = cells.pack(samples, capacity);
  EXPECT_EQ(cells.encoder.seen.images, (std::vector<ImageGrid>{{2, 3}, {1, 1}, {5, 1}}));
  EXPECT_EQ(cells.encoder.seen.slots, 16);
  const at::Tensor starts = at::tensor({0, 24, 28, 48, 48}, at::kInt);
  EXPECT_TRUE(at::equal(pack.patches.cu_seqlens, starts)) << pack.patches.cu_seqlens;
  EXPECT_EQ(pack.patches.positions.size(0), 16 * 4);
  EXPECT_EQ(pack.patches.max_length, 7 * 4) << "no image has more cells than the longest sample";
  EXPECT_FALSE(pack.patches.uniform_lengths);
}

TEST(Cells, OfAVideoAreASegmentForEachStep) {
  Cells cells;
  const std::vector<Sample> samples{with_images({{2, 3}}, 6), with_images({{1, 2, 3, 2, 0.5}, {1, 1}}, 13)};
  EXPECT_EQ(frames_of(samples[1]), 7);
  const Pack pack = cells.pack(samples, Capacity::of(samples, 1));
  EXPECT_EQ(cells.encoder.seen.slots, 13);
  EXPECT_EQ(cells.encoder.seen.squares, 26) << "a shape that all packs with videos have";
  EXPECT_EQ(pack.frames.size(0), 26);
  const at::Tensor starts = at::tensor({0, 24, 32, 40, 48, 52, 52, 52, 52}, at::kInt);
  EXPECT_TRUE(at::equal(pack.patches.cu_seqlens, starts)) << pack.patches.cu_seqlens;
  EXPECT_THAT(cells.refusal(with_images({{1, 2, 3, 3}}, 18)),
              HasSubstr("a video with 3 frames in each step, of which the encoder reads 2"));
  EXPECT_THAT(cells.refusal(with_images({{1, 2, 3, 2}}, 6)), HasSubstr("it has 6 frames for 1 image of 12 cells"));
}

// What was recorded of one pack does for the other: two texts read the same rows, of images of other sizes.
TEST(Cells, OfPairsHaveTheShapeOfTheirSizeClass) {
  Cells cells;
  const auto shape = [&](std::vector<ImageGrid> grids, int64_t count) {
    Sample pair = with_images(std::move(grids), count);
    pair.texts.push_back(pair.texts.front());
    const Capacity capacity{
        .frames = 8, .rows = 24, .sequences = 2, .labels = 2, .longest_sequence = 12, .longest_video = 8};
    Pack pack = cells.pack({pair}, capacity);
    EXPECT_EQ(pack.visual_source.size(0), 16);
    EXPECT_EQ(pack.sequence.visual_rows.size(0), 16);
    EXPECT_EQ((pack.sequence.visual_rows == capacity.rows).sum().item<int64_t>(), 16 - 2 * count);
    return pack.shape();
  };
  EXPECT_EQ(shape({{2, 3}}, 6), shape({{7, 1}}, 7));
}

TEST(Cells, HaveAGridForEachImage) {
  Cells cells;
  EXPECT_EQ(cells.refusal(with_images({{2, 3}}, 6)), "it was packed");
  EXPECT_THAT(cells.refusal(with_images({}, 6)), HasSubstr("it has 6 frames for 0 images of 0 cells in all"));
  EXPECT_THAT(cells.refusal(with_images({{2, 3}, {1, 1}}, 6)), HasSubstr("6 frames for 2 images of 7 cells in all"));
  EXPECT_THAT(cells.refusal(with_images({{2, 3}, {0, 4}}, 6)), HasSubstr("an image of 0 x 4 cells"));
  Sample repeated = with_images({{2, 3}}, 3);
  repeated.copies = 2;
  EXPECT_THAT(cells.refusal(repeated), HasSubstr("6 frames"));
  cells.reader.of_cells = nullptr;
  EXPECT_THAT(cells.refusal(with_images({{2, 3}}, 6)), HasSubstr("the encoder reads whole images"));
}

} // namespace
} // namespace fvlm::model
