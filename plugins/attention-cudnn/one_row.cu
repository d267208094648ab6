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

constexpr int threads = 256, warps = threads / warp;
constexpr int least_blocks = 64; // they share the rows that are zeroed
// Rows of keys and of values that are on their way to a thread. All of them at once were slower (bench/LOG.md), and in
// backward the sums of several query heads want shared memory too.
constexpr int forward_ahead = 3;
template <int sharing>
constexpr int backward_ahead = sharing == 1 ? 5 : 3;
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

// The sum over a warp's groups, in each of them.
template <int lanes>
__device__ float sum_over_groups(float value) {
#pragma unroll
  for (int apart = lanes; apart < warp; apart *= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

__device__ float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

template <class T>
__device__ T* at(const HeadRows& rows, int64_t row, int head) {
  return static_cast<T*>(rows.data) + row * rows.row + head * rows.head;
}

// A segment's rows, and how many rows all segments have. Read at once, as each read takes its time.
struct Segment {
  int row, begin, keys, filled_q, filled_kv;
  bool asked; // it has a query

  // Behind the last segment, where blocks only zero rows, it is empty.
  __device__ Segment(const OneRowProblem& p, int index) {
    const int here = min(index, p.segments), next = min(index + 1, p.segments);
    row = p.cu_q[here];
    begin = p.cu_kv[here];
    const int end_q = p.cu_q[next], end = p.cu_kv[next];
    filled_q = p.cu_q[p.segments];
    filled_kv = p.cu_kv[p.segments];
    keys = end - begin;
    asked = end_q > row;
  }
};

// Zeros the rows that belong to no segment, all blocks sharing the work.
template <class T, int head_dim>
__device__ void zero_tail(const HeadRows& rows, int heads, int64_t begin, int64_t end) {
  using S = Shape<T, head_dim>;
  const int64_t packs = (end - begin) * heads * S::lanes, workers = int64_t{gridDim.x} * gridDim.y * threads;
  const Pack<T, S::pack> zero{};
  for (int64_t i = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * threads + threadIdx.x; i < packs; i += workers) {
    const int64_t row = begin + i / (heads * S::lanes), in_row = i % (heads * S::lanes);
    zero.store(at<T>(rows, row, static_cast<int>(in_row / S::lanes)) + in_row % S::lanes * S::pack);
  }
}

// A thread's packs of the keys and values that its group takes. They pass through shared memory, where nobody but the
// thread itself waits for them. Rows behind the last one repeat it, so that a warp's groups take equally many.
template <class T, int head_dim, int ahead>
class KeyRows {
  using S = Shape<T, head_dim>;
  using P = Pack<T, S::pack>;

 public:
  __device__ KeyRows(const OneRowProblem& p, const Segment& segment, int head)
      : row_(static_cast<int>(threadIdx.x) / S::lanes), last_(segment.keys - 1) {
    const int column = static_cast<int>(threadIdx.x) % S::lanes * S::pack;
    const int first_of_warp = row_ - row_ % (warp / S::lanes);
    steps_ = (segment.keys - first_of_warp + S::groups - 1) / S::groups;
    k_ = at<T>(p.k, segment.begin, head) + column;
    v_ = at<T>(p.v, segment.begin, head) + column;
    k_row_ = p.k.row;
    v_row_ = p.v.row;
  }

  __device__ void begin() {
#pragma unroll
    for (int step = 0; step < ahead; ++step) fetch(step, step);
  }
  // body(key, k, v) for each row.
  template <class Body>
  __device__ void each(const Body& body) {
    int slot = 0;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(ahead - 1) : "memory");
      body(row_ + step * S::groups, *place(slot, 0), *place(slot, 1));
      fetch(step + ahead, slot);
      slot = slot + 1 == ahead ? 0 : slot + 1;
    }
  }

 private:
  __device__ static P* place(int slot, int which) {
    __shared__ P memory[ahead * 2 * threads];
    return memory + (slot * 2 + which) * threads + threadIdx.x;
  }
  __device__ void fetch(int step, int slot) {
    if (step < steps_) {
      const int64_t row = min(row_ + step * S::groups, last_);
      copy(place(slot, 0), k_ + row * k_row_);
      copy(place(slot, 1), v_ + row * v_row_);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ static void copy(P* to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }

  int row_, last_, steps_;
  const T *k_, *v_;
  int64_t k_row_, v_row_;
};

template <class T, int head_dim>
__global__ void __launch_bounds__(threads) forward_kernel(OneRowProblem p) {
  using S = Shape<T, head_dim>;
  using P = Pack<T, S::pack>;
  const int head = static_cast<int>(blockIdx.x);
  const Segment segment(p, static_cast<int>(blockIdx.y));
  if (segment.asked) {
    const int lane = static_cast<int>(threadIdx.x) % warp, warp_index = static_cast<int>(threadIdx.x) / warp;
    const int column = lane % S::lanes * S::pack, keys = segment.keys;
    P query;
    query.load(at<T>(p.q, segment.row, head) + column);
    KeyRows<T, head_dim, forward_ahead> rows(p, segment, head / (p.heads_q / p.heads_kv));
    rows.begin();
    // Weights are 2^(score - base). The base is that of an earlier score as long as none is larger by much.
    constexpr float much = 8, least_base = -1e30f;
    float q[S::pack], sum[S::pack] = {}, base = least_base, total = 0;
    query.widen(q);
#pragma unroll
    for (float& value : q) value *= p.scale * log2_e;
    rows.each([&](int key, const P& k, const P& v) {
      float values[S::pack], score = 0;
      k.widen(values);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) score += q[i] * values[i];
      score = sum_of_group<S::lanes>(score); // every thread of the warp takes part
      if (key >= keys) score = -INFINITY;
      if (score > base + much) {
        const float shrink = power_of_2(base - score);
        base = score;
        total *= shrink;
#pragma unroll
        for (float& value : sum) value *= shrink;
      }
      const float weight = power_of_2(score - base);
      total += weight;
      v.widen(values);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) sum[i] += weight * values[i];
    });

    // A warp's groups are joined at the largest base, and then the warps.
    __shared__ float sums[warps][head_dim], totals[warps], bases[warps];
    float most = base;
#pragma unroll
    for (int apart = S::lanes; apart < warp; apart *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
    const float shrink = power_of_2(base - most);
    total = sum_over_groups<S::lanes>(total * shrink);
#pragma unroll
    for (int i = 0; i < S::pack; ++i) {
      sum[i] = sum_over_groups<S::lanes>(sum[i] * shrink);
      if (lane < S::lanes) sums[warp_index][column + i] = sum[i];
    }
    if (lane == 0) {
      totals[warp_index] = total;
      bases[warp_index] = most;
    }
    __syncthreads();
    if (threadIdx.x < head_dim) {
#pragma unroll
      for (const float value : bases) most = fmaxf(most, value);
      float out[1] = {};
      total = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        const float share = power_of_2(bases[w] - most);
        total += share * totals[w];
        out[0] += share * sums[w][threadIdx.x];
      }
      out[0] = keys == 0 ? 0 : out[0] / total;
      write(at<T>(p.out, segment.row, head) + threadIdx.x, out);
      if (threadIdx.x == 0 && p.log_sums)
        p.log_sums[static_cast<int>(blockIdx.y) * p.heads_q + head] = keys == 0 ? 0 : most * ln_2 + logf(total);
    }
  }
  zero_tail<T, head_dim>(p.out, p.heads_q, segment.filled_q, p.tokens_q);
}

