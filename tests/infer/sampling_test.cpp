// Sampling of tokens: frequencies match probabilities, only the tokens that the settings leave are drawn, and a seed is
// reproducible.
#include "base/error.h"
#include "infer/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
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
void expect_counts(const std::vector<double>& counts, const std::vector<double>& expected) {
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

void expect_like(const Sampling& sampling, const std::vector<double>& expected) {
  expect_counts(drawn(sampling, many), expected);
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

const std::vector<Sampling> different = {
    {.temperature = 1, .seed = 1},
    {.temperature = 0.7, .top_k = 3, .seed = 2},
    {.temperature = 1.3, .top_p = 0.6, .seed = 3},
    {.temperature = 1, .min_p = 0.2, .seed = 4},
    {.repetition_penalty = 1.5},
    {.repetition_penalty = 1.3, .temperature = 1, .seed = 5},
    {.repetition_penalty = 0.8, .temperature = 2, .top_k = 40, .top_p = 0.9, .min_p = 0.02, .seed = 6},
    {.temperature = 1, .top_k = 1},
    {.temperature = 5, .seed = 7, .answer = 3}};

TEST(Sampling, TogetherAnswersDrawWhatTheyDrawAlone) {
  const at::Tensor rows = at::sin(at::arange(9 * 331, at::kFloat).view({9, 331}) * 7.31) * 4;
  // bfloat16 has many equal logits, whose order decides.
  for (const at::Tensor& logits : {rows, rows.to(at::kBFloat16)}) {
    std::vector<Sampler> samplers;
    for (const Sampling& sampling : different) samplers.emplace_back(sampling);
    for (int64_t index = 0; index < 200; ++index) {
      const std::vector<int64_t> context = {index, 5, 5, -1, 330 - index};
      std::vector<Sampler::Draw> draws;
      std::vector<int64_t> alone;
      for (size_t i = 0; i < samplers.size(); ++i) {
        draws.push_back({&samplers[i], context, index});
        alone.push_back(samplers[i].pick(logits[static_cast<int64_t>(i)], context, index));
      }
      ASSERT_EQ(Sampler::pick_together(logits, draws), alone) << "token " << index;
    }
  }
}

TEST(Sampling, TogetherAnswersFollowTheirProbabilities) {
  const Sampling sampling{.temperature = 1, .top_p = 0.75, .seed = 6};
  const Sampler sampler(sampling);
  std::vector<Sampler::Draw> draws;
  for (int64_t i = 0; i < many; ++i) draws.push_back({&sampler, {}, i});
  std::vector<double> counts(shares.size());
  for (const int64_t token : Sampler::pick_together(logits().expand({many, -1}), draws))
    ++counts[static_cast<size_t>(token)];
  expect_counts(counts, {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85});
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
