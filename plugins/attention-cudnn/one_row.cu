// one_row.cu: a block has a segment and a head (in backward a head of keys and the queries that share it). Each key row
// is read by as many threads as its 16-byte packs; groups of threads take rows in turn and are joined at the end.
#include "common/cuda_packs.cuh"
#include "one_row.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256;
constexpr int tail_blocks = 64;
constexpr int in_flight = 5; // rows of keys and of values that a group reads ahead
constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.693147180559945309417f;

// How a block's threads lie on rows of head_dim elements.
template <class T, int head_dim>
struct Shape {
  static constexpr int pack = pack_size<T>;
  static constexpr int lanes = head_dim / pack;  // a group of these reads a row
  static constexpr int groups = threads / lanes; // rows at once
  static_assert(lanes >= 1 && lanes <= warp && warp % lanes == 0);
};

template <int lanes>
__device__ float sum_of_group(float value) {
#pragma unroll
  for (int apart = lanes / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

// The sum of each group's vector, in the threads of the first group.
template <class T, int head_dim>
__device__ void sum_groups(float (&values)[pack_size<T>], float* shared) {
  using S = Shape<T, head_dim>;
#pragma unroll
  for (int apart = S::lanes; apart < warp; apart *= 2)
#pragma unroll
    for (float& value : values) value += __shfl_xor_sync(0xffffffffu, value, apart);
  constexpr int warps = threads / warp;
  const int in_warp = static_cast<int>(threadIdx.x) % warp, mine = static_cast<int>(threadIdx.x) / warp;
  __syncthreads();
  if (in_warp < S::lanes)
#pragma unroll
    for (int i = 0; i < S::pack; ++i) shared[mine * head_dim + in_warp * S::pack + i] = values[i];
  __syncthreads();
  if (threadIdx.x < S::lanes)
#pragma unroll
    for (int i = 0; i < S::pack; ++i) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) sum += shared[w * head_dim + static_cast<int>(threadIdx.x) * S::pack + i];
      values[i] = sum;
    }
}

template <class T>
__device__ T* at(const HeadRows& rows, int64_t row, int head) {
  return static_cast<T*>(rows.data) + row * rows.row + head * rows.head;
}

// Zeros the rows that belong to no segment, some blocks sharing the work.
template <class T, int head_dim>
__device__ void zero_tail(const HeadRows& rows, int heads, int64_t begin, int64_t end, int block) {
  using S = Shape<T, head_dim>;
  const int64_t packs = (end - begin) * heads * S::lanes;
  const Pack<T, S::pack> zero{};
  for (int64_t i = block * threads + static_cast<int>(threadIdx.x); i < packs; i += tail_blocks * threads) {
    const int64_t row = begin + i / (heads * S::lanes), in_row = i % (heads * S::lanes);
    zero.store(at<T>(rows, row, static_cast<int>(in_row / S::lanes)) + in_row % S::lanes * S::pack);
  }
}

template <class T, int head_dim>
__global__ void __launch_bounds__(threads) forward_kernel(OneRowProblem p) {
  using S = Shape<T, head_dim>;
  const int block = static_cast<int>(blockIdx.x), work = p.segments * p.heads_q;
  if (block >= work) {
    zero_tail<T, head_dim>(p.out, p.heads_q, p.cu_q[p.segments], p.tokens_q, block - work);
    return;
  }
  const int segment = block / p.heads_q, head = block % p.heads_q, head_kv = head / (p.heads_q / p.heads_kv);
  const int64_t row = p.cu_q[segment];
  if (p.cu_q[segment + 1] == row) return;
  const int64_t begin = p.cu_kv[segment];
  const int keys = static_cast<int>(p.cu_kv[segment + 1] - begin);
  const int lane = static_cast<int>(threadIdx.x) % S::lanes, group = static_cast<int>(threadIdx.x) / S::lanes;
  const int column = lane * S::pack;

  float q[S::pack], sum[S::pack] = {};
  read(at<T>(p.q, row, head) + column, q);
#pragma unroll
  for (float& value : q) value *= p.scale * log2_e;
  float largest = -INFINITY, total = 0;
  for (int first = 0; first < keys; first += S::groups * in_flight) {
    Pack<T, S::pack> k[in_flight], v[in_flight];
#pragma unroll
    for (int u = 0; u < in_flight; ++u)
      if (const int key = first + u * S::groups + group; key < keys) {
        k[u].load(at<T>(p.k, begin + key, head_kv) + column);
        v[u].load(at<T>(p.v, begin + key, head_kv) + column);
      }
    float score[in_flight], most = largest;
#pragma unroll
    for (int u = 0; u < in_flight; ++u) {
      const bool there = first + u * S::groups + group < keys;
      float values[S::pack], product = 0;
      k[u].widen(values);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) product += q[i] * values[i];
      product = sum_of_group<S::lanes>(product); // every thread of the warp takes part
      score[u] = there ? product : -INFINITY;
      most = fmaxf(most, score[u]);
    }
    if (most == -INFINITY) continue; // this group has had no key yet
    const float shrink = exp2f(largest - most);
    largest = most;
    total *= shrink;
#pragma unroll
    for (float& value : sum) value *= shrink;
#pragma unroll
    for (int u = 0; u < in_flight; ++u) {
      if (score[u] == -INFINITY) continue;
      const float weight = exp2f(score[u] - most);
      float values[S::pack];
      v[u].widen(values);
      total += weight;
#pragma unroll
      for (int i = 0; i < S::pack; ++i) sum[i] += weight * values[i];
    }
  }

  // The groups are joined at the largest of all their scores.
  __shared__ float shared[threads / warp * head_dim], scalars[2][threads / warp];
  float most = largest;
