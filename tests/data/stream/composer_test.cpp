#include "data/stream/composer.h"
#include "data/stream/prefetcher.h"
#include "synthetic_source.h"

#include <gmock/gmock.h>
#include <set>

namespace fvlm {
namespace {

BatchPlan plan_of(plan::Batch batch, int64_t samples = 0) {
  return {.batch = batch, .capacity = {24, 200}, .window = 64, .samples = samples};
}

// The stage from the cursor on, one sample after the other.
std::vector<ComposedStep> composed(const SyntheticSource& source, const BatchPlan& plan,
                                   const std::optional<Cursor>& start = {}, size_t most = 1000000, int64_t epochs = 1) {
  const auto order = Order::shuffled(mix_of({2, 1}, epochs), source.sizes(), 42, "align", 0);
  Cursor cursor = start.value_or(Composer::start(plan, order));
  auto state = cursor.order;
  size_t passed = 0;
  Composer composer(plan, order, first_fit, cursor, [&]() -> std::optional<MeasuredSample> {
    while (true) {
      const auto drawn = order.next(state);
      if (!drawn) return {};
      if (passed < cursor.done.size() && cursor.done[passed++]) continue;
      return measure(source, *drawn);
    }
  });
  std::vector<ComposedStep> steps;
  while (steps.size() < most) {
    auto step = composer.next();
    if (!step) break;
    steps.push_back(std::move(*step));
  }
  return steps;
}

PackSize size_of(const std::vector<MeasuredSample>& pack) {
  PackSize sum;
  for (const MeasuredSample& measured : pack) {
    sum.frames += measured.sample->frames;
    sum.rows += measured.sample->rows();
  }
  return sum;
}

std::multiset<std::string> keys(const std::vector<ComposedStep>& steps) {
  std::multiset<std::string> all;
  for (const auto& step : steps)
    for (const auto& pack : step.packs)
      for (const auto& measured : pack) all.insert(measured.sample->key);
  return all;
}

void expect_every_sample_once(const std::vector<ComposedStep>& steps, const std::vector<int64_t>& sizes) {
  const auto all = keys(steps);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
  int64_t sum = 0;
  for (int64_t size : sizes) sum += size;
  EXPECT_EQ(static_cast<int64_t>(all.size()), sum);
}

// Waiting samples that exceed the rest of the budget are in no pack of the step.
TEST(Composer, KeepsBudgetLimitsNearTheEnd) {
  BatchPlan plan = plan_of({.tokens = 210});
  plan.capacity = {14, 100};
  const auto steps = composed(SyntheticSource({300, 0}), plan);
  for (const auto& step : steps) {
    int64_t rows = 0;
    for (const auto& pack : step.packs) {
      EXPECT_LE(size_of(pack).frames, 14);
      EXPECT_LE(size_of(pack).rows, 100);
      rows += size_of(pack).rows;
    }
    EXPECT_LE(rows, 210);
  }
  expect_every_sample_once(steps, {300, 0});
}

TEST(Composer, SampleStepHoldsExactlySoManyInPacksThatFit) {
  const auto steps = composed(SyntheticSource({150, 45}), plan_of({.samples = 32}));
  ASSERT_EQ(steps.size(), 7u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].samples, i < 6 ? 32 : 3);
    EXPECT_TRUE(steps[i].after.done.empty()) << "nothing waits between steps";
    for (const auto& pack : steps[i].packs) {
      EXPECT_LE(size_of(pack).frames, 24);
      EXPECT_LE(size_of(pack).rows, 200);
      for (size_t j = 1; j < pack.size(); ++j) EXPECT_LT(pack[j - 1].drawn.position, pack[j].drawn.position);
    }
  }
  expect_every_sample_once(steps, {150, 45});
}

TEST(Composer, StageEndsWithItsSamples) {
  for (const auto& batch : {plan::Batch{.samples = 32}, plan::Batch{.tokens = 300}}) {
    const auto steps = composed(SyntheticSource({150, 45}), plan_of(batch, 100));
    EXPECT_EQ(keys(steps).size(), 100u);
    EXPECT_EQ(steps.back().after.samples, 100);
  }
}

TEST(Composer, BudgetStepFillsUntilALimit) {
  const auto steps = composed(SyntheticSource({300, 90}), plan_of({.tokens = 500, .frames = 60}));
  expect_every_sample_once(steps, {300, 90});
  double rows = 0, frames = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    PackSize sum;
    for (const auto& pack : steps[i].packs) {
      EXPECT_LE(size_of(pack).frames, 24);
      EXPECT_LE(size_of(pack).rows, 200);
      sum.frames += size_of(pack).frames;
      sum.rows += size_of(pack).rows;
    }
    EXPECT_LE(sum.rows, 500);
    EXPECT_LE(sum.frames, 60);
    if (i + 10 < steps.size()) {
      rows = std::max(rows, sum.rows / 500.0);
      frames = std::max(frames, sum.frames / 60.0);
    }
  }
  EXPECT_GT(std::max(rows, frames), 0.95);
}

TEST(Composer, OldestWaitingSampleIsInTheNextPack) {
  for (const auto& step : composed(SyntheticSource({300, 90}), plan_of({.tokens = 200}))) {
    if (step.after.done.empty()) continue;
    EXPECT_FALSE(step.after.done.front());
    for (const auto& pack : step.packs)
      EXPECT_LT(pack.front().drawn.position, step.after.order.position) << "it waited longer than any that waits now";
  }
}

