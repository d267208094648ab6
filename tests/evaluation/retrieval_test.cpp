// What queries find among all candidates of a set.
#include "evaluation/retrieval.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fvlm::evaluation {
namespace {

// A vector of length 1 in a plane.
EmbeddedInput at_angle(uint64_t content, double degrees) {
  const double angle = degrees * M_PI / 180;
  return {content, {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))}};
}

SampleScore sample(std::vector<EmbeddedInput> inputs) {
  SampleScore score;
  score.inputs = std::move(inputs);
  return score;
}

double value(const std::vector<std::pair<std::string, double>>& values, const std::string& name) {
  for (const auto& [each, value] : values)
    if (each == name) return value;
  ADD_FAILURE() << name;
  return 0;
}

TEST(Retrieval, RanksThePositiveAmongTheCandidatesOfAllSamples) {
  // Of the first the positive is nearest, of the second the first's is nearer, of the third both and a negative.
  const auto values =
      retrieval_values({sample({at_angle(1, 0), at_angle(11, 5)}), sample({at_angle(2, 10), at_angle(12, 30)}),
                        sample({at_angle(3, 20), at_angle(13, 120), at_angle(14, 25)})});
  EXPECT_EQ(value(values, "candidates"), 4);
  EXPECT_NEAR(value(values, "recall_at_1"), 1.0 / 3, 1e-12);
  EXPECT_EQ(value(values, "recall_at_5"), 1);
  EXPECT_NEAR(value(values, "mrr"), (1 + 1.0 / 3 + 1.0 / 4) / 3, 1e-12);
}

TEST(Retrieval, EqualContentIsOneCandidate) {
  const auto values =
      retrieval_values({sample({at_angle(1, 0), at_angle(11, 5)}), sample({at_angle(2, 10), at_angle(11, 5)})});
  EXPECT_EQ(value(values, "candidates"), 1);
  EXPECT_EQ(value(values, "mrr"), 1);
}

TEST(Retrieval, WhatAnEqualQueryIsToFindIsNoWrongFind) {
  const auto samples = [](uint64_t second) {
    return std::vector{sample({at_angle(1, 0), at_angle(11, 5)}), sample({at_angle(second, 0), at_angle(12, 9)})};
  };
  EXPECT_EQ(value(retrieval_values(samples(1)), "recall_at_1"), 1);
  EXPECT_EQ(value(retrieval_values(samples(2)), "recall_at_1"), 0.5);
}

TEST(Retrieval, ATieIsNotFound) {
  std::vector<SampleScore> samples;
  for (uint64_t i = 0; i < 10; ++i) samples.push_back(sample({at_angle(i, 7), at_angle(100 + i, 7)}));
  const auto values = retrieval_values(samples);
  EXPECT_EQ(value(values, "recall_at_5"), 0);
  EXPECT_NEAR(value(values, "mrr"), 0.1, 1e-12);
}

} // namespace
} // namespace fvlm::evaluation
