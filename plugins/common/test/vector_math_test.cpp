// vector_math_test.cpp: tests vector_math.h against float64, at every instruction set that this machine supports.
#include "common/test/vector_functions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fvlm::plugins {

void PrintTo(CpuLevel level, std::ostream* out) {
  *out << (level == CpuLevel::baseline ? "baseline" : level == CpuLevel::avx2 ? "avx2" : "avx512");
}

namespace {

struct Worst {
  double error = 0;
  float at = 0;
};

class VectorMath : public ::testing::TestWithParam<CpuLevel> {
 protected:
  const VectorFunctions& functions = vector_functions(GetParam());

  // The largest measure(got, exact) over `count` evenly spaced numbers in [low, high].
  template <class Exact, class Measure>
  static Worst worst(VectorFunctions::Function function, float low, float high, const Exact& exact,
                     const Measure& measure) {
    constexpr std::int64_t count = 1 << 20;
    std::vector<float> x(count), y(count);
    for (std::int64_t i = 0; i < count; ++i)
      x[static_cast<std::size_t>(i)] =
          static_cast<float>(low + (static_cast<double>(high) - low) * static_cast<double>(i) / (count - 1));
    function(x.data(), count, y.data());
    Worst found;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = measure(static_cast<double>(y[i]), exact(static_cast<double>(x[i])));
      if (!(error <= found.error)) found = {error, x[i]};
    }
    return found;
  }

  static float one(VectorFunctions::Function function, float x) {
    const std::vector<float> in(16, x);
    std::vector<float> out(16);
    function(in.data(), 16, out.data());
    return out[0];
  }
};

double absolute(double got, double exact) {
  return std::fabs(got - exact);
}

double units_in_the_last_place(double got, double exact) {
  return std::fabs(got - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

constexpr double quarter_turn = 1.57079632679489661923;

TEST_P(VectorMath, exponentials_are_exact_to_little_more_than_a_unit_in_the_last_place) {
  const Worst two = worst(
      functions.exp2, -126, 127, [](double x) { return std::exp2(x); }, units_in_the_last_place);
  EXPECT_LE(two.error, 1.2) << "exp2 at " << two.at;
  const Worst e = worst(
      functions.exp, -86.6f, 88.7f, [](double x) { return std::exp(x); }, units_in_the_last_place);
  EXPECT_LE(e.error, 1.3) << "exp at " << e.at;
  const Worst near = worst(
      functions.exp, -0.4f, 0.4f, [](double x) { return std::exp(x); }, units_in_the_last_place);
  EXPECT_LE(near.error, 1.2) << "exp at " << near.at;
}

TEST_P(VectorMath, exponentials_at_the_ends_of_their_range) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(one(functions.exp2, -127), 0);
  EXPECT_EQ(one(functions.exp2, -1e30f), 0);
  EXPECT_EQ(one(functions.exp2, -infinity), 0);
  EXPECT_EQ(one(functions.exp2, 0), 1);
  EXPECT_TRUE(std::isnan(one(functions.exp2, nan)));
  EXPECT_EQ(one(functions.exp, -87), 0);
  EXPECT_EQ(one(functions.exp, -infinity), 0);
  EXPECT_EQ(one(functions.exp, 0), 1);
  EXPECT_EQ(one(functions.exp, 88.8f), infinity);
  EXPECT_EQ(one(functions.exp, infinity), infinity);
  EXPECT_TRUE(std::isnan(one(functions.exp, nan)));
}

TEST_P(VectorMath, sigmoid_is_exact_to_three_units_and_saturates) {
  const Worst s = worst(
      functions.sigmoid, -80, 80, [](double x) { return 1 / (1 + std::exp(-x)); }, units_in_the_last_place);
  EXPECT_LE(s.error, 3.1) << "at " << s.at;
  EXPECT_EQ(one(functions.sigmoid, -1000), 0);
  EXPECT_EQ(one(functions.sigmoid, 1000), 1);
  EXPECT_TRUE(std::isnan(one(functions.sigmoid, std::numeric_limits<float>::quiet_NaN())));
}

TEST_P(VectorMath, tanh_is_exact_to_two_units_and_saturates) {
  const Worst t = worst(
      functions.tanh, -20, 20, [](double x) { return std::tanh(x); }, units_in_the_last_place);
  EXPECT_LE(t.error, 2.5) << "at " << t.at;
  EXPECT_EQ(one(functions.tanh, 0), 0);
  EXPECT_EQ(one(functions.tanh, -1000), -1);
  EXPECT_EQ(one(functions.tanh, 1000), 1);
  EXPECT_TRUE(std::isnan(one(functions.tanh, std::numeric_limits<float>::quiet_NaN())));
}

TEST_P(VectorMath, the_normal_distribution_is_exact_to_one_in_nine_million) {
  const Worst near = worst(functions.normal_cdf, -7, 7, normal_cdf, absolute);
  EXPECT_LE(near.error, 1.1e-7) << "at " << near.at;
  const Worst far = worst(functions.normal_cdf, -1000, -5, normal_cdf, absolute);
  EXPECT_LE(far.error, 1e-8) << "at " << far.at;
  EXPECT_EQ(one(functions.normal_cdf, 0), 0.5f);
  EXPECT_EQ(one(functions.normal_cdf, -1e30f), 0);
  EXPECT_EQ(one(functions.normal_cdf, 1e30f), 1);
  EXPECT_TRUE(std::isnan(one(functions.normal_cdf, std::numeric_limits<float>::quiet_NaN())));
}

TEST_P(VectorMath, sine_and_cosine_of_quarter_turns) {
  const Worst sine = worst(
      functions.sine, -9, 9, [](double x) { return std::sin(x * quarter_turn); }, absolute);
  EXPECT_LE(sine.error, 1.2e-7) << "at " << sine.at;
  const Worst cosine = worst(
      functions.cosine, -9, 9, [](double x) { return std::cos(x * quarter_turn); }, absolute);
  EXPECT_LE(cosine.error, 1.2e-7) << "at " << cosine.at;
}

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found{CpuLevel::baseline};
  if (cpu_level() >= CpuLevel::avx2) found.push_back(CpuLevel::avx2);
  if (cpu_level() >= CpuLevel::avx512) found.push_back(CpuLevel::avx512);
  return found;
}

INSTANTIATE_TEST_SUITE_P(levels, VectorMath, ::testing::ValuesIn(levels()), ::testing::PrintToStringParamName());

} // namespace
} // namespace fvlm::plugins
