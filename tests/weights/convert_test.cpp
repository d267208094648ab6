#include "base/random.h"
#include "model/weights/convert.h"
#include "weights/workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

using namespace fvlm;
using namespace fvlm::testing_weights;

namespace {

template <class To, class From>
std::vector<To> converted(const std::vector<From>& from, DType from_type, DType to_type,
                          uint64_t* overflowed = nullptr) {
  std::vector<To> out(from.size());
  uint64_t lost = convert(std::as_bytes(std::span(from)), from_type, std::as_writable_bytes(std::span(out)), to_type);
  if (overflowed) *overflowed = lost;
  return out;
}

std::vector<uint16_t> all_half_bits() {
  std::vector<uint16_t> out(65536);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint16_t>(i);
  return out;
}

// Doubles of all magnitudes, and the neighbours of each midpoint between two halves.
std::vector<double> hard_doubles() {
  std::vector<double> out{0.0,
                          -0.0,
                          65504,
                          65519.999999,
                          65520,
                          65535,
                          3.3895313892515355e38,
                          3.4e38,
                          1e300,
                          -1e300,
                          0x1p-24,
                          0x1p-25,
                          0x1.0000000000001p-25,
                          0x1p-133,
                          0x1p-134,
                          5e-324,
                          std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity()};
  RandomStream stream(3, "hard");
  for (uint64_t i = 0; i < 20000; ++i) {
    double exponent = std::floor(stream.uniform(3 * i) * 300 - 150);
    double number = std::ldexp(1 + stream.uniform(3 * i + 1), static_cast<int>(exponent));
    // A midpoint of bfloat16 or of float16, and a double next to it that rounds to the same float.
    double unit = std::ldexp(1.0, static_cast<int>(std::floor(std::log2(number))) - (i % 2 ? 8 : 11));
    double middle = (std::floor(number / unit) + 0.5 * (i % 3 == 0)) * unit;
    double hair = middle * 0x1p-40;
    for (double one : {number, middle, middle + hair, middle - hair})
      out.push_back(stream.bits(3 * i + 2) & 1 ? one : -one);
  }
  return out;
}

} // namespace

TEST(Convert, EveryHalfRoundTripsThroughWiderTypes) {
  for (DType half : {DType::f16, DType::bf16}) {
    auto bits = all_half_bits();
    auto as_float = converted<float>(bits, half, DType::f32);
    auto as_double = converted<double>(bits, half, DType::f64);
    auto back = converted<uint16_t>(as_float, DType::f32, half),
         back_too = converted<uint16_t>(as_double, DType::f64, half);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(as_float[i])) {
        EXPECT_TRUE(std::isnan(as_double[i]));
        EXPECT_TRUE(std::isnan(converted<float>(std::vector<uint16_t>{back[i]}, half, DType::f32)[0])) << i;
        continue;
      }
      ASSERT_EQ(static_cast<double>(as_float[i]), as_double[i]) << i;
      ASSERT_EQ(back[i], bits[i]) << as_float[i];
      ASSERT_EQ(back_too[i], bits[i]) << as_float[i];
    }
  }
}

// The definition itself: no other number of the type is nearer, and of two equally near the even one is taken.
TEST(Convert, RoundsToNearestEvenFromDoubleAndFloat) {
  for (DType half : {DType::f16, DType::bf16}) {
    double largest = half == DType::f16 ? 65504 : 0x1.fep127;
    double beyond = half == DType::f16 ? 65536 : 0x1p128; // what the next number would be
    auto values = converted<double>(all_half_bits(), half, DType::f64);
    auto check = [&](double number, uint16_t bits) {
      double got = values[bits];
      double distance = std::abs(number - (std::isinf(got) ? std::copysign(beyond, got) : got));
      if (std::isinf(number)) {
        EXPECT_EQ(got, number);
        return;
      }
      for (int step : {-1, 1}) {
        auto beside = static_cast<uint16_t>(bits + step);
        double other = values[beside];
        if (std::isnan(other) || std::signbit(other) != std::signbit(got)) continue;
        if (std::isinf(other)) other = std::copysign(beyond, other);
        double other_distance = std::abs(number - other);
        EXPECT_LE(distance, other_distance) << fmt::format("{} became {} of {}", number, got, name_of(half));
        if (distance == other_distance && std::abs(number) < beyond) {
          EXPECT_EQ(bits % 2, 0) << fmt::format("{} became {} of {}", number, got, name_of(half));
        }
      }
      if (std::abs(number) <= largest) {
        EXPECT_FALSE(std::isinf(got)) << number;
      }
      EXPECT_EQ(std::signbit(number), std::signbit(got)) << number;
    };
    auto doubles = hard_doubles();
    std::vector<float> floats(doubles.begin(), doubles.end());
    auto from_double = converted<uint16_t>(doubles, DType::f64, half),
         from_float = converted<uint16_t>(floats, DType::f32, half);
    for (size_t i = 0; i < doubles.size() && !HasFailure(); ++i) {
      check(doubles[i], from_double[i]);
      check(static_cast<double>(floats[i]), from_float[i]);
    }
  }
}

TEST(Convert, CountsFiniteNumbersThatBecameInfinite) {
  float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> numbers{1, 65504, 65519, 65520, -70000, infinity, -infinity, std::nanf("")};
  uint64_t overflowed = 99;
  converted<uint16_t>(numbers, DType::f32, DType::f16, &overflowed);
  EXPECT_EQ(overflowed, 2u);
  converted<uint16_t>(numbers, DType::f32, DType::bf16, &overflowed);
  EXPECT_EQ(overflowed, 0u);
  converted<double>(numbers, DType::f32, DType::f64, &overflowed);
  EXPECT_EQ(overflowed, 0u);
  converted<float>(std::vector<double>{1e39, 1}, DType::f64, DType::f32, &overflowed);
  EXPECT_EQ(overflowed, 1u);
}

TEST(Convert, CountsNumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers{1, -65504, infinity, -infinity, std::nanf(""), 0, 1e-40f};
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(numbers)), DType::f32), 3u);
  const auto halves = converted<uint16_t>(numbers, DType::f32, DType::f16),
             brains = converted<uint16_t>(numbers, DType::f32, DType::bf16);
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(halves)), DType::f16), 3u);
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(brains)), DType::bf16), 3u);
  const std::vector<double> doubles{1e300, std::nan("")};
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(doubles)), DType::f64), 1u);
}

TEST(Convert, BytesNeedNoAlignment) {
  std::vector<std::byte> from(9), to(5);
  float number = 1.5;
  std::memcpy(from.data() + 1, &number, 4);
  std::memcpy(from.data() + 5, &number, 4);
  convert(std::span(from).subspan(1), DType::f32, std::span(to).subspan(1), DType::bf16);
  EXPECT_EQ(to[1], std::byte{0xc0});
  EXPECT_EQ(to[2], std::byte{0x3f});
  EXPECT_EQ(to[4], std::byte{0x3f});
}
