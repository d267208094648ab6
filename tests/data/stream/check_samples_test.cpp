#include "data/stream/check_samples.h"
#include "synthetic_source.h"

#include <gmock/gmock.h>

namespace fvlm {
namespace {

using testing::HasSubstr;

TEST(CheckSamples, DecodesEachOnceAndReportsErrors) {
  SyntheticSource source({700, 30});
  source.broken = [](const DrawnSample& drawn) { return drawn.source == 1 && drawn.sample == 4; };
  source.leaves_out = [](const DrawnSample& drawn) { return drawn.source == 0 && drawn.sample == 5; };
  source.undecodable = [](const DrawnSample& drawn) { return drawn.source == 0 && drawn.sample >= 698; };
  source.has_broken_head = [](const DrawnSample& drawn) { return drawn.source == 1 && drawn.sample == 7; };
  std::vector<int64_t> reported;
  for (const int threads : {1, 4}) {
    const CheckedSamples found =
        check_samples(source, Order::once(source.sizes()), 0, threads, [&](int64_t done) { reported.push_back(done); });
    EXPECT_EQ(found.counts.text(),
              "730 samples read, 725 used, 5 skipped (1 text or fields, 3 image or video, 1 text too long)");
    EXPECT_EQ(found.broken(), 4);
    ASSERT_EQ(found.skipped.size(), 5u);
    EXPECT_EQ(found.skipped[0].key, "0-5");
    EXPECT_EQ(found.skipped[1].key, "0-698");
    EXPECT_EQ(found.skipped[3].key, "1-4");
    EXPECT_EQ(found.broken_text(2),
              "source 0, sample '0-698': half a picture\n  source 0, sample '0-699': half a picture");
    EXPECT_EQ(reported.back(), 730);
  }
  EXPECT_EQ(check_samples(source, Order::once(source.sizes()), 10, 2).counts.read, 10);
}

TEST(CheckSamples, CountsSamplesOfTooManyFramesByThemselves) {
  class ManyFrames : public SyntheticSource {
   public:
    using SyntheticSource::SyntheticSource;
    Sample measure(const DrawnSample& drawn) const override {
      Sample sample{.key = key(drawn), .dropped = "9 frames, more than max_frames = 8", .exceeds_frames = true};
      sample.truncated_tokens = drawn.sample; // some lost tokens, too
      return sample;
    }
  };
  const ManyFrames source({3});
  EXPECT_EQ(check_samples(source, Order::once(source.sizes()), 0, 1).counts.text(),
            "3 samples read, 0 used, 3 skipped (3 too many frames)");
}

TEST(CheckSamples, FailingDiskIsNoBrokenSample) {
  SyntheticSource source({10});
  source.fails = [](const DrawnSample& drawn) { return drawn.sample == 3; };
  EXPECT_THROW(check_samples(source, Order::once(source.sizes()), 0, 2), ReadError);
}

} // namespace
} // namespace fvlm
