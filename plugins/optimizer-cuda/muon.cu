// muon.cu: Muon's elementwise kernels: momentum and its norm, the division by the norm, and the parameter update. 64
// blocks per matrix, all matrices of a batch in one launch. A step of fVLM-135M's matrices (127 M elements, bf16 copy),
// products included, takes 5.8 ms on an H200 (bench/LOG.md, 2026-11-23).
#include "common/arena.h"
#include "common/cuda_packs.cuh"
#include "muon.h"

namespace fvlm::plugins {
namespace {

constexpr int threads = 256, hyperparameters = 5;

// A block processes every muon_parts-th row of a matrix.
template <class Visit>
__device__ void for_each_element(std::int64_t rows, std::int64_t cols, const Visit& visit) {
  for (std::int64_t row = blockIdx.x; row < rows; row += muon_parts)
    for (std::int64_t col = threadIdx.x; col < cols; col += threads) visit(row, col);
}

__device__ double block_sum(double value) {
  __shared__ double sums[threads];
  sums[threadIdx.x] = value;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[0];
}

template <class Gradient, class Moment, class Update>
__global__ void __launch_bounds__(threads)
    momentum_kernel(ArenaStep p, MuonBatch batch, Update* update, double* squares) {
  if (*p.skip != 0) return;
  const fvlm_optimizer_segment segment = batch.segments[blockIdx.y];
  const float* hyper = p.hyper + segment.group * hyperparameters;
  const float scale = *p.scale, keep = hyper[1], add = static_cast<float>(1 - static_cast<double>(keep));
  const bool nesterov = hyper[2] != 0;
  const auto* gradient = static_cast<const Gradient*>(p.gradient) + segment.offset;
  auto* momentum = static_cast<Moment*>(p.moment) + segment.offset;
  update += blockIdx.y * batch.shape.rows * batch.shape.cols;
  double sum = 0;
  for_each_element(batch.shape.rows, batch.shape.cols, [&](std::int64_t row, std::int64_t col) {
    float out = 0;
    if (row < segment.rows && col < segment.cols) {
      const std::int64_t at = row * segment.cols + col;
      const float g = static_cast<float>(gradient[at]) * scale, old = static_cast<float>(momentum[at]);
      // Like torch.lerp, which interpolates from the nearer end.
      const float m = add < 0.5f ? old + add * (g - old) : g - (g - old) * keep;
      momentum[at] = Moment(m);
      out = !nesterov ? m : keep < 0.5f ? g + keep * (m - g) : m - (m - g) * add;
    }
    update[row * batch.shape.cols + col] = Update(out);
    sum += static_cast<double>(out) * static_cast<double>(out);
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) squares[blockIdx.y * muon_parts + blockIdx.x] = sum;
}

template <class Update>
__global__ void __launch_bounds__(threads)
    normalize_kernel(ArenaStep p, MuonBatch batch, Update* update, const double* squares) {
  if (*p.skip != 0) return;
  const double part = threadIdx.x < muon_parts ? squares[blockIdx.y * muon_parts + threadIdx.x] : 0;
  const auto norm = static_cast<float>(sqrt(block_sum(part)));
  const float epsilon = p.hyper[batch.segments[blockIdx.y].group * hyperparameters + 4];
  const float divisor = norm < epsilon ? epsilon : norm; // propagates NaN
  update += blockIdx.y * batch.shape.rows * batch.shape.cols;
  for_each_element(batch.shape.rows, batch.shape.cols, [&](std::int64_t row, std::int64_t col) {
    Update& value = update[row * batch.shape.cols + col];
    value = Update(static_cast<float>(value) / divisor);
  });
}

template <class Copy, class Update>
__global__ void __launch_bounds__(threads) apply_kernel(ArenaStep p, MuonBatch batch, const Update* update) {
  if (*p.skip != 0) return;
  const fvlm_optimizer_segment segment = batch.segments[blockIdx.y];
  const float* hyper = p.hyper + segment.group * hyperparameters;
  const double lr = hyper[0], ratio = static_cast<double>(segment.rows) / static_cast<double>(segment.cols);
  const auto keep = static_cast<float>(1 - lr * static_cast<double>(hyper[3]));
  const auto size = static_cast<float>(lr * sqrt(max(1.0, ratio)));
  update += blockIdx.y * batch.shape.rows * batch.shape.cols;
  for_each_element(segment.rows, segment.cols, [&](std::int64_t row, std::int64_t col) {
    const std::int64_t at = segment.offset + row * segment.cols + col;
    const float value = p.master[at] * keep - size * static_cast<float>(update[row * batch.shape.cols + col]);
    p.master[at] = value;
    if constexpr (!std::is_same_v<Copy, NoCopy>) static_cast<Copy*>(p.copy)[at] = Copy(value);
  });
}

dim3 blocks_of(const MuonBatch& batch) {
  return {muon_parts, static_cast<unsigned>(batch.shape.count)};
}

} // namespace

void muon_momentum(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                   void* update, double* squares) {
  sdk::dispatch<float, BFloat16>(dtype_of_products(types), [&](auto product) {
    using Update = typename decltype(product)::type;
    auto* out = static_cast<Update*>(update);
    sdk::dispatch<float, BFloat16, Half>(types.gradient, [&](auto gradient) {
      sdk::dispatch<float, BFloat16>(types.moment, [&](auto moment) {
        momentum_kernel<typename decltype(gradient)::type, typename decltype(moment)::type>
            <<<blocks_of(batch), threads, 0, stream>>>(step, batch, out, squares);
      });
    });
    sdk::check_cuda(cudaGetLastError(), "launch");
    normalize_kernel<<<blocks_of(batch), threads, 0, stream>>>(step, batch, out, squares);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void muon_apply(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                const void* update) {
  sdk::dispatch<NoCopy, BFloat16, Half>(types.copy, [&](auto copy) {
    using Copy = typename decltype(copy)::type;
    // the same as dtype_of_products(types)
    using Update = std::conditional_t<std::is_same_v<Copy, NoCopy>, float, BFloat16>;
    apply_kernel<Copy><<<blocks_of(batch), threads, 0, stream>>>(step, batch, static_cast<const Update*>(update));
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
