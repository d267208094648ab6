// gemm_few_rows.cu: matrix products of up to eight rows in 16 bits. Such a product is limited by the time to read the
// weight once, so tensor cores have nothing to gain: a warp computes the dot products of one row of the weight with all
// rows of x, and reads 512 consecutive bytes of it at a time.
#include "common/cuda_packs.cuh"
#include "gemm_few_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int pack = 8, most_rows = 8, warps = 4, in_flight = 4; // packs of a weight that a thread has on the way

struct Problem {
  const void *x, *weight, *bias, *residual;
  void* y;
  std::int64_t x_stride, weight_stride, residual_stride, y_stride;
  int rows, inner, width;
};

template <class T, int of_rows>
__global__ void __launch_bounds__(warps* warp_size) few_rows_kernel(const __grid_constant__ Problem p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            column = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / warp_size;
  if (column >= p.width) return;
  const T *weight = static_cast<const T*>(p.weight) + column * p.weight_stride, *x = static_cast<const T*>(p.x);
  float sums[of_rows] = {};
  constexpr int step = warp_size * pack;
  for (int begin = lane * pack; begin < p.inner; begin += in_flight * step) {
    Pack<T, pack> parts[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (begin + i * step < p.inner) parts[i].load(weight + begin + i * step);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int from = begin + i * step;
      if (from >= p.inner) break;
      float of_weight[pack];
      parts[i].widen(of_weight);
#pragma unroll
      for (int row = 0; row < of_rows; ++row) {
        if (row >= p.rows) break;
        float of_x[pack];
        read(x + row * p.x_stride + from, of_x);
#pragma unroll
        for (int k = 0; k < pack; ++k) sums[row] = fmaf(of_x[k], of_weight[k], sums[row]);
      }
    }
  }
  float own = 0; // that of the row with the lane's number
#pragma unroll
  for (int row = 0; row < of_rows; ++row) {
    float sum = sums[row];
#pragma unroll
    for (int apart = warp_size / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (lane == row) own = sum;
  }
  if (lane >= p.rows) return;
  if (p.bias) own += static_cast<float>(static_cast<const T*>(p.bias)[column]);
  if (p.residual) own += static_cast<float>(static_cast<const T*>(p.residual)[lane * p.residual_stride + column]);
  static_cast<T*>(p.y)[lane * p.y_stride + column] = T(own);
}

template <class T, int of_rows>
void launch(const Device& device, const Problem& p) {
  few_rows_kernel<T, of_rows>
      <<<static_cast<unsigned>((p.width + warps - 1) / warps), warps * warp_size, 0, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace

bool few_rows_supports(const SkinnyGemmShape& shape) {
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) && shape.rows <= most_rows && !shape.weight_transposed &&
         shape.inner % pack == 0;
}

bool few_rows_takes(const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  return few_rows_supports(shape) && !o.gelu && !o.gelu_input.data && !o.compensation.data && !o.y_compensation.data &&
         !o.sum.data && !o.sums.required();
}

void few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  const Problem p{o.x.data,
                  o.weight.data,
                  o.bias,
                  o.residual.data,
                  o.y.data,
                  o.x.stride,
                  o.weight.stride,
                  o.residual.stride,
                  o.y.stride,
                  static_cast<int>(shape.rows),
                  static_cast<int>(shape.inner),
                  static_cast<int>(shape.width)};
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (p.rows == 1) return launch<T, 1>(device, p);
    if (p.rows == 2) return launch<T, 2>(device, p);
    if (p.rows <= 4) return launch<T, 4>(device, p);
    launch<T, most_rows>(device, p);
  });
}

} // namespace fvlm::plugins
