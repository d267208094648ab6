#include "data/media/resize_loops.h"

#include <algorithm>

namespace fvlm {
namespace {

constexpr int32_t half = 1 << (weight_bits - 1);

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

void across_line(const Taps& taps, const uint8_t* in, uint8_t* out) {
  for (int64_t x = 0; x < taps.out; ++x, out += 3) {
    const int32_t* weights = taps.weights.data() + x * taps.width;
    const uint8_t* pixel = in + taps.first[static_cast<size_t>(x)] * int64_t{3};
    int32_t red = half, green = half, blue = half;
    for (int32_t tap = 0; tap < taps.count[static_cast<size_t>(x)]; ++tap, pixel += 3) {
      red += pixel[0] * weights[tap];
      green += pixel[1] * weights[tap];
      blue += pixel[2] * weights[tap];
    }
    out[0] = rounded(red);
    out[1] = rounded(green);
    out[2] = rounded(blue);
  }
}

void across(const Taps& taps, int64_t lines, const uint8_t* in, uint8_t* out) {
  for (int64_t line = 0; line < lines; ++line) across_line(taps, in + line * taps.in * 3, out + line * taps.out * 3);
}

void down(const Taps& taps, int64_t row, const uint8_t* in, int64_t bytes, uint8_t* out) {
  const int32_t* weights = taps.weights.data() + row * taps.width;
  const uint8_t* first = in + taps.first[static_cast<size_t>(row)] * bytes;
  const int32_t count = taps.count[static_cast<size_t>(row)];
  for (int64_t x = 0; x < bytes; ++x) {
    int32_t sum = half;
    for (int32_t tap = 0; tap < count; ++tap) sum += first[tap * bytes + x] * weights[tap];
    out[x] = rounded(sum);
  }
}

} // namespace

const ResizeLoops& plain_resize_loops() {
  static constexpr ResizeLoops loops{"plain", across, down};
  return loops;
}

const ResizeLoops& fastest_resize_loops() {
  static const ResizeLoops* const avx2 = avx2_resize_loops();
  return avx2 ? *avx2 : plain_resize_loops();
}

} // namespace fvlm
