#include "common/cuda_packs.cuh"
#include "even.h"
#include "zeros.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256, blocks = 132;
constexpr int most_parts = 4; // head_dim / 32, rounded up

// One side's places: `apart` rows each, of which a segment in its place has the first `length`.
struct Side {
  const std::int32_t* cu;
  int64_t apart;
  int length;
};
__device__ int places(const EvenProblem& p) {
  return p.segments / p.step;
}
__device__ Side side_of(const EvenProblem& p, Rows which) {
  const bool of_q = which == Rows::of_q;
  return {of_q ? p.cu_q : p.cu_kv, (of_q ? p.tokens_q : p.tokens_kv) / places(p), of_q ? p.longest_q : p.longest_kv};
}

// How many places at the beginning are filled, all others being empty; -1 where it is not so.
__device__ int full_places(const EvenProblem& p, const Side& side) {
  const int apart = static_cast<int>(side.apart), full = side.cu[p.segments] / apart;
  bool even = full * apart == side.cu[p.segments];
  for (int i = static_cast<int>(threadIdx.x); i < p.segments; i += threads) {
    const int place = min(i / p.step, full), inside = i % p.step != 0 && place < full ? side.length : 0;
    even = even && side.cu[i] == place * apart + inside;
  }
  return __syncthreads_and(even) ? full : -1;
}

// True where cuDNN's results stand; zeros what lies behind them. Kernels are launched while cuDNN's still run, to be
// there when those end.
__device__ bool stands(const EvenProblem& p, int zero_count) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const Side q = side_of(p, Rows::of_q), kv = side_of(p, Rows::of_kv);
  const int full = full_places(p, q);
  if (full < 0 || full != full_places(p, kv)) return false;
  const int64_t worker = blockIdx.x * threads + threadIdx.x;
  for (int i = 0; i < zero_count; ++i) {
    const ZerosWanted& z = p.zeros[i];
    const Side& side = z.side == Rows::of_q ? q : kv;
    if (full < places(p)) zero_rows(z, full * side.apart, z.rows, worker, blocks * threads);
    if (side.length == side.apart) continue;
    for (int place = static_cast<int>(blockIdx.x); place < full; place += blocks)
      zero_rows(z, place * side.apart + side.length, (place + 1) * side.apart, threadIdx.x, threads);
  }
  return true;
}

// The segment that a row lies in; `segments` where it lies in none.
__device__ int segment_of(const std::int32_t* cu, int segments, int64_t row) {
  int low = 0, high = segments + 1; // cu[low] <= row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu[middle] <= row ? low : high) = middle;
  }
  return low;
}

// A row of a head, spread over a warp.
struct Spread {
  float at[most_parts];

  template <class T>
  __device__ static Spread of(const HeadRows& rows, int64_t row, int64_t head, int head_dim) {
    Spread spread;
    const T* from = static_cast<const T*>(rows.data) + row * rows.row + head * rows.head;
#pragma unroll
    for (int i = 0; i < most_parts; ++i) {
      const int column = i * warp + static_cast<int>(threadIdx.x) % warp;
      spread.at[i] = column < head_dim ? static_cast<float>(from[column]) : 0;
    }
    return spread;
  }
  template <class T>
  __device__ void store(const HeadRows& rows, int64_t row, int64_t head, int head_dim) const {
    T* to = static_cast<T*>(rows.data) + row * rows.row + head * rows.head;
#pragma unroll
    for (int i = 0; i < most_parts; ++i) {
      const int column = i * warp + static_cast<int>(threadIdx.x) % warp;
      if (column < head_dim) to[column] = T(at[i]);
    }
  }
  __device__ void add(float factor, const Spread& other) {
#pragma unroll
    for (int i = 0; i < most_parts; ++i) at[i] += factor * other.at[i];
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (float& value : at) value *= factor;
  }
};

__device__ float dot(const Spread& one, const Spread& other) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < most_parts; ++i) sum += one.at[i] * other.at[i];
  return sum_of_warp(sum);
}

// body(row, head), a warp each.
template <class Body>
__device__ void each_head(int64_t rows, int heads, const Body& body) {
  for (int64_t i = (blockIdx.x * int64_t{threads} + threadIdx.x) / warp; i < rows * heads; i += blocks * threads / warp)
    body(i / heads, static_cast<int>(i % heads));
}

__device__ float& statistic(const EvenProblem& p, int head, int64_t row) {
  return p.statistics[row * p.heads_q + head];
}

