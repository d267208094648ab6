// What counts as a spike of the loss.
#include "train/guard.h"

#include <gtest/gtest.h>

namespace fvlm::train {
namespace {

class GuardTest : public testing::Test {
 protected:
  // After so many losses of this size.
  Guard::Verdict verdict(double mean, double loss, int losses = 50) {
    state_ = {};
    for (int i = 0; i < losses; ++i) EXPECT_EQ(guard_.check(mean, 1), Guard::Verdict::fine);
    return guard_.check(loss, 1);
  }

  plan::Guard limits_;
  GuardState state_;
  Guard guard_{limits_, state_};
};

TEST_F(GuardTest, ReportsLossesFarAboveTheRunningMean) {
  EXPECT_EQ(verdict(2, 5.9), Guard::Verdict::fine);
  EXPECT_EQ(verdict(2, 6.1), Guard::Verdict::spike);
  EXPECT_DOUBLE_EQ(guard_.mean_before(), 2) << "without the spike itself";
  EXPECT_GT(state_.mean_loss, 2);
}

TEST_F(GuardTest, LeavesTheFirstLossesOfAStageAlone) {
  EXPECT_EQ(verdict(2, 20, 10), Guard::Verdict::fine);
}

TEST_F(GuardTest, LeavesHardSamplesOfALearntTaskAlone) {
  EXPECT_EQ(verdict(0.01, 0.25), Guard::Verdict::fine);
  EXPECT_EQ(verdict(0.01, 0.31), Guard::Verdict::spike);
}

} // namespace
} // namespace fvlm::train