// sharing: query heads that read the same keys. writes_keys: d_k and d_v are wanted.
template <class T, int head_dim, int sharing, bool writes_keys>
__device__ void differentiate(const OneRowProblem& p, const Segment& segment, int head_kv) {
  using S = Shape<T, head_dim>;
  using P = Pack<T, S::pack>;
  const bool asked = segment.asked;
  const int lane = static_cast<int>(threadIdx.x) % warp, warp_index = static_cast<int>(threadIdx.x) / warp;
  const int column = lane % S::lanes * S::pack, keys = segment.keys;
  P q_packs[sharing] = {}, d_out_packs[sharing] = {}, out_packs[sharing] = {};
  float log_sum[sharing], delta[sharing];
#pragma unroll
  for (int g = 0; g < sharing; ++g) {
    const int head = head_kv * sharing + g;
    log_sum[g] = INFINITY; // weights of 0
    if (!asked) continue;
    q_packs[g].load(at<T>(p.q, segment.row, head) + column);
    d_out_packs[g].load(at<T>(p.d_out, segment.row, head) + column);
    out_packs[g].load(at<T>(p.out, segment.row, head) + column);
    log_sum[g] = p.log_sums[static_cast<int>(blockIdx.y) * p.heads_q + head];
  }
  KeyRows<T, head_dim, backward_ahead<sharing>> rows(p, segment, head_kv);
  rows.begin();
  float q[sharing][S::pack], d_out[sharing][S::pack], d_q[sharing][S::pack] = {};
#pragma unroll
  for (int g = 0; g < sharing; ++g) {
    float out[S::pack], product = 0;
    q_packs[g].widen(q[g]);
    d_out_packs[g].widen(d_out[g]);
    out_packs[g].widen(out);
#pragma unroll
    for (int i = 0; i < S::pack; ++i) product += d_out[g][i] * out[i];
    delta[g] = sum_of_group<S::lanes>(product);
    log_sum[g] *= log2_e;
  }
  const float scale2 = p.scale * log2_e;
  rows.each([&](int key, const P& k, const P& v) {
    float keys_row[S::pack], values_row[S::pack], d_k[S::pack] = {}, d_v[S::pack] = {};
    k.widen(keys_row);
    v.widen(values_row);
#pragma unroll
    for (int g = 0; g < sharing; ++g) {
      float score = 0, d_weight = 0;
#pragma unroll
      for (int i = 0; i < S::pack; ++i) {
        score += q[g][i] * keys_row[i];
        d_weight += d_out[g][i] * values_row[i];
      }
      score = sum_of_group<S::lanes>(score); // every thread of the warp takes part
      d_weight = sum_of_group<S::lanes>(d_weight);
      const float weight = key < keys ? power_of_2(score * scale2 - log_sum[g]) : 0;
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
    if (!writes_keys || key >= keys) return;
    write(at<T>(p.d_k, segment.begin + key, head_kv) + column, d_k);
    write(at<T>(p.d_v, segment.begin + key, head_kv) + column, d_v);
  });
  if (!asked) return;
  __shared__ float sums[warps][sharing * head_dim];
#pragma unroll
  for (int g = 0; g < sharing; ++g)
#pragma unroll
    for (int i = 0; i < S::pack; ++i) {
      d_q[g][i] = sum_over_groups<S::lanes>(d_q[g][i]);
      if (lane < S::lanes) sums[warp_index][g * head_dim + column + i] = d_q[g][i];
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < sharing * head_dim; i += threads) {
    float sum[1] = {};
#pragma unroll
    for (int w = 0; w < warps; ++w) sum[0] += sums[w][i];
    write(at<T>(p.d_q, segment.row, head_kv * sharing + i / head_dim) + i % head_dim, sum);
  }
}

template <class T, int head_dim, int sharing, bool writes_keys>
__global__ void __launch_bounds__(threads) backward_kernel(OneRowProblem p) {
  const Segment segment(p, static_cast<int>(blockIdx.y));
  if (segment.asked || (writes_keys && segment.keys > 0))
    differentiate<T, head_dim, sharing, writes_keys>(p, segment, static_cast<int>(blockIdx.x));
  zero_tail<T, head_dim>(p.d_q, p.heads_q, segment.filled_q, p.tokens_q);
  if constexpr (!writes_keys) return;
  zero_tail<T, head_dim>(p.d_k, p.heads_kv, segment.filled_kv, p.tokens_kv);
  zero_tail<T, head_dim>(p.d_v, p.heads_kv, segment.filled_kv, p.tokens_kv);
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

dim3 blocks_of(int segments, int heads) {
  return dim3(static_cast<unsigned>(heads), static_cast<unsigned>(std::max(segments, (least_blocks - 1) / heads + 1)));
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