template <class T>
__global__ void __launch_bounds__(threads) forward_kernel(EvenProblem p) {
  if (stands(p, 1)) return;
  each_head(p.tokens_q, p.heads_q, [&](int64_t row, int head) {
    Spread sum{};
    const int s = segment_of(p.cu_q, p.segments, row), head_kv = head / (p.heads_q / p.heads_kv);
    if (s < p.segments && p.cu_kv[s] < p.cu_kv[s + 1]) {
      const Spread q = Spread::of<T>(p.q, row, head, p.head_dim);
      float largest = -INFINITY, total = 0;
      for (int64_t key = p.cu_kv[s]; key < p.cu_kv[s + 1]; ++key) {
        const float score = p.scale * dot(q, Spread::of<T>(p.k, key, head_kv, p.head_dim));
        const float most = fmaxf(largest, score), shrink = expf(largest - most), weight = expf(score - most);
        largest = most;
        total = total * shrink + weight;
        sum.scale(shrink);
        sum.add(weight, Spread::of<T>(p.v, key, head_kv, p.head_dim));
      }
      sum.scale(1 / total);
      if (p.statistics && threadIdx.x % warp == 0) statistic(p, head, row) = largest + logf(total);
    }
    sum.store<T>(p.out, row, head, p.head_dim);
  });
}

template <class T>
__global__ void __launch_bounds__(threads) backward_kernel(EvenProblem p) {
  if (stands(p, 3)) return;
  const int sharing = p.heads_q / p.heads_kv;
  // A query's weight for a key, and the gradient of their scaled score.
  const auto pair = [&](const Spread& q, const Spread& d_out, const Spread& out, const Spread& k, const Spread& v,
                        float log_sum, float& weight) {
    weight = expf(p.scale * dot(q, k) - log_sum);
    return weight * (dot(d_out, v) - dot(d_out, out)) * p.scale;
  };
  each_head(p.tokens_q, p.heads_q, [&](int64_t row, int head) {
    Spread d_q{};
    const int s = segment_of(p.cu_q, p.segments, row), head_kv = head / sharing;
    if (s < p.segments && p.cu_kv[s] < p.cu_kv[s + 1]) {
      const Spread q = Spread::of<T>(p.q, row, head, p.head_dim), d_out = Spread::of<T>(p.d_out, row, head, p.head_dim),
                   out = Spread::of<T>(p.out, row, head, p.head_dim);
      const float log_sum = statistic(p, head, row);
      for (int64_t key = p.cu_kv[s]; key < p.cu_kv[s + 1]; ++key) {
        const Spread k = Spread::of<T>(p.k, key, head_kv, p.head_dim);
        float weight;
        d_q.add(pair(q, d_out, out, k, Spread::of<T>(p.v, key, head_kv, p.head_dim), log_sum, weight), k);
      }
    }
    d_q.store<T>(p.d_q, row, head, p.head_dim);
  });
  each_head(p.tokens_kv, p.heads_kv, [&](int64_t key, int head_kv) {
    Spread d_k{}, d_v{};
    const int s = segment_of(p.cu_kv, p.segments, key);
    if (s < p.segments) {
      const Spread k = Spread::of<T>(p.k, key, head_kv, p.head_dim), v = Spread::of<T>(p.v, key, head_kv, p.head_dim);
      for (int head = head_kv * sharing; head < (head_kv + 1) * sharing; ++head)
        for (int64_t row = p.cu_q[s]; row < p.cu_q[s + 1]; ++row) {
          const Spread q = Spread::of<T>(p.q, row, head, p.head_dim),
                       d_out = Spread::of<T>(p.d_out, row, head, p.head_dim);
          float weight;
          d_k.add(pair(q, d_out, Spread::of<T>(p.out, row, head, p.head_dim), k, v, statistic(p, head, row), weight),
                  q);
          d_v.add(weight, d_out);
        }
    }
    d_k.store<T>(p.d_k, key, head_kv, p.head_dim);
    d_v.store<T>(p.d_v, key, head_kv, p.head_dim);
  });
}

// Code for older devices, translated for this one, does not wait for those before it: it is launched behind them.
bool waits(void (*kernel)(EvenProblem)) {
  cudaFuncAttributes code{};
  check_cuda(cudaFuncGetAttributes(&code, kernel), "what a kernel is made for");
  return code.ptxVersion >= 90;
}

void launch_early(const fvlm_call& call, void (*kernel)(EvenProblem), const EvenProblem& problem) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream_of(call);
  config.attrs = &early;
  config.numAttrs = waits(kernel) ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, problem), "launch");
}

} // namespace

void finish_even_forward(const fvlm_call& call, fvlm_dtype dtype, const EvenProblem& problem) {
  dispatch<BFloat16, Half>(
      dtype, [&](auto element) { launch_early(call, forward_kernel<typename decltype(element)::type>, problem); });
}

void finish_even_backward(const fvlm_call& call, fvlm_dtype dtype, const EvenProblem& problem) {
  dispatch<BFloat16, Half>(
      dtype, [&](auto element) { launch_early(call, backward_kernel<typename decltype(element)::type>, problem); });
}

} // namespace fvlm::plugins
