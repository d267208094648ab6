#include "common/cuda_math.cuh"
#include "common/cuda_packs.cuh"
#include "finalize.h"
#include "softcap.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using std::int64_t;

constexpr int threads = 128, warps = threads / warp_size;
// With this headroom the label's exponential is 2^-56, so the sum of a row can be as small as that without underflow,
// and as large as 2^64, which is a loss of 83. For larger losses the row is recomputed from its largest logit.
constexpr float headroom = 56, max_total = 0x1p64f;

using Vector8 = Pack<BFloat16, 8>;

// Dot product of rows of `vectors` packs, computed by a warp and returned to all of its threads.
__device__ float dot(const BFloat16* one, const BFloat16* other, int vectors) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < vectors; i += warp_size) {
    float a[8], b[8];
    read(one + i * 8, a);
    read(other + i * 8, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(a[j], b[j], sum);
  }
  return warp_sum(sum);
}

__device__ BFloat16* row_from(const Matrix& matrix, int64_t row) {
  return static_cast<BFloat16*>(matrix.data) + row * matrix.row_stride;
}

// The logit of a word, computed by a warp and returned to all of its threads.
__device__ float logit_of(const LossTokens& t, int64_t row, int64_t word) {
  const float logit = dot(row_from(t.hidden, row), row_from(t.weight, word), static_cast<int>(t.width / 8));
  return t.softcap.bound == 0 ? logit : bound_fast(t.softcap, logit);
}

// One warp per row.
__global__ void __launch_bounds__(threads) shifts_kernel(LossTokens t) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
  if (row >= t.count) return;
  const int64_t target = t.targets[row];
  float shift = INFINITY;
  if (target >= t.vocab)
    shift = NAN;
  else if (target >= 0 && t.known_lse)
    shift = t.known_lse[row] * log2_e;
  else if (target >= 0)
    shift = logit_of(t, row, target) * log2_e + headroom;
  if (threadIdx.x % warp_size == 0) t.shifts[row] = shift;
}

struct Total {
  float shift, sum; // of 2^(logit log2(e) - shift)

  __device__ void add(const Total& other) {
    const float larger = fmaxf(shift, other.shift);
    if (larger == -INFINITY) return;
    sum = sum * exp2f(shift - larger) + other.sum * exp2f(other.shift - larger);
    shift = larger;
  }
};

// Recomputes the row's exponentials, shifted by the row's largest logit. Called by all threads of the block.
__device__ __noinline__ Total recompute_from_max(const LossTokens& t, int64_t row, BFloat16* exponentials) {
  __shared__ Total of_warp[warps];
  const int its_warp = static_cast<int>(threadIdx.x) / warp_size;
  Total total{-INFINITY, 0};
  for (int64_t word = its_warp; word < t.vocab; word += warps) total.add({logit_of(t, row, word) * log2_e, 1});
  if (threadIdx.x % warp_size == 0) of_warp[its_warp] = total;
  __syncthreads();
  total = of_warp[0];
  for (int i = 1; i < warps; ++i) total.add(of_warp[i]);
  if (!exponentials) return total;
  for (int64_t word = its_warp; word < t.vocab; word += warps) {
    const float logit = logit_of(t, row, word), slope = t.softcap.bound == 0 ? 1 : slope_of(t.softcap, logit);
    if (threadIdx.x % warp_size == 0) exponentials[word] = BFloat16(exp2f(logit * log2_e - total.shift) * slope);
  }
  __syncthreads();
  return total;
}

// One block per row. Loads that do not depend on the total are issued first.
__global__ void __launch_bounds__(threads) finalize_kernel(LossTokens t, Finalization s) {
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), vectors = static_cast<int>(t.width / 8);
  const bool is_leader = thread == 0, scales = s.d_losses && s.scaled_hidden.data;
  const BFloat16* from = row_from(t.hidden, row);
  Vector8 first;
  if (scales && thread < vectors) first.load(from + thread * 8);
  float sum = 0;
  if (!t.known_lse)
    for (int i = thread; i < s.part_count; i += threads) sum += s.parts[i * t.count + row];
  Total total{t.shifts[row], 1};
  const float d_loss = s.d_losses ? s.d_losses[row] : 0;
  const int64_t target = t.targets[row];
  BFloat16* exponentials =
      s.d_losses ? static_cast<BFloat16*>(s.exponentials.data) + row * s.exponentials.row_stride : nullptr;
  const bool has_label = target >= 0 && target < t.vocab;
  BFloat16 label_exponential = is_leader && exponentials && has_label ? exponentials[target] : BFloat16(0.0f);
  float label_slope = 1;
  if (t.softcap.bound != 0 && exponentials && has_label && thread < warp_size)
    label_slope = slope_of(t.softcap, logit_of(t, row, target));

  float factor = 0;
  if (target < 0) {
    if (is_leader && s.losses) s.losses[row] = 0;
    if (is_leader && s.lse) s.lse[row] = 0;
  } else {
    if (!t.known_lse) {
      const float label = total.shift - headroom;
      total.sum = GroupSum<threads>()(sum);
      if (!(total.sum <= max_total) && has_label) {
        total = recompute_from_max(t, row, exponentials);
        if (is_leader && exponentials) label_exponential = exponentials[target];
      }
      const float row_lse = total.shift + log2f(total.sum);
      const float loss = (row_lse - label) * ln_2;
      if (is_leader && s.losses) s.losses[row] = loss < 0 ? 0 : loss;
      if (is_leader && s.lse) s.lse[row] = row_lse * ln_2;
    }
    if (!exponentials) return;
    factor = d_loss / total.sum;
    if (is_leader && has_label) {
      const float label_gradient = static_cast<float>(label_exponential) - total.sum * label_slope;
      exponentials[target] = BFloat16(label_gradient > 0 ? 0.0f : label_gradient);
    }
  }
  if (!exponentials) return;
  if (is_leader) s.factors[row] = factor;
  if (!scales) return;
  BFloat16* to = row_from(s.scaled_hidden, row);
  for (int i = thread; i < vectors; i += threads) {
    if (i != thread) first.load(from + i * 8);
    float x[8] = {};
    if (target >= 0) {
      first.widen(x);
#pragma unroll
      for (float& each : x) each *= factor;
    }
    write(to + i * 8, x);
  }
}

// One block per row.
__global__ void __launch_bounds__(threads) scale_kernel(Matrix matrix, int64_t width, const float* factors) {
  BFloat16* row = static_cast<BFloat16*>(matrix.data) + static_cast<int64_t>(blockIdx.x) * matrix.row_stride;
  const float factor = factors[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < width / 8; i += threads) {
    float x[8];
    read(row + i * 8, x);
#pragma unroll
    for (float& each : x) each *= factor;
    write(row + i * 8, x);
  }
}

} // namespace

void compute_shifts(const Device& device, const LossTokens& tokens) {
  shifts_kernel<<<static_cast<unsigned>((tokens.count + warps - 1) / warps), threads, 0, device.stream>>>(tokens);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void finalize(const Device& device, const LossTokens& tokens, const Finalization& settlement) {
  finalize_kernel<<<static_cast<unsigned>(tokens.count), threads, 0, device.stream>>>(tokens, settlement);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void scale_rows(const Device& device, const Matrix& matrix, int64_t rows, int64_t width, const float* factors) {
  scale_kernel<<<static_cast<unsigned>(rows), threads, 0, device.stream>>>(matrix, width, factors);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