TEST(Composer, ResumesFromAnyCursor) {
  for (const auto& batch :
       {plan::Batch{.samples = 32}, plan::Batch{.tokens = 300}, plan::Batch{.samples = 9, .frames = 40}}) {
    SyntheticSource source({200, 60});
    source.broken = [](const DrawnSample& drawn) { return drawn.sample % 13 == 5; };
    const auto all = composed(source, plan_of(batch));
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const auto from_there = composed(source, plan_of(batch), Cursor::parse(all[i].after.text(), "cursor"), 3);
      ASSERT_FALSE(from_there.empty());
      for (size_t j = 0; j < from_there.size(); ++j) {
        EXPECT_EQ(from_there[j].after, all[i + 1 + j].after);
        ASSERT_EQ(from_there[j].packs.size(), all[i + 1 + j].packs.size());
        EXPECT_EQ(keys({from_there[j]}), keys({all[i + 1 + j]}));
      }
    }
  }
}

TEST(Composer, DataWithoutUsableSamplesAreAnErrorInEveryEpoch) {
  struct Useless {
    const char* what;
    const char* reason;
    int64_t rows = 200;
    SyntheticSource source = SyntheticSource({30, 10});
  };
  std::vector<Useless> all = {{"broken", "no text"}, {"left out", "too long"}, {"larger than a pack", "holds", 1}};
  all[0].source.broken = all[1].source.leaves_out = [](const DrawnSample&) { return true; };
  for (const Useless& useless : all)
    for (const auto& batch : {plan::Batch{.samples = 4}, plan::Batch{.tokens = 300}}) {
      SCOPED_TRACE(useless.what);
      BatchPlan plan = plan_of(batch);
      plan.capacity.rows = useless.rows;
      try {
        composed(useless.source, plan, {}, 1, 0);
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::data);
        EXPECT_THAT(error.text(), testing::AllOf(testing::HasSubstr("drawn in a row can be used"),
                                                 testing::HasSubstr(useless.reason), testing::HasSubstr("source ")));
      }
    }
}

TEST(Composer, ReplacesABrokenSample) {
  SyntheticSource source({100, 30});
  source.broken = [](const DrawnSample& drawn) { return drawn.sample % 10 == 3; };
  const auto steps = composed(source, plan_of({.samples = 32}));
  EXPECT_EQ(steps[0].samples, 32);
  EXPECT_EQ(keys(steps).size(), 117u);
  EXPECT_EQ(steps.back().after.broken, 13);
  EXPECT_EQ(steps.back().after.read, 130);
  size_t reported = 0;
  for (const auto& step : steps) reported += step.skipped.size();
  EXPECT_EQ(reported, 13u);
  const SkippedSample& first = steps[0].skipped.at(0);
  EXPECT_EQ(first.reason, "no text");
  EXPECT_TRUE(first.broken);
}

TEST(Composer, ReportsFilteredSamplesSeparatelyFromBrokenOnes) {
  SyntheticSource source({100, 30});
  source.leaves_out = [](const DrawnSample& drawn) { return drawn.sample % 10 == 3; };
  const auto steps = composed(source, plan_of({.samples = 32}));
  EXPECT_EQ(keys(steps).size(), 117u);
  EXPECT_EQ(steps.back().after.broken, 0);
  EXPECT_EQ(steps.back().after.left_out, 13);
  EXPECT_FALSE(steps[0].skipped.at(0).broken);
  EXPECT_EQ(steps[0].skipped.at(0).reason, "too long");
}

TEST(Composer, SampleLargerThanAPackIsSkippedWithItsSize) {
  auto plan = plan_of({.samples = 8});
  plan.capacity = {24, 50};
  const auto steps = composed(SyntheticSource({100, 30}), plan);
  std::vector<std::string> reasons;
  for (const auto& step : steps)
    for (const auto& skipped : step.skipped) reasons.push_back(skipped.reason);
  ASSERT_FALSE(reasons.empty());
  for (const auto& reason : reasons)
    EXPECT_THAT(reason, testing::MatchesRegex("[0-9]+ frames and [0-9]+ rows are more than a pack of 24 and 50 holds"));
  EXPECT_EQ(keys(steps).size() + reasons.size(), 130u);
  EXPECT_EQ(steps[0].samples, 8);
}

TEST(Composer, GivesEveryRankAPackOfASampleStep) {
  auto plan = plan_of({.samples = 32});
  plan.capacity = {1000, 10000};
  EXPECT_EQ(composed(SyntheticSource({150, 45}), plan)[0].packs.size(), 1u);
  plan.ranks = 4;
  EXPECT_GE(composed(SyntheticSource({150, 45}), plan)[0].packs.size(), 4u);
}

TEST(Composer, RefusesCursorOfOtherData) {
  const auto order = [](uint64_t seed, int64_t size) { return Order::shuffled(mix_of({1}), {size}, seed, "align", 0); };
  const auto plan = plan_of({.samples = 32});
  const Cursor cursor = Composer::start(plan, order(42, 100));
  EXPECT_NO_THROW(Composer::check(cursor, plan, order(42, 100)));
  EXPECT_THROW(Composer::check(cursor, plan, order(43, 100)), Error);
  EXPECT_THROW(Composer::check(cursor, plan, order(42, 101)), Error);
  EXPECT_THROW(Composer::check(cursor, plan_of({.samples = 16}), order(42, 100)), Error);
}

} // namespace
} // namespace fvlm
