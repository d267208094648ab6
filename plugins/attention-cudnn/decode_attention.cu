// decode_attention.cu: attention with at most one query per segment, forward and backward (also dq only), for float32,
// bfloat16 and float16, head dimensions 32, 64 and 128, and one or three query heads per key head. In the engine: the
// query of the fine pass over the 257 rows of a frame.
//
// A block has one segment and one query head (in backward one key head and its query heads). A key row is read by as
// many lanes as it has 16-byte packs; the groups of lanes take rows round-robin, three or four rows ahead by cp.async
// through shared memory that only the reading thread uses, and combine their softmax at the end (split-softmax within
// the block). For 16 bits and head_dim 64 dot products run on the tensor cores.
//
// Measured with 257 keys, 6 heads, bf16, 12 layers in turn (bench/LOG.md, 2026-11-23), per layer on an H200 beside a
// copy at 4.06 TB/s: 64 frames forward 8.61 us (72 % of the copy's speed), backward 15.74 us (79 %); 512 frames 50.5 us
// (98 %) and 104.9 us (95 %). On an H100 at 64 frames 11.12 us (77 %) and 20.74 us (82 %).
#include "common/cuda_copies.cuh"
#include "common/cuda_math.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "decode_attention.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256, warps = threads / warp_size;
constexpr int min_blocks = 64; // they share the zeroing of padding rows
// Rows of keys and values in flight per thread. All of a thread's rows at once were slower (bench/LOG.md), and in
// backward the sums of several query heads need shared memory too.
constexpr int forward_depth = 3;
template <int group_heads>
constexpr int backward_depth = group_heads == 1 ? 4 : 3;

// How a block's threads are laid out on rows of head_dim elements.
template <class T, int head_dim>
struct ThreadLayout {
  static constexpr int pack = pack_size<T>;
  static constexpr int lanes = head_dim / pack;  // lanes that read a row together, a group
  static constexpr int groups = threads / lanes; // rows per step
  static_assert(lanes >= 1 && lanes <= warp_size && warp_size % lanes == 0);
};

template <int lanes>
__device__ float group_sum(float value) {
#pragma unroll
  for (int lane_mask = lanes / 2; lane_mask > 0; lane_mask /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  return value;
}

// The sum, or the maximum, over a warp's groups, returned to all of them.
template <int lanes>
__device__ float sum_over_groups(float value) {
#pragma unroll
  for (int lane_mask = lanes; lane_mask < warp_size; lane_mask *= 2)
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  return value;
}
template <int lanes>
__device__ float max_over_groups(float value) {
#pragma unroll
  for (int lane_mask = lanes; lane_mask < warp_size; lane_mask *= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
  return value;
}

// A 32-bit multiply-add to a 64-bit address in one instruction, which the compiler does not find by itself.
// Instructions before the first load are latency.
__device__ char* offset_pointer(void* from, unsigned count, unsigned bytes) {
  char* to;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(to) : "r"(count), "r"(bytes), "l"(from));
  return to;
}
template <class T>
__device__ unsigned in_bytes(int64_t elements) {
  return static_cast<unsigned>(elements) * static_cast<unsigned>(sizeof(T));
}

template <class T>
__device__ T* at(const HeadTensor& rows, unsigned row, unsigned head) {
  return reinterpret_cast<T*>(offset_pointer(offset_pointer(rows.data, head, in_bytes<T>(rows.head_stride)), row,
                                             in_bytes<T>(rows.row_stride)));
}

// The rows of a segment, and the total rows of all segments.
struct Segment {
  int row, begin, keys, filled_q, filled_kv;
  bool has_query; // whether it has a query

  // Past the last segment, where blocks only zero rows, it is empty.
  __device__ Segment(const DecodeProblem& p, int index) {
    if (p.uniform_keys > 0) {
      filled_q = static_cast<int>(p.tokens_q), filled_kv = static_cast<int>(p.tokens_kv);
      row = index, begin = index * p.uniform_keys;
      has_query = index < filled_q;
      keys = has_query ? p.uniform_keys : 0;
      return;
    }
    const int here = min(index, p.segments), next = min(index + 1, p.segments);
    row = p.cu_q[here];
    begin = p.cu_kv[here];
    const int end_q = p.cu_q[next], end = p.cu_kv[next];
    filled_q = p.cu_q[p.segments];
    filled_kv = p.cu_kv[p.segments];
    keys = end - begin;
    has_query = (end_q > row) & (keys >= 0); // depends on all four values, so their loads are issued together
  }
};

// Zeros rows of a head, shared by `workers` workers.
template <class T, int head_dim>
__device__ void zero_rows(const HeadTensor& rows, unsigned head, unsigned begin, unsigned end, unsigned worker,
                          unsigned workers) {
  using S = ThreadLayout<T, head_dim>;
  const Pack<T, S::pack> zero{};
  for (unsigned i = worker; i < (end - begin) * S::lanes; i += workers)
    zero.store(at<T>(rows, begin + i / S::lanes, head) + i % S::lanes * S::pack);
}
// Zeros the rows that belong to no segment, shared by all blocks.
template <class T, int head_dim>
__device__ void zero_tail(const HeadTensor& rows, int heads, int begin, int64_t end) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  for (int head = 0; begin < end && head < heads; ++head)
    zero_rows<T, head_dim>(rows, static_cast<unsigned>(head), static_cast<unsigned>(begin), static_cast<unsigned>(end),
                           block * threads + threadIdx.x, gridDim.x * gridDim.y * gridDim.z * threads);
}