#pragma unroll
  for (int apart = S::lanes; apart < warp; apart *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
  if (threadIdx.x % warp == 0) scalars[0][threadIdx.x / warp] = most;
  __syncthreads();
#pragma unroll
  for (const float value : scalars[0]) most = fmaxf(most, value);
  const float shrink = largest == -INFINITY ? 0 : exp2f(largest - most);
  total *= shrink;
#pragma unroll
  for (float& value : sum) value *= shrink;
#pragma unroll
  for (int apart = S::lanes; apart < warp; apart *= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
  if (threadIdx.x % warp == 0) scalars[1][threadIdx.x / warp] = total;
  sum_groups<T, head_dim>(sum, shared); // begins with a barrier
  if (group != 0) return;
  total = 0;
#pragma unroll
  for (const float value : scalars[1]) total += value;
#pragma unroll
  for (float& value : sum) value = keys == 0 ? 0 : value / total;
  write(at<T>(p.out, row, head) + column, sum);
  if (lane == 0 && p.log_sums) p.log_sums[segment * p.heads_q + head] = keys == 0 ? 0 : most * ln_2 + logf(total);
}

// sharing: query heads that read the same keys. writes_keys: d_k and d_v are wanted.
template <class T, int head_dim, int sharing, bool writes_keys>
__global__ void __launch_bounds__(threads) backward_kernel(OneRowProblem p) {
  using S = Shape<T, head_dim>;
  const int block = static_cast<int>(blockIdx.x), work = p.segments * p.heads_kv;
  if (block >= work) {
    zero_tail<T, head_dim>(p.d_q, p.heads_q, p.cu_q[p.segments], p.tokens_q, block - work);
    if constexpr (!writes_keys) return;
    zero_tail<T, head_dim>(p.d_k, p.heads_kv, p.cu_kv[p.segments], p.tokens_kv, block - work);
    zero_tail<T, head_dim>(p.d_v, p.heads_kv, p.cu_kv[p.segments], p.tokens_kv, block - work);
    return;
  }
  const int segment = block / p.heads_kv, head_kv = block % p.heads_kv;
  const int64_t row = p.cu_q[segment], begin = p.cu_kv[segment];
  const bool asked = p.cu_q[segment + 1] > row;
  if (!writes_keys && !asked) return;
  const int keys = static_cast<int>(p.cu_kv[segment + 1] - begin);
  const int lane = static_cast<int>(threadIdx.x) % S::lanes, group = static_cast<int>(threadIdx.x) / S::lanes;
  const int column = lane * S::pack;

  float q[sharing][S::pack] = {}, d_out[sharing][S::pack] = {}, d_q[sharing][S::pack] = {};
  float log_sum[sharing] = {}, delta[sharing] = {};
  if (asked)
#pragma unroll
    for (int g = 0; g < sharing; ++g) {
      const int head = head_kv * sharing + g;
      float out[S::pack], product = 0;
      read(at<T>(p.q, row, head) + column, q[g]);
      read(at<T>(p.d_out, row, head) + column, d_out[g]);
      read(at<T>(p.out, row, head) + column, out);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) product += d_out[g][i] * out[i];
      delta[g] = sum_of_group<S::lanes>(product);
      log_sum[g] = p.log_sums[segment * p.heads_q + head] * log2_e;
    }
  const float scale2 = p.scale * log2_e;
  for (int first = 0; first < keys; first += S::groups * in_flight) {
    Pack<T, S::pack> k[in_flight], v[in_flight];
#pragma unroll
    for (int u = 0; u < in_flight; ++u)
      if (const int key = first + u * S::groups + group; key < keys) {
        k[u].load(at<T>(p.k, begin + key, head_kv) + column);
        v[u].load(at<T>(p.v, begin + key, head_kv) + column);
      }
#pragma unroll
    for (int u = 0; u < in_flight; ++u) {
      const int key = first + u * S::groups + group;
      float keys_row[S::pack], values_row[S::pack], d_k[S::pack] = {}, d_v[S::pack] = {};
      k[u].widen(keys_row);
      v[u].widen(values_row);
#pragma unroll
      for (int g = 0; g < sharing; ++g) {
        float score = 0, d_weight = 0;
#pragma unroll
        for (int i = 0; i < S::pack; ++i) {
          score += q[g][i] * keys_row[i];
          d_weight += d_out[g][i] * values_row[i];
        }
        score = sum_of_group<S::lanes>(score);
        d_weight = sum_of_group<S::lanes>(d_weight);
        if (!asked || key >= keys) continue;
        const float weight = exp2f(score * scale2 - log_sum[g]);
        const float d_score = weight * (d_weight - delta[g]) * p.scale;
#pragma unroll
        for (int i = 0; i < S::pack; ++i) {
          if constexpr (writes_keys) {
            d_v[i] += weight * d_out[g][i];
            d_k[i] += d_score * q[g][i];
          }
          d_q[g][i] += d_score * keys_row[i];
        }
      }
      if (!writes_keys || key >= keys) continue;
      write(at<T>(p.d_k, begin + key, head_kv) + column, d_k);
      write(at<T>(p.d_v, begin + key, head_kv) + column, d_v);
    }
  }
  if (!asked) return;
  __shared__ float shared[threads / warp * head_dim];
#pragma unroll
  for (int g = 0; g < sharing; ++g) {
    sum_groups<T, head_dim>(d_q[g], shared);
    if (group == 0) write(at<T>(p.d_q, row, head_kv * sharing + g) + column, d_q[g]);
  }
}

