#include "data/media/resize_taps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fvlm {
namespace {

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double bilinear(double x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

struct Kernel {
  double (*weight)(double);
  double support; // in pixels of the coarser grid
};

Kernel kernel_of(ResizeFilter filter) {
  switch (filter) {
  case ResizeFilter::bilinear:
    return {bilinear, 1};
  case ResizeFilter::lanczos:
    return {lanczos, 3};
  case ResizeFilter::bicubic:
    break;
  }
  return {bicubic, 2};
}

int32_t fixed_point(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << weight_bits));
}

int32_t pair(int32_t first, int32_t second) {
  return static_cast<int32_t>((static_cast<uint32_t>(first) & 0xffff) | static_cast<uint32_t>(second) << 16);
}

} // namespace

// Every operation in Pillow's order, so that the last bit agrees.
Taps::Taps(int64_t in_, int64_t out_, ResizeFilter filter)
    : in(in_), out(out_), first(static_cast<size_t>(out_)), count(static_cast<size_t>(out_)) {
  const auto [weight_at, support] = kernel_of(filter);
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double coarseness = std::max(scale, 1.0), reach = support * coarseness, inverse = 1.0 / coarseness;
  width = (static_cast<int64_t>(std::ceil(reach)) * 2 + 1 + 3) / 4 * 4;
  weights.assign(static_cast<size_t>(out * width), 0);
  std::vector<double> exact(static_cast<size_t>(width));
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    // NOLINTBEGIN(bugprone-incorrect-roundings): as Pillow rounds
    const auto begin = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
    const auto end = std::min(static_cast<int64_t>(center + reach + 0.5), in);
    // NOLINTEND(bugprone-incorrect-roundings)
    double sum = 0;
    for (int64_t x = begin; x < end; ++x)
      sum += exact[static_cast<size_t>(x - begin)] = weight_at((static_cast<double>(x) - center + 0.5) * inverse);
    int32_t* row = weights.data() + i * width;
    for (int64_t x = 0; x < end - begin; ++x) {
      const double weight = exact[static_cast<size_t>(x)];
      row[x] = fixed_point(sum != 0.0 ? weight / sum : weight);
    }
    first[static_cast<size_t>(i)] = static_cast<int32_t>(begin);
    count[static_cast<size_t>(i)] = static_cast<int32_t>(end - begin);
  }
  pairs.resize(weights.size());
  constexpr int32_t mask = (1 << lower_bits) - 1;
  for (size_t four = 0; four < weights.size(); four += 4)
    for (size_t two = 0; two < 2; ++two) {
      const int32_t first_weight = weights[four + two * 2], second_weight = weights[four + two * 2 + 1];
      pairs[four + two] = pair(first_weight >> lower_bits, second_weight >> lower_bits);
      pairs[four + two + 2] = pair(first_weight & mask, second_weight & mask);
    }
}

} // namespace fvlm