// A row (q or d_out) whose dot product with every key or value row is computed.
template <class T, int head_dim, bool by_tensor_cores = sizeof(T) == 2 && head_dim == 64>
class RowVector {
  using S = ThreadLayout<T, head_dim>;
  using P = Pack<T, S::pack>;

 public:
  __device__ void load(const T* row) { own_.load(row + threadIdx.x % S::lanes * S::pack); }
  __device__ P own() const { return own_; } // this thread's columns
  // The dot product with the row of the thread's group. Called by whole warps.
  __device__ float dot(const P& pack) const {
    float values[S::pack], other[S::pack], sum = 0;
    own_.widen(values);
    pack.widen(other);
#pragma unroll
    for (int i = 0; i < S::pack; ++i) sum += values[i] * other[i];
    return group_sum<S::lanes>(sum);
  }

 private:
  P own_;
};

// For 16 bits: m16n8k16 on tensor cores. The B columns are halves of the warp's four rows, as the lanes hold them; the
// A rows are this row's first half, eight times, and then its second half.
template <class T>
class RowVector<T, 64, true> {
  using P = Pack<T, 8>;

 public:
  __device__ void load(const T* row) {
    first_.load(row + threadIdx.x % 4 * 8);
    second_.load(row + threadIdx.x % 4 * 8 + 32);
  }
  __device__ P own() const {
    P own;
#pragma unroll
    for (int i = 0; i < P::words; ++i) own.bits.at[i] = threadIdx.x & 4 ? second_.bits.at[i] : first_.bits.at[i];
    return own;
  }
  __device__ float dot(const P& pack) const {
    float low[4] = {}, high[4] = {}; // a thread has columns 2 (t % 4) and the next: both halves of row t % 4
    const auto multiply = [&](float(&sum)[4], int i) {
      mma_16x8x16<T>(sum, {first_.bits.at[i], second_.bits.at[i], first_.bits.at[i + 1], second_.bits.at[i + 1]},
                     pack.bits.at[i], pack.bits.at[i + 1]);
    };
    multiply(low, 0);
    multiply(high, 2);
    return __shfl_sync(0xffffffffu, low[0] + low[3] + (high[0] + high[3]), threadIdx.x % warp_size / 8, 4);
  }

 private:
  P first_, second_;
};

// The stream of key and value packs that a thread reads, buffered in shared memory that no other thread accesses, so no
// block barrier is needed. The rows that do not fill a step of all groups come first, so that no warp has an extra step
// at the end.
template <class T, int head_dim, int depth>
class KeyRows {
  using S = ThreadLayout<T, head_dim>;
  using P = Pack<T, S::pack>;

 public:
  // Does not depend on the segment, whose bounds are still being loaded.
  __device__ KeyRows(const DecodeProblem& p, unsigned head)
      : row_(threadIdx.x / S::lanes), k_row_(in_bytes<T>(p.k.row_stride)), v_row_(in_bytes<T>(p.v.row_stride)) {
    __shared__ P memory[(depth + 1) * 2 * threads];
    mine_ = memory + threadIdx.x;
    shared_ = shared_address(mine_);
    k_ = at<T>(p.k, row_, head) + threadIdx.x % S::lanes * S::pack;
    v_ = at<T>(p.v, row_, head) + threadIdx.x % S::lanes * S::pack;
  }

