// Sampling of tokens: frequencies match probabilities, only the tokens that the settings leave are drawn, and a seed is
// reproducible.
#include "base/error.h"
#include "infer/sampling.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fvlm::infer {
namespace {

const std::vector<double> shares = {0.05, 0.4, 0.1, 0.3, 0.15};
constexpr int64_t many = 20000;

at::Tensor logits() {
  std::vector<float> values;
  values.reserve(shares.size());
  for (const double share : shares) values.push_back(static_cast<float>(std::log(share) + 3));
  return at::tensor(values, at::kFloat);
}

std::vector<double> drawn(const Sampling& sampling, int64_t draws) {
  const Sampler sampler(sampling);
  std::vector<double> counts(shares.size());
  for (int64_t i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sampler.pick(logits(), {}, i))];
  return counts;
}

// The chi-squared statistic of many draws; with 4 degrees of freedom it is below 23.5 in all but 1 of 10,000 cases.
void expect_like(const Sampling& sampling, const std::vector<double>& expected) {
  const auto counts = drawn(sampling, many);
  double off = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double wanted = expected[i] * static_cast<double>(many);
    if (wanted == 0)
      EXPECT_EQ(counts[i], 0) << "token " << i;
    else
      off += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
  }
  EXPECT_LT(off, 23.5);
}

TEST(Sampling, WithoutTemperatureTakesTheLikeliestToken) {
  EXPECT_EQ(drawn({}, 10), (std::vector<double>{0, 10, 0, 0, 0}));
}

TEST(Sampling, AtTemperature1FollowsTheProbabilities) {
  expect_like({.temperature = 1, .seed = 4}, shares);
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> expected;
    expected.reserve(shares.size());
    double sum = 0;
    for (const double share : shares) sum += std::pow(share, 1 / temperature);
    for (const double share : shares) expected.push_back(std::pow(share, 1 / temperature) / sum);
    expect_like({.temperature = temperature, .seed = 5}, expected);
  }
}

TEST(Sampling, TopPDrawsFromTheSmallestSufficientSet) {
  expect_like({.temperature = 1, .top_p = 0.69, .seed = 6}, {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0});
  expect_like({.temperature = 1, .top_p = 0.75, .seed = 6}, {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85});
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 1e-9}, 10), (std::vector<double>{0, 10, 0, 0, 0}));
}

TEST(Sampling, TopKDrawsFromTheLikeliestTokens) {
  expect_like({.temperature = 1, .top_k = 2, .seed = 7}, {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0});
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 1}, 10), (std::vector<double>{0, 10, 0, 0, 0}));
  expect_like({.temperature = 1, .top_k = 99, .seed = 7}, shares);
}

TEST(Sampling, MinPLeavesOutWhatIsFarLessLikelyThanTheLikeliest) {
  expect_like({.temperature = 1, .min_p = 0.3, .seed = 8}, {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85});
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1}, 10), (std::vector<double>{0, 10, 0, 0, 0}));
}

TEST(Sampling, TheRepetitionPenaltyActsOnTokensOfTheContextOnce) {
  const Sampler greedy({.repetition_penalty = 2});
  const std::vector<int64_t> once = {1, -1}, twice = {1, 1, 1, 3}, strangers = {99, -5};
  EXPECT_EQ(greedy.pick(logits(), once, 0), 3) << "half of the highest logit is below the next one";
  EXPECT_EQ(greedy.pick(logits(), twice, 0), 4);
  EXPECT_EQ(greedy.pick(logits(), strangers, 0), 1) << "ids outside of the vocabulary are placeholders";
}

TEST(Sampling, SeedAndAnswerDetermineDraws) {
  const auto tokens = [](uint64_t seed, uint64_t answer) {
    const Sampler sampler({.temperature = 1, .seed = seed, .answer = answer});
    std::vector<int64_t> all;
    for (int64_t i = 0; i < 100; ++i) all.push_back(sampler.pick(logits(), {}, i));
    return all;
  };
  EXPECT_EQ(tokens(1, 0), tokens(1, 0));
  EXPECT_NE(tokens(1, 0), tokens(2, 0));
  EXPECT_NE(tokens(1, 0), tokens(1, 1));
}

TEST(Sampling, RefusesInvalidValues) {
  for (const Sampling& bad :
       {Sampling{.temperature = -1}, Sampling{.temperature = std::nan("")}, Sampling{.temperature = INFINITY},
        Sampling{.top_p = 0}, Sampling{.top_p = 1.5}, Sampling{.top_k = -1}, Sampling{.min_p = -0.1},
        Sampling{.min_p = 1.1}, Sampling{.repetition_penalty = 0}, Sampling{.repetition_penalty = INFINITY}})
    EXPECT_THROW(Sampler{bad}, Error) << bad.temperature << ", " << bad.top_k << ", " << bad.top_p << ", " << bad.min_p
                                      << ", " << bad.repetition_penalty;
}

} // namespace
} // namespace fvlm::infer
