#include "data/media/normalise.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fvlm {
namespace {

constexpr std::array<float, 3> mean{0.485F, 0.456F, 0.406F}, deviation{0.229F, 0.224F, 0.225F};

NormalizationTable make_table() {
  NormalizationTable table{};
  for (size_t channel = 0; channel < 3; ++channel)
    for (size_t value = 0; value < 256; ++value)
      table[channel][value] = (static_cast<float>(value) / 255.0F - mean[channel]) / deviation[channel];
  return table;
}

} // namespace

const NormalizationTable& imagenet_normalization() {
  static const NormalizationTable table = make_table();
  return table;
}

void normalise(std::span<const uint8_t> hwc, std::span<float> chw, const NormalizationTable& table) {
  if (hwc.size() != chw.size() || hwc.size() % 3 != 0)
    throw Error(ErrorKind::internal, "normalise: {} bytes to {} floats", hwc.size(), chw.size());
  const size_t pixels = hwc.size() / 3;
  float *red = chw.data(), *green = red + pixels, *blue = green + pixels;
  const uint8_t* in = hwc.data();
  for (size_t i = 0; i < pixels; ++i, in += 3) {
    red[i] = table[0][in[0]];
    green[i] = table[1][in[1]];
    blue[i] = table[2][in[2]];
  }
}

void denormalise(std::span<const float> chw, std::span<uint8_t> hwc, const NormalizationTable& table) {
  if (hwc.size() != chw.size() || hwc.size() % 3 != 0)
    throw Error(ErrorKind::internal, "denormalise: {} floats to {} bytes", chw.size(), hwc.size());
  const size_t pixels = hwc.size() / 3;
  for (size_t channel = 0; channel < 3; ++channel) {
    const double black = table[channel][0], scale = 255 / (table[channel][255] - black);
    for (size_t i = 0; i < pixels; ++i) {
      const double value = scale * (chw[channel * pixels + i] - black);
      hwc[3 * i + channel] = static_cast<uint8_t>(std::clamp(std::round(value), 0.0, 255.0));
    }
  }
}

} // namespace fvlm