  __device__ void begin(int begin, int keys) {
    k_ = offset_pointer(k_, static_cast<unsigned>(begin), k_row_);
    v_ = offset_pointer(v_, static_cast<unsigned>(begin), v_row_);
    remainder_ = static_cast<unsigned>(keys) % S::groups;
    steps_ = static_cast<unsigned>(keys) / S::groups;
    if (has_remainder()) fetch(0, depth, row_ < remainder_);
    cp_async_commit();
#pragma unroll
    for (unsigned step = 0; step < depth; ++step) {
      if (step < steps_) fetch(remainder_ + step * S::groups, step);
      cp_async_commit();
    }
  }
  // Calls body(key, whether the key exists, k, v) for every row.
  template <class Body>
  __device__ void each(const Body& body) {
    if (has_remainder()) {
      cp_async_wait<depth>();
      body(row_, row_ < remainder_, *buffered(depth, 0), *buffered(depth, 1));
    }
    unsigned slot = 0;
#pragma unroll 1
    for (unsigned step = 0; step < steps_; ++step) {
      cp_async_wait<depth - 1>();
      const unsigned row = remainder_ + step * S::groups;
      const P k = *buffered(slot, 0), v = *buffered(slot, 1);
      if (step + depth < steps_) fetch(row + depth * S::groups, slot);
      cp_async_commit();
      body(row + row_, true, k, v);
      slot = slot + 1 == depth ? 0 : slot + 1;
    }
  }

 private:
  // Uniform within a warp.
  __device__ bool has_remainder() const {
    return row_ - row_ % (warp_size / S::lanes) < remainder_;
  }
  __device__ const P* buffered(unsigned slot, unsigned which) const {
    return mine_ + (slot * 2 + which) * threads;
  }
  // Rows that do not exist are read as zeros.
  __device__ void fetch(unsigned row, unsigned slot, bool is_there = true) {
    const unsigned to = shared_ + slot * 2 * threads * static_cast<unsigned>(sizeof(P));
    cp_async_16_if(to, offset_pointer(k_, row, k_row_), is_there);
    cp_async_16_if(to + threads * static_cast<unsigned>(sizeof(P)), offset_pointer(v_, row, v_row_), is_there);
  }

  unsigned row_, remainder_ = 0, steps_ = 0;
  unsigned k_row_, v_row_, shared_;
  void *k_, *v_;
  const P* mine_;
};

// Reduces the sums of a warp's groups into `to`, a row of all columns. Where possible a lane passes on half of its
// values in each step.
template <class T, int head_dim>
__device__ void reduce_groups(const float (&sum)[pack_size<T>], float* to) {
  using S = ThreadLayout<T, head_dim>;
  const unsigned lane = threadIdx.x % warp_size;
  to += lane % S::lanes * S::pack;
  if constexpr (S::lanes == 8 && S::pack == 8) {
    const auto halve = [lane](const auto& from, auto& half, unsigned lane_mask) {
      constexpr int count = sizeof half / sizeof half[0];
      const bool upper = lane & lane_mask;
#pragma unroll
      for (int i = 0; i < count; ++i)
        half[i] = (upper ? from[i + count] : from[i]) +
                  __shfl_xor_sync(0xffffffffu, upper ? from[i] : from[i + count], static_cast<int>(lane_mask));
    };
    float four[4], two[2];
    halve(sum, four, 16);
    halve(four, two, 8);
    *reinterpret_cast<float2*>(to + (lane & 16) / 4 + (lane & 8) / 4) = {two[0], two[1]};
  } else {
#pragma unroll
    for (int i = 0; i < S::pack; ++i) {
      const float all = sum_over_groups<S::lanes>(sum[i]);
      if (lane < S::lanes) to[i] = all;
    }
  }
}

