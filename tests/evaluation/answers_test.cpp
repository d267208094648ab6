// Generated answers beside what the public evaluations make of them.
#include "evaluation/answers.h"

#include <gtest/gtest.h>

namespace fvlm::evaluation {
namespace {

TEST(Answers, AreNormalizedAsSquadDoes) {
  EXPECT_EQ(normalized("  The  Quick, brown\tfox!\n"), "quick brown fox");
  EXPECT_EQ(normalized("an A.B.C. theatre"), "abc theatre");
  EXPECT_EQ(normalized("the"), "");
  EXPECT_EQ(normalized("Caf\xC3\xA9 7"), "caf\xC3\xA9 7");
}

TEST(Answers, MatchTheBestOfTheExpectedOnes) {
  EXPECT_EQ(exact_match("The Denver Broncos.", {"Carolina", "denver broncos"}), 1);
  EXPECT_EQ(exact_match("Denver", {"Carolina", "Denver Broncos"}), 0);
  EXPECT_DOUBLE_EQ(f1("the Denver team", {"Carolina", "Denver Broncos team"}), 2.0 * 2 / 5);
  EXPECT_DOUBLE_EQ(f1("red red red", {"red blue"}), 2.0 * 1 / 5);
  EXPECT_EQ(f1("", {"red"}), 0);
  EXPECT_EQ(f1("the", {"a"}), 1);
}

TEST(Answers, AgreeWithPeopleAsInVqa) {
  const Answers ten{"two", "2", "2", "three", "two", "2", "2", "2", "many", "2"}; // eight say 2
  EXPECT_DOUBLE_EQ(vqa_accuracy("Two.", ten), 1);
  EXPECT_DOUBLE_EQ(vqa_accuracy("three", ten), (1 * 0.0 + 9 * (1.0 / 3)) / 10);
  EXPECT_DOUBLE_EQ(vqa_accuracy("five", ten), 0);
  const Answers three{"dont", "don't", "do not"};
  EXPECT_DOUBLE_EQ(vqa_accuracy("don't", three), (2 * (1.0 / 3) + 2.0 / 3) / 3);
  EXPECT_EQ(vqa_accuracy("the 1,000", {"1000"}), 1);
  EXPECT_EQ(vqa_accuracy("black/white", {"black white"}), 1);
  EXPECT_EQ(vqa_accuracy("3.5", {"35"}), 0);
}

TEST(Answers, MayBeOffByFivePercentAsInChartQa) {
  EXPECT_EQ(relaxed_accuracy("104.9", {"100"}), 1);
  EXPECT_EQ(relaxed_accuracy("105.1", {"100"}), 0);
  EXPECT_EQ(relaxed_accuracy("12.5%", {"0.125"}), 1);
  EXPECT_EQ(relaxed_accuracy("-95", {"-100"}), 1);
  EXPECT_EQ(relaxed_accuracy("0.1", {"0"}), 0);
  EXPECT_EQ(relaxed_accuracy("0", {"0"}), 1);
  EXPECT_EQ(relaxed_accuracy(" Yes", {"yes "}), 1);
  EXPECT_EQ(relaxed_accuracy("2 cats", {"2"}), 0);
}

TEST(Answers, ContainEachOtherUnlessTheyAreEmpty) {
  EXPECT_EQ(contains("It is a Red ball.", {"red"}), 1);
  EXPECT_EQ(contains("red", {"a red ball"}), 1);
  EXPECT_EQ(contains("blue", {"a red ball", "Blue sky"}), 1);
  EXPECT_EQ(contains("", {"red"}), 0);
  EXPECT_EQ(contains(" ", {""}), 0);
}

// The numbers are those of the published script for CIDEr-D on the same words.
TEST(Answers, AreCaptionsToCider) {
  const std::vector<double> scores =
      cider({{"A red ball rolls over the green grass.",
              {"A red ball rolls over the grass.", "The red ball is on green grass"}},
             {"two dogs dogs dogs run", {"two dogs run after a ball", "a pair of dogs is running"}},
             {"a man rides a horse on a beach", {"a man rides a horse on a beach", "someone on a horse by the sea"}}});
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_NEAR(scores[0], 5.101616421414984, 1e-12);
  EXPECT_NEAR(scores[1], 1.1811785798734276, 1e-12);
  EXPECT_NEAR(scores[2], 5.713633165845044, 1e-12);
  EXPECT_EQ(cider({{"alone", {"alone"}}}).front(), 0);
}

} // namespace
} // namespace fvlm::evaluation
