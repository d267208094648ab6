#include "model/encoder/learned_lines.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace fvlm::model {
namespace {

// For each patch of a line of `size` the learned position of `side` at the same fraction of the line, computed with
// transformers' operations in float32: rounding decides where a fraction meets a boundary.
std::vector<Between> nearest(int64_t size, int64_t side) {
  const double step = 1.0 / static_cast<double>(side);
  const at::Tensor boundaries = at::arange(step, 1.0, step, at::kFloat),
                   found = at::bucketize(at::arange(size, at::kFloat) / static_cast<double>(size), boundaries,
                                         /*out_int32=*/false, /*right=*/true);
  std::vector<Between> line;
  for (int64_t i = 0; i < size; ++i) line.push_back({{found.data_ptr<int64_t>()[i]}, {1}});
  return line;
}

// The neighbors from the position `first` on, those beyond the margins in the place of the one there.
Between among(int64_t first, int64_t side, std::vector<float> shares) {
  Between out{{}, std::move(shares)};
  for (int64_t i = first; i < first + std::ssize(out.shares); ++i)
    out.neighbors.push_back(std::clamp<int64_t>(i, 0, side - 1));
  return out;
}

Between linear(int64_t index, int64_t size, int64_t side, bool centers) {
  const auto patch = static_cast<float>(index), positions = static_cast<float>(side);
  const float place = centers ? (patch + 0.5F) * positions / static_cast<float>(size) - 0.5F
                              : patch * (positions - 1) / static_cast<float>(std::max<int64_t>(size - 1, 1)),
              before = std::floor(place);
  return among(static_cast<int64_t>(before), side, {1 - (place - before), place - before});
}

// As grid_sample of PyTorch has it.
Between cubic(int64_t index, int64_t size, int64_t side) {
  constexpr float a = -0.75F; // the slope at the next neighbor
  const float fraction = (static_cast<float>(index) + 0.5F) / static_cast<float>(size) * 2 - 1,
              place = ((fraction + 1) * static_cast<float>(side) - 1) / 2, before = std::floor(place),
              t = place - before;
  const auto inner = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto outer = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  return among(static_cast<int64_t>(before) - 1, side, {outer(1 + t), inner(t), inner(1 - t), outer(2 - t)});
}

// Where a line of `size` patches has its patch `index` on a line of `side` learned positions, as antialiased linear
// interpolation has it: a share of each, computed in float32 as transformers does.
std::vector<float> antialiased(int64_t index, int64_t size, int64_t side) {
  const float scale = static_cast<float>(side) / static_cast<float>(size), reach = std::max(scale, 1.0F),
              center = scale * (static_cast<float>(index) + 0.5F);
  const auto first = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5F), 0),
             end = std::min(static_cast<int64_t>(center + reach + 0.5F), side);
  std::vector<float> shares(static_cast<size_t>(side));
  float sum = 0;
  for (int64_t place = first; place < end; ++place) {
    const float distance = std::abs((static_cast<float>(place) - center + 0.5F) * (1 / reach));
    sum += shares[static_cast<size_t>(place)] = std::max(1 - distance, 0.0F);
  }
  for (float& share : shares) share /= sum;
  return shares;
}

} // namespace

std::vector<Between> learned_line(int64_t size, const VisionConfig& config) {
  const int64_t side = config.position_side();
  if (config.position_buckets) return nearest(size, side);
  std::vector<Between> line;
  for (int64_t i = 0; i < size; ++i)
    line.push_back(config.position_cubic ? cubic(i, size, side) : linear(i, size, side, config.position_centers));
  return line;
}

at::Tensor antialiased_shares(const CellLayout& layout, int64_t merge, int64_t side) {
  std::vector<at::Tensor> all;
  int64_t rows = layout.slots * merge * merge;
  for (const ImageGrid& image : layout.images) {
    const auto lines_of = [&](int64_t size) {
      std::vector<float> lines;
      for (int64_t i = 0; i < size; ++i) {
        const std::vector<float> shares = antialiased(i, size, side);
        lines.insert(lines.end(), shares.begin(), shares.end());
      }
      return at::tensor(lines, at::kFloat);
    };
    // [rows, columns, lines of a cell, columns of a cell, lines of positions, columns of positions]
    const at::Tensor lines = lines_of(image.rows * merge).view({image.rows, 1, merge, 1, side, 1}),
                     columns = lines_of(image.columns * merge).view({1, image.columns, 1, merge, 1, side});
    const at::Tensor step = (lines * columns).view({-1, side * side});
    for (int64_t i = 0; i < image.steps; ++i) all.push_back(step);
    rows -= image.steps * step.size(0);
  }
  all.push_back(at::zeros({rows, side * side}, at::kFloat));
  return at::concat(all);
}

} // namespace fvlm::model