template <class T, int head_dim>
__global__ void __launch_bounds__(threads) decode_forward_kernel(DecodeProblem p) {
  using S = ThreadLayout<T, head_dim>;
  using P = Pack<T, S::pack>;
  const unsigned head = blockIdx.y * gridDim.x + blockIdx.x;
  KeyRows<T, head_dim, forward_depth> rows(p, blockIdx.y);
  const Segment segment(p, static_cast<int>(blockIdx.z));
  rows.begin(segment.begin, segment.has_query ? segment.keys : 0);
  if (segment.has_query) {
    RowVector<T, head_dim> query;
    query.load(at<T>(p.q, static_cast<unsigned>(segment.row), head));
    // Probabilities are 2^(score - base). The base is an earlier maximum of the warp; it is only updated when a score
    // exceeds it by more than the threshold.
    constexpr float rescale_threshold = 8, initial_base = -1e30f;
    float sum[S::pack] = {}, base = initial_base, total = 0;
    const float scale = p.scale * log2_e;
    rows.each([&](unsigned, bool is_there, const P& k, const P& v) {
      float score = query.dot(k) * scale;
      if (!is_there) score = -INFINITY;
      if (__any_sync(0xffffffffu, score > base + rescale_threshold)) {
        const float new_base = fmaxf(max_over_groups<S::lanes>(score), base), rescale = exp2_approx(base - new_base);
        base = new_base;
        total *= rescale;
#pragma unroll
        for (float& value : sum) value *= rescale;
      }
      const float weight = exp2_approx(score - base);
      total += weight;
      float values[S::pack];
      v.widen(values);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) sum[i] += weight * values[i];
    });

    // Combines the warps at the largest base.
    __shared__ float sums[warps][head_dim];
    __shared__ float2 totals[warps]; // and their bases
    const unsigned warp_index = threadIdx.x / warp_size;
    reduce_groups<T, head_dim>(sum, sums[warp_index]);
    total = sum_over_groups<S::lanes>(total);
    if (threadIdx.x % warp_size == 0) totals[warp_index] = {total, base};
    __syncthreads();
    if (threadIdx.x < head_dim) {
      float2 all[warps];
      float out[1] = {};
#pragma unroll
      for (int w = 0; w < warps; ++w) all[w] = totals[w];
#pragma unroll
      for (int w = 0; w < warps; ++w) base = fmaxf(base, all[w].y);
      total = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        const float share = exp2_approx(all[w].y - base);
        total += share * all[w].x;
        out[0] += share * sums[w][threadIdx.x];
      }
      const bool fully_masked = segment.keys == 0;
      out[0] = fully_masked ? 0 : __fdividef(out[0], total);
      write(at<T>(p.out, static_cast<unsigned>(segment.row), head) + threadIdx.x, out);
      if (threadIdx.x == 0 && p.lse)
        p.lse[blockIdx.z * static_cast<unsigned>(p.heads_q) + head] = fully_masked ? 0 : base * ln_2 + __logf(total);
    }
  }
  zero_tail<T, head_dim>(p.out, p.heads_q, segment.filled_q, p.tokens_q);
}

// group_heads: query heads that share the key head. writes_keys: d_k and d_v are required.
template <class T, int head_dim, int group_heads, bool writes_keys>
__device__ void backward_rows(const DecodeProblem& p, const Segment& segment,
                              KeyRows<T, head_dim, backward_depth<group_heads>>& rows) {
  using S = ThreadLayout<T, head_dim>;
  using P = Pack<T, S::pack>;
  const unsigned head_kv = blockIdx.y, column = threadIdx.x % S::lanes * S::pack, warp_index = threadIdx.x / warp_size;
  const auto row = static_cast<unsigned>(segment.row), begin = static_cast<unsigned>(segment.begin);
  RowVector<T, head_dim> queries[group_heads], d_outs[group_heads];
  P out_packs[group_heads];
  float row_lse[group_heads], delta[group_heads], d_q[group_heads][S::pack] = {};
#pragma unroll
  for (unsigned g = 0; g < group_heads; ++g) {
    const unsigned head = head_kv * group_heads + g;
    queries[g].load(at<T>(p.q, row, head));
    d_outs[g].load(at<T>(p.d_out, row, head));
    out_packs[g].load(at<T>(p.out, row, head) + column);
    row_lse[g] = p.lse[blockIdx.z * static_cast<unsigned>(p.heads_q) + head];
  }
#pragma unroll
  for (int g = 0; g < group_heads; ++g) {
    float out[S::pack], d_out[S::pack], dot = 0;
    d_outs[g].own().widen(d_out);
    out_packs[g].widen(out);
#pragma unroll
    for (int i = 0; i < S::pack; ++i) dot += d_out[i] * out[i];
    delta[g] = group_sum<S::lanes>(dot);
    row_lse[g] *= log2_e;
  }
  const float scale2 = p.scale * log2_e;
  rows.each([&](unsigned key, bool is_there, const P& k, const P& v) {
    float keys_row[S::pack], d_k[S::pack] = {}, d_v[S::pack] = {};
    k.widen(keys_row);
#pragma unroll
    for (int g = 0; g < group_heads; ++g) {
      const float score = queries[g].dot(k), d_weight = d_outs[g].dot(v);
      const float weight = is_there ? exp2_approx(score * scale2 - row_lse[g]) : 0;
      const float d_score = weight * (d_weight - delta[g]) * p.scale;
      float q[S::pack], d_out[S::pack];
      queries[g].own().widen(q);
      d_outs[g].own().widen(d_out);
#pragma unroll
      for (int i = 0; i < S::pack; ++i) {
        if constexpr (writes_keys) {
          d_v[i] += weight * d_out[i];
          d_k[i] += d_score * q[i];
        }
        d_q[g][i] += d_score * keys_row[i];
      }
    }
    if (!writes_keys || !is_there) return;
    write(at<T>(p.d_k, begin + key, head_kv) + column, d_k);
    write(at<T>(p.d_v, begin + key, head_kv) + column, d_v);
  });
  __shared__ float sums[warps][group_heads * head_dim];
#pragma unroll
  for (int g = 0; g < group_heads; ++g) reduce_groups<T, head_dim>(d_q[g], sums[warp_index] + g * head_dim);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < group_heads * head_dim; i += threads) {
    float sum[1] = {};
#pragma unroll
    for (int w = 0; w < warps; ++w) sum[0] += sums[w][i];
    write(at<T>(p.d_q, row, head_kv * group_heads + i / head_dim) + i % head_dim, sum);
  }
}

