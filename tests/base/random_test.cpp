#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace fvlm;

TEST(Random, PhiloxMatchesKnownAnswers) {
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, DependsOnSeedNameAndIndexOnly) {
  RandomStream one(7, "q_static"), same(7, "q_static"), other_seed(8, "q_static"), other_name(7, "q_init");
  EXPECT_EQ(one.bits(12345), same.bits(12345));
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i)
    equal +=
        (one.bits(i) == other_seed.bits(i)) + (one.bits(i) == other_name.bits(i)) + (one.bits(i) == one.bits(i + 1));
  EXPECT_LE(equal, 1);
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  RandomStream stream(42, "moments");
  constexpr int count = 200000;
  double uniform = 0, uniform_squares = 0, normal = 0, squares = 0, fourth = 0, neighbours = 0;
  for (uint64_t i = 0; i < count; ++i) {
    double u = stream.uniform(i), n = stream.normal(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    uniform += u, uniform_squares += u * u;
    normal += n, squares += n * n, fourth += n * n * n * n, neighbours += n * stream.normal(i + 1);
  }
  // Within five standard deviations for a sample of this size.
  EXPECT_NEAR(uniform / count, 0.5, 5 * 0.2887 / std::sqrt(count));
  EXPECT_NEAR(uniform_squares / count, 1.0 / 3, 5 * 0.2981 / std::sqrt(count));
  EXPECT_NEAR(normal / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 5 * std::sqrt(2.0 / count));
  EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96.0 / count));
  EXPECT_NEAR(neighbours / count, 0, 5 / std::sqrt(count));
}
