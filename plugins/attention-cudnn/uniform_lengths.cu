// uniform_lengths.cu: launched after cuDNN was called with fixed lengths. If the segments really are uniform, it zeros
// unused rows and returns; if not, it recomputes attention slowly, one warp per row and head. Launched early
// (programmatic dependent launch), the check costs little: 0.03 ms less for 12 layers of 64 frames on an H100
// (bench/LOG.md, 2026-11-22).
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_device.h"
#include "common/cuda_packs.cuh"
#include "uniform_lengths.h"
#include "zero_rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256, blocks = 132;
constexpr int max_parts = 4; // head_dim / 32, rounded up

// The expected positions of one side: full segments start `stride` rows apart and have `length` rows.
struct UniformSide {
  const std::int32_t* cu;
  int64_t stride;
  int length;
};
__device__ int segment_count(const UniformProblem& p) {
  return p.segments / p.step;
}
__device__ UniformSide uniform_side(const UniformProblem& p, Side which) {
  const bool of_q = which == Side::query;
  return {of_q ? p.cu_q : p.cu_kv, (of_q ? p.tokens_q : p.tokens_kv) / segment_count(p), of_q ? p.max_q : p.max_kv};
}

// How many segments from the first on are full while all others are empty; -1 if lengths are not uniform.
__device__ int full_segments(const UniformProblem& p, const UniformSide& side) {
  const int stride = static_cast<int>(side.stride), full = side.cu[p.segments] / stride;
  bool uniform = full * stride == side.cu[p.segments];
  for (int i = static_cast<int>(threadIdx.x); i < p.segments; i += threads) {
    const int segment = min(i / p.step, full), inside = i % p.step != 0 && segment < full ? side.length : 0;
    uniform = uniform && side.cu[i] == segment * stride + inside;
  }
  return __syncthreads_and(uniform) ? full : -1;
}

// Returns true if cuDNN's result is valid, and then zeros the unused rows. The kernel is launched while cuDNN's kernels
// still run (programmatic dependent launch), and waits for them here.
__device__ bool lengths_are_uniform(const UniformProblem& p, int zero_count) {
  wait_for_previous_kernel();
  const UniformSide q = uniform_side(p, Side::query), kv = uniform_side(p, Side::key);
  const int full = full_segments(p, q);
  if (full < 0 || full != full_segments(p, kv)) return false;
  const int64_t worker = blockIdx.x * threads + threadIdx.x;
  for (int i = 0; i < zero_count; ++i) {
    const ZeroFill& z = p.zeros[i];
    const UniformSide& side = z.side == Side::query ? q : kv;
    if (full < segment_count(p)) zero_rows(z, full * side.stride, z.rows, worker, blocks * threads);
    if (side.length == side.stride) continue;
    for (int segment = static_cast<int>(blockIdx.x); segment < full; segment += blocks)
      zero_rows(z, segment * side.stride + side.length, (segment + 1) * side.stride, threadIdx.x, threads);
  }
  return true;
}

// The segment of a row; `segments` if it is padding.
__device__ int segment_of(const std::int32_t* cu, int segments, int64_t row) {
  int low = 0, high = segments + 1; // invariant: cu[low] <= row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu[middle] <= row ? low : high) = middle;
  }
  return low;
}

// A head's row, distributed over a warp.
struct HeadRow {
  float at[max_parts];

  template <class T>
  __device__ static HeadRow of(const HeadTensor& rows, int64_t row, int64_t head, int head_dim) {
    HeadRow row_values;
    const T* from = static_cast<const T*>(rows.data) + row * rows.row_stride + head * rows.head_stride;
#pragma unroll
    for (int i = 0; i < max_parts; ++i) {
      const int column = i * warp_size + static_cast<int>(threadIdx.x) % warp_size;
      row_values.at[i] = column < head_dim ? static_cast<float>(from[column]) : 0;
    }
    return row_values;
  }
  template <class T>
  __device__ void store(const HeadTensor& rows, int64_t row, int64_t head, int head_dim) const {
    T* to = static_cast<T*>(rows.data) + row * rows.row_stride + head * rows.head_stride;
#pragma unroll
    for (int i = 0; i < max_parts; ++i) {
      const int column = i * warp_size + static_cast<int>(threadIdx.x) % warp_size;
      if (column < head_dim) to[column] = T(at[i]);
    }
  }
  __device__ void add(float factor, const HeadRow& other) {
#pragma unroll
    for (int i = 0; i < max_parts; ++i) at[i] += factor * other.at[i];
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (float& value : at) value *= factor;
  }
};

__device__ float dot(const HeadRow& one, const HeadRow& other) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < max_parts; ++i) sum += one.at[i] * other.at[i];
  return warp_sum(sum);
}

// Calls body(row, head), one warp per call.
template <class Body>
__device__ void for_each_head(int64_t rows, int heads, const Body& body) {
  for (int64_t i = (blockIdx.x * int64_t{threads} + threadIdx.x) / warp_size; i < rows * heads;
       i += blocks * threads / warp_size)
    body(i / heads, static_cast<int>(i % heads));
}

__device__ float& statistic(const UniformProblem& p, int head, int64_t row) {
  return p.lse[row * p.heads_q + head];
}

