// Videos of a pack, read frame by frame; size classes of rows.
#include "model/size_class.h"
#include "tiny.h"

namespace fvlm::model {
namespace {

// A video's frames are encoded as if it were alone, however many videos and images there are beside it.
TEST(Autoregressive, VideosAreEncodedSideBySide) {
  Tiny tiny;
  Dice dice(8);
  std::vector<Sample> samples;
  for (const int64_t frames : {3, 0, 1, 6, 2, 2, 6, 1, 4, 5, 1}) samples.push_back(random_sample(dice, frames, 3));
  ops::Tape none(ops::Tape::Mode::forward_only);
  const auto encoded = [&](const std::vector<Sample>& of, int64_t spare) {
    Capacity capacity = Capacity::of(of, 1);
    capacity.frames += spare;
    return tiny.model.encode(none, *tiny.operations, tiny.pack(of, capacity), "autoregressive",
                             EncodeOutputs::tokens_and_attention);
  };
  const auto all = encoded(samples, 2);
  int64_t begin = 0;
  for (const Sample& sample : samples) {
    const int64_t frames = frames_of(sample.frames);
    if (frames == 0) continue;
    const auto alone = encoded({sample}, 0);
    for (const auto& [one, many] :
         {std::pair(alone.tokens.data, all.tokens.data), std::pair(alone.queries.data, all.queries.data),
          std::pair(alone.attention, all.attention)})
      EXPECT_LT((one - many.narrow(0, begin, frames)).abs().max().item<double>(), 1e-12) << "frames from " << begin;
    begin += frames;
  }
}

TEST(RowClass, IsNeverTooSmallAndWastesNoMoreThanAQuarter) {
  int64_t classes = 0, previous = 0;
  for (int64_t rows = 0; rows <= 4096; ++rows) {
    const int64_t padded = row_class(rows);
    EXPECT_GE(padded, rows);
    EXPECT_LE(padded - rows, padded / 4) << rows;
    EXPECT_EQ(row_class(padded), padded);
    classes += padded != std::exchange(previous, padded);
  }
  EXPECT_LE(classes, 8 + 4 * 9);
}

} // namespace
} // namespace fvlm::model