template <class T, int head_dim, int group_heads, bool writes_keys>
__global__ void __launch_bounds__(threads, group_heads == 1 ? 3 : 1) decode_backward_kernel(DecodeProblem p) {
  KeyRows<T, head_dim, backward_depth<group_heads>> rows(p, blockIdx.y);
  const Segment segment(p, static_cast<int>(blockIdx.z));
  rows.begin(segment.begin, segment.has_query ? segment.keys : 0);
  if (segment.has_query) backward_rows<T, head_dim, group_heads, writes_keys>(p, segment, rows);
  zero_tail<T, head_dim>(p.d_q, p.heads_q, segment.filled_q, p.tokens_q);
  if constexpr (!writes_keys) return;
  if (!segment.has_query) {
    const auto begin = static_cast<unsigned>(segment.begin), end = begin + static_cast<unsigned>(segment.keys);
    zero_rows<T, head_dim>(p.d_k, blockIdx.y, begin, end, threadIdx.x, threads);
    zero_rows<T, head_dim>(p.d_v, blockIdx.y, begin, end, threadIdx.x, threads);
  }
  zero_tail<T, head_dim>(p.d_k, p.heads_kv, segment.filled_kv, p.tokens_kv);
  zero_tail<T, head_dim>(p.d_v, p.heads_kv, segment.filled_kv, p.tokens_kv);
}

// Calls body with the head dimension as an integral constant.
template <class Body>
void with_head_dim(int head_dim, const Body& body) {
  if (head_dim == 32)
    body(std::integral_constant<int, 32>{});
  else if (head_dim == 64)
    body(std::integral_constant<int, 64>{});
  else
    body(std::integral_constant<int, 128>{});
}

dim3 blocks_of(int segments, int heads_kv, int group_heads) {
  const auto size = [](int blocks) { return static_cast<unsigned>(blocks); };
  return dim3(size(group_heads), size(heads_kv),
              size(std::max(segments, (min_blocks - 1) / (heads_kv * group_heads) + 1)));
}

} // namespace

bool decode_supported(int head_dim, int heads_q, int heads_kv) {
  const int group_heads = heads_q / heads_kv;
  return (head_dim == 32 || head_dim == 64 || head_dim == 128) && (group_heads == 1 || group_heads == 3);
}

void decode_forward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& p) {
  dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_head_dim(p.head_dim, [&](auto head_dim) {
      decode_forward_kernel<T, head_dim.value>
          <<<blocks_of(p.segments, p.heads_kv, p.heads_q / p.heads_kv), threads, 0, stream_of(call)>>>(p);
    });
  });
  check_cuda(cudaGetLastError(), "launch");
}

void decode_backward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& p) {
  dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_head_dim(p.head_dim, [&](auto head_dim) {
      const auto launch = [&](auto kernel) {
        kernel<<<blocks_of(p.segments, p.heads_kv, 1), threads, 0, stream_of(call)>>>(p);
      };
      const auto launch_for = [&](auto group_heads) {
        if (p.d_k.data)
          launch(decode_backward_kernel<T, head_dim.value, group_heads.value, true>);
        else
          launch(decode_backward_kernel<T, head_dim.value, group_heads.value, false>);
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