template <class T>
__global__ void __launch_bounds__(threads) verify_forward_kernel(UniformProblem p) {
  if (lengths_are_uniform(p, 1)) return;
  for_each_head(p.tokens_q, p.heads_q, [&](int64_t row, int head) {
    HeadRow sum{};
    const int s = segment_of(p.cu_q, p.segments, row), head_kv = head / (p.heads_q / p.heads_kv);
    if (s < p.segments && p.cu_kv[s] < p.cu_kv[s + 1]) {
      const HeadRow q = HeadRow::of<T>(p.q, row, head, p.head_dim);
      float row_max = -INFINITY, row_sum = 0;
      for (int64_t key = p.cu_kv[s]; key < p.cu_kv[s + 1]; ++key) {
        const float score = p.scale * dot(q, HeadRow::of<T>(p.k, key, head_kv, p.head_dim));
        const float running_max = fmaxf(row_max, score), rescale = expf(row_max - running_max),
                    weight = expf(score - running_max);
        row_max = running_max;
        row_sum = row_sum * rescale + weight;
        sum.scale(rescale);
        sum.add(weight, HeadRow::of<T>(p.v, key, head_kv, p.head_dim));
      }
      sum.scale(1 / row_sum);
      if (p.lse && threadIdx.x % warp_size == 0) statistic(p, head, row) = row_max + logf(row_sum);
    }
    sum.store<T>(p.out, row, head, p.head_dim);
  });
}

template <class T>
__global__ void __launch_bounds__(threads) verify_backward_kernel(UniformProblem p) {
  if (lengths_are_uniform(p, 3)) return;
  const int group_heads = p.heads_q / p.heads_kv;
  // The probability of a key for a query, and the gradient of their scaled score.
  const auto pair = [&](const HeadRow& q, const HeadRow& d_out, const HeadRow& out, const HeadRow& k, const HeadRow& v,
                        float row_lse, float& weight) {
    weight = expf(p.scale * dot(q, k) - row_lse);
    return weight * (dot(d_out, v) - dot(d_out, out)) * p.scale;
  };
  for_each_head(p.tokens_q, p.heads_q, [&](int64_t row, int head) {
    HeadRow d_q{};
    const int s = segment_of(p.cu_q, p.segments, row), head_kv = head / group_heads;
    if (s < p.segments && p.cu_kv[s] < p.cu_kv[s + 1]) {
      const HeadRow q = HeadRow::of<T>(p.q, row, head, p.head_dim),
                    d_out = HeadRow::of<T>(p.d_out, row, head, p.head_dim),
                    out = HeadRow::of<T>(p.out, row, head, p.head_dim);
      const float row_lse = statistic(p, head, row);
      for (int64_t key = p.cu_kv[s]; key < p.cu_kv[s + 1]; ++key) {
        const HeadRow k = HeadRow::of<T>(p.k, key, head_kv, p.head_dim);
        float weight;
        d_q.add(pair(q, d_out, out, k, HeadRow::of<T>(p.v, key, head_kv, p.head_dim), row_lse, weight), k);
      }
    }
    d_q.store<T>(p.d_q, row, head, p.head_dim);
  });
  for_each_head(p.tokens_kv, p.heads_kv, [&](int64_t key, int head_kv) {
    HeadRow d_k{}, d_v{};
    const int s = segment_of(p.cu_kv, p.segments, key);
    if (s < p.segments) {
      const HeadRow k = HeadRow::of<T>(p.k, key, head_kv, p.head_dim),
                    v = HeadRow::of<T>(p.v, key, head_kv, p.head_dim);
      for (int head = head_kv * group_heads; head < (head_kv + 1) * group_heads; ++head)
        for (int64_t row = p.cu_q[s]; row < p.cu_q[s + 1]; ++row) {
          const HeadRow q = HeadRow::of<T>(p.q, row, head, p.head_dim),
                        d_out = HeadRow::of<T>(p.d_out, row, head, p.head_dim);
          float weight;
          d_k.add(pair(q, d_out, HeadRow::of<T>(p.out, row, head, p.head_dim), k, v, statistic(p, head, row), weight),
                  q);
          d_v.add(weight, d_out);
        }
    }
    d_k.store<T>(p.d_k, key, head_kv, p.head_dim);
    d_v.store<T>(p.d_v, key, head_kv, p.head_dim);
  });
}

void launch_programmatic(const fvlm_call& call, void (*kernel)(UniformProblem), const UniformProblem& problem) {
  cudaLaunchAttribute programmatic = may_start_early();
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream_of(call);
  config.attrs = &programmatic;
  config.numAttrs = is_compiled_for_hopper(kernel) ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, problem), "launch");
}

} // namespace

void verify_uniform_forward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem) {
  dispatch<BFloat16, Half>(dtype, [&](auto element) {
    launch_programmatic(call, verify_forward_kernel<typename decltype(element)::type>, problem);
  });
}

void verify_uniform_backward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem) {
  dispatch<BFloat16, Half>(dtype, [&](auto element) {
    launch_programmatic(call, verify_backward_kernel<typename decltype(element)::type>, problem);
  });
}

} // namespace fvlm::plugins
