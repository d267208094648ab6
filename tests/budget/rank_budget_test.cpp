#include "budget/rank_budget.h"

#include <gtest/gtest.h>

namespace fvlm::budget {
namespace {

// A million parameters that train, in bf16 with float32 gradients, masters and two moments: 2, 4, 4 and 8 MB.
StageBudget million() {
  StageBudget budget;
  budget.stage = "align";
  budget.step.peak = 100'000'000;
  const auto set = [&](Item item, int64_t bytes) { budget.step.amounts[static_cast<size_t>(item)] = bytes; };
  set(Item::weights, 3'000'000); // a third of them frozen
  set(Item::gradients, 4'000'000);
  set(Item::masters, 4'000'000);
  set(Item::moments, 8'000'000);
  budget.sharded_gradients_peak = 88'000'000;
  budget.last_bucket = 400'000;
  return budget;
}

TEST(RankBudget, DividesTheOptimizersState) {
  plan::Plan plan;
  plan.precision = plan::Precision::bf16;
  const RankBudget each = rank_budget(plan, million(), 4);
  EXPECT_EQ(each.memory, 100'000'000);
  EXPECT_EQ(each.sharded_memory, 91'000'000) << "3 MB of 12 are left";
  EXPECT_EQ(each.sent, 6'000'000) << "1.5 times the gradients";
  EXPECT_EQ(each.sharded_gradients_memory, 88'000'000);
  EXPECT_EQ(each.late, 600'000);
  EXPECT_EQ(each.pack_sent, 3'000'000) << "three quarters of the gradients";
  EXPECT_EQ(each.sharded_sent, 4'500'000) << "three quarters of gradients and weights";
}

TEST(RankBudget, OfOneProcessSendsNothing) {
  const RankBudget alone = rank_budget(plan::Plan(), million(), 1);
  EXPECT_EQ(alone.sent, 0);
  EXPECT_EQ(alone.sharded_sent, 0);
  EXPECT_EQ(alone.sharded_memory, alone.memory);
}

} // namespace
} // namespace fvlm::budget
