// The vector loops against plain ones, and normalisation. pillow_test.py compares the results with Pillow.
#include "base/error.h"
#include "base/random.h"
#include "data/media/normalise.h"
#include "data/media/resize.h"
#include "data/media/resize_loops.h"

#include <gtest/gtest.h>

#include <cmath>

namespace {

std::vector<uint8_t> noise(size_t bytes) {
  const fvlm::RandomStream random(3, "noise");
  std::vector<uint8_t> values(bytes);
  for (size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<uint8_t>(random.bits(i) % 4 == 0 ? 255 : random.bits(i) >> 8);
  return values;
}

TEST(Resize, VectorLoopsMatchPlainLoops) {
  const fvlm::ResizeLoops* fast = fvlm::avx2_resize_loops();
  if (!fast) GTEST_SKIP() << "this processor has no AVX2";
  const fvlm::ResizeLoops& plain = fvlm::plain_resize_loops();
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {640, 224}, {320, 224}, {224, 500}, {7, 3}, {1, 5}, {5, 1}, {1000, 7}, {33, 32}, {2, 2}})
    for (const auto filter : {fvlm::ResizeFilter::bicubic, fvlm::ResizeFilter::bilinear, fvlm::ResizeFilter::lanczos}) {
      const fvlm::Taps taps(in, out, filter);
      const int64_t lines = 7; // four together and three alone
      std::vector<uint8_t> pixels = noise(static_cast<size_t>(lines * in * 3));
      pixels.resize(pixels.size() + fvlm::resize_slack);
      std::vector<uint8_t> one(static_cast<size_t>(lines * out * 3)), other(one.size());
      plain.across(taps, lines, pixels.data(), one.data());
      fast->across(taps, lines, pixels.data(), other.data());
      EXPECT_EQ(one, other) << in << " pixels of a line to " << out;
      for (const int64_t bytes : {48, 21, 5}) {
        const std::vector<uint8_t> column = noise(static_cast<size_t>(in * bytes));
        std::vector<uint8_t> up(static_cast<size_t>(bytes)), down(up.size());
        for (int64_t row = 0; row < out; ++row) {
          plain.down(taps, row, column.data(), bytes, up.data());
          fast->down(taps, row, column.data(), bytes, down.data());
          ASSERT_EQ(up, down) << in << " lines of " << bytes << " bytes to " << out << ", line " << row;
        }
      }
    }
}

TEST(Resize, KeepsUniformColourAtAnySize) {
  for (const int64_t side : {1, 2, 63, 300}) {
    const fvlm::Image image{side, 2 * side, std::vector<uint8_t>(static_cast<size_t>(6 * side * side), 201)};
    std::vector<uint8_t> out(17 * 90 * 3);
    fvlm::resize(image, 17, 90, out);
    EXPECT_EQ(out, std::vector<uint8_t>(out.size(), 201)) << side;
  }
}

TEST(Resize, RefusesSizesThatDoNotFitTheMemory) {
  const fvlm::Image image{2, 2, std::vector<uint8_t>(12)};
  std::vector<uint8_t> out(12);
  EXPECT_THROW(fvlm::resize(image, 3, 2, out), fvlm::Error);
  EXPECT_THROW(fvlm::resize(image, 0, 2, {}), fvlm::Error);
  EXPECT_THROW(fvlm::resize({2, 2, std::vector<uint8_t>(11)}, 2, 2, out), fvlm::Error);
}

TEST(Normalise, SeparatesChannelsExactly) {
  std::vector<uint8_t> pixels(256 * 3);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>((i / 3 + i % 3 * 85) % 256);
  std::vector<float> out(pixels.size());
  fvlm::normalise(pixels, out);
  constexpr std::array<double, 3> mean{0.485, 0.456, 0.406}, deviation{0.229, 0.224, 0.225};
  double worst = 0;
  for (size_t channel = 0; channel < 3; ++channel)
    for (size_t i = 0; i < 256; ++i) {
      const double exact = (pixels[i * 3 + channel] / 255.0 - mean[channel]) / deviation[channel];
      worst = std::max(worst, std::abs(static_cast<double>(out[channel * 256 + i]) - exact));
    }
  EXPECT_LT(worst, 1e-6);
  EXPECT_THROW(fvlm::normalise(pixels, std::span(out).first(3)), fvlm::Error);
}

} // namespace