// body(Shape) with the head dimension as a type.
template <class Body>
void with_head_dim(int head_dim, const Body& body) {
  if (head_dim == 32)
    body(std::integral_constant<int, 32>{});
  else if (head_dim == 64)
    body(std::integral_constant<int, 64>{});
  else
    body(std::integral_constant<int, 128>{});
}

unsigned blocks_of(int segments, int heads) {
  return static_cast<unsigned>(segments * heads + tail_blocks);
}

} // namespace

bool one_row_fits(int head_dim, int heads_q, int heads_kv) {
  const int sharing = heads_q / heads_kv;
  return (head_dim == 32 || head_dim == 64 || head_dim == 128) && (sharing == 1 || sharing == 3);
}

void one_row_forward(const fvlm_call& call, fvlm_dtype dtype, const OneRowProblem& p) {
  dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_head_dim(p.head_dim, [&](auto head_dim) {
      forward_kernel<T, head_dim.value><<<blocks_of(p.segments, p.heads_q), threads, 0, stream_of(call)>>>(p);
    });
  });
  check_cuda(cudaGetLastError(), "launch");
}

void one_row_backward(const fvlm_call& call, fvlm_dtype dtype, const OneRowProblem& p) {
  dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_head_dim(p.head_dim, [&](auto head_dim) {
      const auto launch = [&](auto kernel) {
        kernel<<<blocks_of(p.segments, p.heads_kv), threads, 0, stream_of(call)>>>(p);
      };
      const auto launch_for = [&](auto sharing) {
        if (p.d_k.data)
          launch(backward_kernel<T, head_dim.value, sharing.value, true>);
        else
          launch(backward_kernel<T, head_dim.value, sharing.value, false>);
      };
      if (p.heads_q == p.heads_kv)
        launch_for(std::integral_constant<int, 1>());
      else
        launch_for(std::integral_constant<int, 3>());
    });
  });
  check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
