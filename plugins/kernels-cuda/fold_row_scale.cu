// fold_row_scale.cu: the operation SCALED_ROWS: folds layer-scale into the linear before it by scaling the rows of
// weight and bias, for a stack of linears at once; backward maps gradients of the folded weights to those of scale,
// weight and bias. A warp processes a row, 16 bytes per lane, in one pass.
#include "common/cuda_columns.cuh"
#include "launches.h"

namespace fvlm::plugins {
namespace {

constexpr int threads = 256, rows_of_block = threads / warp_size;

template <class Type>
__device__ Type* row_at(const Matrices& matrices, std::int64_t matrix, std::int64_t row) {
  return static_cast<Type*>(matrices.data) + matrix * matrices.matrix + row * matrices.row;
}

struct RowIndex {
  std::int64_t matrix, row;
};
// Returns false past the last row.
__device__ bool find_row(const FoldRowScale& p, RowIndex& index) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp_size;
  index = {number / p.width, number % p.width};
  return index.matrix < p.matrices;
}

template <class Element, int pack>
__global__ void __launch_bounds__(threads) forward_kernel(FoldRowScale p) {
  RowIndex index;
  if (!find_row(p, index)) return;
  const auto [matrix, row] = index;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const float scale = static_cast<float>(*at<const Element>(p.scale, matrix, row));
  const Element* from = row_at<const Element>(p.weight, matrix, row);
  Element* to = row_at<Element>(p.scaled_weight, matrix, row);
  for (std::int64_t i = lane * pack; i < p.inner; i += warp_size * pack) {
    float values[pack];
    read(from + i, values);
#pragma unroll
    for (float& value : values) value *= scale;
    write(to + i, values);
  }
  if (lane == 0)
    *at<Element>(p.scaled_bias, matrix, row) =
        Element(scale * static_cast<float>(*at<const Element>(p.bias, matrix, row)));
}

template <class Gradient>
__device__ void write_gradient(Gradient* to, float value, bool accumulate) {
  *to = Gradient(accumulate ? static_cast<float>(*to) + value : value);
}

template <class Element, class Gradient, int pack>
__global__ void __launch_bounds__(threads) backward_kernel(FoldRowScale p) {
  RowIndex index;
  if (!find_row(p, index)) return;
  const auto [matrix, row] = index;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const float scale = static_cast<float>(*at<const Element>(p.scale, matrix, row));
  float dot = 0;
  if (p.scaled_weight.data) {
    const Element* weight = row_at<const Element>(p.weight, matrix, row);
    const float* d_scaled = row_at<const float>(p.scaled_weight, matrix, row);
    Gradient* to = p.d_weight.data ? row_at<Gradient>(p.d_weight, matrix, row) : nullptr;
    for (std::int64_t i = lane * pack; i < p.inner; i += warp_size * pack) {
      float d[pack], values[pack];
      read(d_scaled + i, d);
      read(weight + i, values);
#pragma unroll
      for (int j = 0; j < pack; ++j) {
        dot = fmaf(d[j], values[j], dot);
        d[j] *= scale;
      }
      if (!to) continue;
      if (p.accumulate) {
        read(to + i, values);
#pragma unroll
        for (int j = 0; j < pack; ++j) d[j] += values[j];
      }
      write(to + i, d);
    }
  }
  dot = warp_sum(dot);
  if (lane != 0) return;
  const float d_bias = p.scaled_bias.data ? *at<const float>(p.scaled_bias, matrix, row) : 0;
  if (p.d_scale.data)
    write_gradient(at<Gradient>(p.d_scale, matrix, row),
                   fmaf(d_bias, static_cast<float>(*at<const Element>(p.bias, matrix, row)), dot), p.accumulate);
  if (p.d_bias.data) write_gradient(at<Gradient>(p.d_bias, matrix, row), scale * d_bias, p.accumulate);
}

// Calls body(element type, pack size, number of blocks).
template <class Body>
void launch(const FoldRowScale& p, const Body& body) {
  if (p.matrices == 0 || p.width == 0) return;
  const std::int64_t blocks = (p.matrices * p.width + rows_of_block - 1) / rows_of_block;
  if (blocks > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld x %lld rows exceed the grid", static_cast<long long>(p.matrices),
                       static_cast<long long>(p.width));
  with_packs({p.dtype, 0, 0, p.vectorized},
             [&](auto element, auto size) { body(element, size, static_cast<unsigned>(blocks)); });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace

void fold_row_scale_forward(const Device& device, const FoldRowScale& p) {
  launch(p, [&](auto element, auto size, unsigned blocks) {
    forward_kernel<typename decltype(element)::type, size()><<<blocks, threads, 0, device.stream>>>(p);
  });
}

void fold_row_scale_backward(const Device& device, const FoldRowScale& p) {
  launch(p, [&](auto element, auto size, unsigned blocks) {
    using Element = typename decltype(element)::type;
    if (p.gradient == sdk::float32)
      backward_kernel<Element, float, size()><<<blocks, threads, 0, device.stream>>>(p);
    else
      backward_kernel<Element, Element, size()><<<blocks, threads, 0, device.stream>>>(p);
  });
}

} // namespace fvlm::plugins
