#include "data/stream/statistics.h"

#include <gtest/gtest.h>

namespace fvlm {
namespace {

MeasuredSample sample(int64_t frames, size_t tokens, const std::string& source = "", int64_t cut = 0) {
  auto sample = std::make_shared<Sample>();
  sample->frames = frames;
  sample->source = source;
  sample->texts.push_back({std::vector<TokenId>(tokens), std::vector<uint8_t>(tokens, 1)});
  sample->truncated_tokens = cut;
  sample->truncated_answer_tokens = cut / 2;
  return {{}, sample, {}};
}

TEST(Distribution, DescribesSpread) {
  Distribution spread;
  for (int64_t value : {5, 1, 4, 2, 3, 10, 6, 9, 8, 7}) spread.add(value);
  EXPECT_EQ(spread.mean(), 5.5);
  EXPECT_EQ(spread.min(), 1);
  EXPECT_EQ(spread.quantile(0.5), 5);
  EXPECT_EQ(spread.quantile(0.9), 9);
  EXPECT_EQ(spread.quantile(1), 10);
  EXPECT_EQ(spread.quantile(0), 1);
  size_t count = 0;
  int64_t next = 1;
  for (const auto& bar : spread.histogram(3)) {
    EXPECT_EQ(bar.from, next);
    next = bar.to + 1;
    count += bar.count;
  }
  EXPECT_EQ(count, 10u);
  EXPECT_EQ(next, 11);
  EXPECT_EQ(Distribution().quantile(0.5), 0);
  EXPECT_TRUE(Distribution().histogram(3).empty());
}

TEST(DataStatistics, CountsPackContentAndPaddingBySource) {
  DataStatistics found;
  found.capacity = {16, 100};
  ComposedStep step;
  step.packs = {{sample(8, 30, "chart", 10), sample(0, 50)}, {sample(4, 6, "chart")}};
  step.samples = 3;
  step.skipped = {{1, "a.tar", "k", "broken", true}, {2, "a.tar", "l", "too long", false}};
  found.add(step, {"mine"});
  EXPECT_EQ(found.sources.at("chart").frames.count(), 2u);
  EXPECT_EQ(found.sources.at("mine").tokens.sum(), 50);
  EXPECT_EQ(found.all.tokens.sum(), 86);
  EXPECT_EQ(found.all.cut, 1);
  EXPECT_EQ(found.all.truncated_tokens, 10);
  EXPECT_EQ(found.all.cut_answer, 5);
  EXPECT_EQ(found.broken, 1);
  EXPECT_EQ(found.left_out, 1);
  EXPECT_EQ(found.reasons, (std::vector<std::string>{"a.tar, sample 'k': broken", "a.tar, sample 'l': too long"}));
  EXPECT_DOUBLE_EQ(found.fill_of_frames(), 12.0 / 32);
  EXPECT_DOUBLE_EQ(found.fill_of_rows(), 98.0 / 200);
  EXPECT_DOUBLE_EQ(found.padding_waste(), (150 - 98) / 150.0); // three samples as long as the longest, 50
}

TEST(DataStatistics, SuggestsPacksWhoseFramesAndRowsFillTogether) {
  DataStatistics found;
  found.capacity = {512, 8192};
  ComposedStep step;
  for (int i = 0; i < 40; ++i) step.packs.push_back({sample(10, 216)});
  step.samples = 40;
  found.add(step, {"mine"});
  EXPECT_EQ(found.suggestion().rows, 8192);
  EXPECT_NEAR(static_cast<double>(found.suggestion().frames), 8192 * 10.0 / 226, 8);
}

TEST(DataStatistics, SuggestsCapacityOfAOnePackStep) {
  DataStatistics found;
  found.capacity = {512, 8192};
  for (size_t tokens : {30, 40}) {
    ComposedStep step;
    step.packs = {{sample(10, tokens), sample(4, 6)}};
    step.samples = 2;
    found.add(step, {"mine"});
  }
  EXPECT_EQ(found.suggestion().frames, 14);
  EXPECT_EQ(found.suggestion().rows, 60);
}

} // namespace
} // namespace fvlm
