#include "data/stream/order.h"
#include "synthetic_source.h"

#include <map>
#include <set>

namespace fvlm {
namespace {

std::vector<DrawnSample> first(const Order& order, int64_t count) {
  auto state = order.begin();
  std::vector<DrawnSample> all;
  while (static_cast<int64_t>(all.size()) < count) {
    const auto drawn = order.next(state);
    if (!drawn) break;
    all.push_back(*drawn);
  }
  return all;
}

std::vector<int64_t> counts(const std::vector<DrawnSample>& all, size_t sources) {
  std::vector<int64_t> count(sources);
  for (const DrawnSample& drawn : all) ++count[drawn.source];
  return count;
}

TEST(Order, EpochHoldsEachSampleOnce) {
  const auto order = Order::shuffled(mix_of({3, 1}), {50, 7}, 42, "align", 0);
  std::map<std::pair<size_t, int64_t>, std::set<int64_t>> observed;
  std::map<std::pair<size_t, int64_t>, int64_t> drawn_of;
  for (const DrawnSample& drawn : first(order, 400)) {
    observed[{drawn.source, drawn.epoch}].insert(drawn.sample);
    ++drawn_of[{drawn.source, drawn.epoch}];
  }
  for (const auto& [epoch, samples] : observed) {
    EXPECT_EQ(static_cast<int64_t>(samples.size()), drawn_of[epoch])
        << "source " << epoch.first << " epoch " << epoch.second;
    if (!observed.contains({epoch.first, epoch.second + 1})) continue; // the last was not read to its end
    EXPECT_EQ(samples.size(), epoch.first == 0 ? 50u : 7u);
  }
  EXPECT_GT(observed.size(), 10u);
}

TEST(Order, FollowsWeightsAndTextRatio) {
  EXPECT_NEAR(counts(first(Order::shuffled(mix_of({0.6, 0.3, 0.1}), {100, 100, 100}, 1, "a", 0), 20000), 3)[1], 6000,
              250);
  auto mix = mix_of({5, 5, 1});
  mix.sources[2].shards.clear();
  mix.sources[2].text = {"made"};
  mix.text_ratio = 0.14;
  const auto count = counts(first(Order::shuffled(mix, {10, 10, 10}, 1, "a", 0), 20000), 3);
  EXPECT_NEAR(count[2], 2800, 200);
  EXPECT_NEAR(count[0], 8600, 250);
}

TEST(Order, WeightsMayChangeOverTheStage) {
  auto mix = mix_of({1, 1});
  mix.sources[0].weight.points = {1, 0};
  mix.sources[1].weight.points = {0, 1};
  const auto all = first(Order::shuffled(mix, {1000, 1000}, 1, "a", 10000), 10000);
  EXPECT_LT(counts({all.begin(), all.begin() + 1000}, 2)[1], 100);
  EXPECT_GT(counts({all.end() - 1000, all.end()}, 2)[1], 900);
}

TEST(Order, FinishedSourceLeavesItsShareToTheOthers) {
  auto mix = mix_of({1, 1}, 2);
  const auto all = first(Order::shuffled(mix, {10, 100}, 42, "a", 0), 1000);
  EXPECT_EQ(counts(all, 2), (std::vector<int64_t>{20, 200}));
  mix.sources[1].epochs = 0;
  EXPECT_EQ(counts(first(Order::shuffled(mix, {10, 100}, 42, "a", 0), 1000), 2), (std::vector<int64_t>{20, 980}));
  EXPECT_TRUE(first(Order::shuffled(mix, {0, 0}, 42, "a", 0), 10).empty());
}

TEST(Order, StartsAnywhere) {
  const auto order = Order::shuffled(mix_of({2, 1, 1}), {31, 17, 5}, 42, "align", 500);
  const auto all = first(order, 300);
  auto state = order.begin();
  for (size_t i = 0; i < all.size(); ++i) {
    auto from_here = state;
    for (size_t j = i; j < std::min(all.size(), i + 5); ++j) EXPECT_EQ(order.next(from_here), all[j]);
    order.next(state);
  }
}

TEST(Order, DependsOnSeedAndStage) {
  const auto one = first(Order::shuffled(mix_of({1}), {1000}, 42, "align", 0), 50);
  EXPECT_NE(one, first(Order::shuffled(mix_of({1}), {1000}, 43, "align", 0), 50));
  EXPECT_NE(one, first(Order::shuffled(mix_of({1}), {1000}, 42, "instruct", 0), 50));
  EXPECT_EQ(one, first(Order::shuffled(mix_of({1}), {1000}, 42, "align", 0), 50));
}

TEST(Order, EvaluationVisitsEachSampleOnceBySource) {
  std::vector<std::pair<size_t, int64_t>> all;
  for (const DrawnSample& drawn : first(Order::once({2, 0, 3}), 100)) all.emplace_back(drawn.source, drawn.sample);
  EXPECT_EQ(all, (std::vector<std::pair<size_t, int64_t>>{{0, 0}, {0, 1}, {2, 0}, {2, 1}, {2, 2}}));
}

} // namespace
} // namespace fvlm
