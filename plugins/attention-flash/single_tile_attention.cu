// single_tile_attention.cu: attention, forward and backward, for segments of at most sixteen rows, such as the coarse
// decoder's: a warp computes one query head of a segment in a single tile of mma.sync. The warps of a block are the (at
// most 8) query heads that share a key head; they only meet to add up d_k and d_v. Rotation inside.
//
// Measured on an H200 (bf16, 9:3 heads, causal; bench/LOG.md, 2026-11-23), per layer: 8 segments of 8 rows 3.68 us
// forward and 5.30 us backward, 64 segments 5.11 and 7.02 us.
#include "softmax_gradient.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int max_head_group = 8;

// The shared memory of one warp.
struct alignas(128) WarpMemory {
  char q[max_single_tile_rows * row_bytes], k[max_single_tile_rows * row_bytes], v[max_single_tile_rows * row_bytes],
      d_out[max_single_tile_rows * row_bytes];
  std::uint64_t steps[frequencies];
  std::int32_t positions_q[max_single_tile_rows], positions_kv[max_single_tile_rows];
};
constexpr int half_tiles_floats = 2 * max_single_tile_rows * row_bytes / static_cast<int>(sizeof(float)); // in floats

struct Segment {
  WarpRows queries, keys;
  int end_q, end_kv; // of all segments

  __device__ explicit Segment(const Problem& p) {
    const int segment = static_cast<int>(blockIdx.x), head_kv = static_cast<int>(blockIdx.y);
    const int begin_q = p.cu_q[segment], behind_q = p.cu_q[segment + 1];
    const int begin_kv = p.cu_kv[segment], behind_kv = p.cu_kv[segment + 1];
    end_q = p.cu_q[p.segments], end_kv = p.cu_kv[p.segments];
    queries = {{}, begin_q, 0, behind_q - begin_q, head_kv * p.head_group.heads + warp_index()};
    keys = {{}, begin_kv, 0, behind_kv - begin_kv, head_kv};
  }
  __device__ bool is_empty() const { return queries.count == 0 || keys.count == 0; }
  // Whether accumulator element i of a block of 8 keys is a pair of query and key that is not masked.
  __device__ bool visible(bool causal, int block, int i) const {
    const int query = lane_index() / 4 + i / 2 * 8, key = 8 * block + column_of(i);
    return key < keys.count && query < queries.count && (!causal || key <= query + keys.count - queries.count);
  }
};

// Zeros this block's share of the padding rows after the last segment.
template <class T>
__device__ void zero_padding(const HeadRows& rows, int head, int segments_end, int tokens) {
  constexpr int at_once = warp_size / packs;
  const Pack<T, pack> row_reference{};
#pragma unroll 1
  for (int row = segments_end + static_cast<int>(blockIdx.x) * at_once + lane_index() / packs; row < tokens;
       row += static_cast<int>(gridDim.x) * at_once)
    row_reference.store(at<T>(rows, row, head) + lane_index() % packs * pack);
}

__device__ WarpMemory& warp_memory(int which) {
  extern __shared__ __align__(128) char memory[];
  return reinterpret_cast<WarpMemory*>(memory)[which];
}

// Starts copying the positions and frequencies for the rotation.
__device__ void copy_rotary_inputs(const Problem& p, const Segment& segment, WarpMemory& own) {
  copy_positions(segment.queries, p.positions_q, own.positions_q);
  copy_positions(segment.keys, p.positions_kv, own.positions_kv);
  own.steps[lane_index()] = p.steps[lane_index()];
}
template <class T>
__device__ void rotate(const Problem& p, WarpMemory& own) {
  if (!p.positions_q) return;
  rotate_rows<T>(Tile{own.q}, own.positions_q, own.steps);
  rotate_rows<T>(Tile{own.k}, own.positions_kv, own.steps);
}

// Scores: sixteen rows of one tile by sixteen of another.
template <class T>
__device__ void dot_tiles(const Tile& rows, const Tile& columns, float (&x)[2][4]) {
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step)
    mma_16x8x16<T>(x[0], x[1], load_a(rows, 0, step), load_b(columns, 0, step));
}
// Adds the rows of a tile, weighted by probabilities.
template <class T>
__device__ void add_weighted_rows(const Fragment& weights, const Tile& rows, float (&sum)[blocks][4]) {
#pragma unroll
  for (int pair = 0; pair < blocks / 2; ++pair)
    mma_16x8x16<T>(sum[2 * pair], sum[2 * pair + 1], weights, load_b_transposed(rows, 0, pair));
}

__device__ Fragment transposed(const Fragment& x) {
  const auto square = [](std::uint32_t from) {
    std::uint32_t to;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(from));
    return to;
  };
  return {{square(x.at[0]), square(x.at[2]), square(x.at[1]), square(x.at[3])}};
}

template <class T>
__global__ void __launch_bounds__(max_head_group* warp_size)
    single_tile_forward_kernel(const __grid_constant__ Problem p) {
  const Segment segment(p);
  zero_padding<T>(p.out, segment.queries.head, segment.end_q, p.tokens_q);
  if (segment.queries.count == 0) return;
  WarpMemory& own = warp_memory(warp_index());
  float sum[blocks][4] = {}, row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {};
  const float scale = p.scale * log2_e;
  if (segment.keys.count > 0) {
    copy_rows<T>(segment.queries, p.q, Tile{own.q});
    copy_rows<T>(segment.keys, p.k, Tile{own.k});
    copy_rows<T>(segment.keys, p.v, Tile{own.v});
    copy_rotary_inputs(p, segment, own);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    rotate<T>(p, own);
    float weights[2][4] = {};
    dot_tiles<T>(Tile{own.q}, Tile{own.k}, weights);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          if (!segment.visible(p.causal, b, i)) weights[b][i] = -INFINITY;
          row_max[h] = fmaxf(row_max[h], weights[b][i]);
        }
      row_max[h] = quad_max(row_max[h]);
      const float row_reference = row_max[h] == -INFINITY ? 0 : row_max[h] * scale; // all keys are masked
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i)
          row_sum[h] += weights[b][i] = exp2_approx(weights[b][i] * scale - row_reference);
      row_sum[h] = quad_sum(row_sum[h]);
    }
    add_weighted_rows<T>(to_a_fragment<T>(weights[0], weights[1]), Tile{own.v}, sum);
  }
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane_index() / 4 + 8 * h;
    factor[h] = row_sum[h] > 0 ? 1 / row_sum[h] : 0;
    if (p.lse && lane_in_quad() == 0 && row < segment.queries.count)
      p.lse[segment.queries.token(row) * p.heads_q + segment.queries.head] =
          row_sum[h] > 0 ? row_max[h] * scale + log2f(row_sum[h]) : INFINITY;
  }
  store_rows<T>(segment.queries, p.out, Tile{own.q}, sum, factor);
  if constexpr (std::is_same_v<T, BFloat16>)
    if (p.out_compensation)
      store_compensation(segment.queries, p.out_compensation, p.heads_q, Tile{own.k}, sum, factor);
}

template <class T>
__global__ void __launch_bounds__(max_head_group* warp_size)
    single_tile_backward_kernel(const __grid_constant__ Problem p) {
  const Segment segment(p);
  zero_padding<T>(p.d_q, segment.queries.head, segment.end_q, p.tokens_q);
  if (warp_index() == 0) {
    zero_padding<T>(p.d_k, segment.keys.head, segment.end_kv, p.tokens_kv);
    zero_padding<T>(p.d_v, segment.keys.head, segment.end_kv, p.tokens_kv);
  }
  WarpMemory& own = warp_memory(warp_index());
  const Tile q{own.q}, k{own.k}, v{own.v}, d_out{own.d_out};
  float d_q[blocks][4] = {}, d_k[blocks][4] = {}, d_v[blocks][4] = {};
  if (!segment.is_empty()) {
    copy_rows<T>(segment.queries, p.q, q);
    copy_rows<T>(segment.keys, p.k, k);
    copy_rows<T>(segment.keys, p.v, v);
    copy_rows<T>(segment.queries, p.d_out, d_out);
    copy_rotary_inputs(p, segment, own);
    cp_async_commit();
    const Outputs<T> outputs(p, segment.queries);
    float row_lse[2], delta[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      row_lse[h] = p.lse[segment.queries.token(segment.queries.clamped(lane_index() / 4 + 8 * h)) * p.heads_q +
                         segment.queries.head];
    cp_async_wait<0>();
    __syncwarp();
    outputs.deltas(d_out, delta);
    rotate<T>(p, own);
    float weights[2][4] = {}, d_scores[2][4] = {};
    dot_tiles<T>(q, k, weights);
    dot_tiles<T>(d_out, v, d_scores);
#pragma unroll
    for (int b = 0; b < 2; ++b)
      softmax_gradient(weights[b], d_scores[b], p.scale * log2_e, {row_lse[0], row_lse[0], row_lse[1], row_lse[1]},
                       {delta[0], delta[0], delta[1], delta[1]},
                       [&](int i) { return segment.visible(p.causal, b, i); });
    const Fragment by_scores = to_a_fragment<T>(d_scores[0], d_scores[1]);
    add_weighted_rows<T>(by_scores, k, d_q);
    add_weighted_rows<T>(transposed(by_scores), q, d_k);
    add_weighted_rows<T>(transposed(to_a_fragment<T>(weights[0], weights[1])), d_out, d_v);
    if (p.positions_q)
      rotate_back(d_q, own.steps, {own.positions_q[lane_index() / 4], own.positions_q[lane_index() / 4 + 8]});
  }
  store_rows<T>(segment.queries, p.d_q, q, d_q, {p.scale, p.scale});

  // The first warp sums d_k, the last one d_v. A warp stores what it does not sum itself in one half of its tiles each;
  // the half of the sum that it keeps is free for staging its rows.
  const int last = p.head_group.heads - 1;
  const auto partial = [&](int from, bool of_v, int b, int i) -> float& {
    return reinterpret_cast<float*>(
        &warp_memory(from))[(of_v ? half_tiles_floats : 0) + (b * 4 + i) * warp_size + lane_index()];
  };
  const auto store_partial = [&](const float(&x)[blocks][4], bool of_v) {
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) partial(warp_index(), of_v, b, i) = x[b][i];
  };
  const auto add_partials = [&](float(&x)[blocks][4], bool of_v) {
#pragma unroll 1
    for (int from = 0; from <= last; ++from)
      if (from != warp_index())
#pragma unroll
        for (int b = 0; b < blocks; ++b)
#pragma unroll
          for (int i = 0; i < 4; ++i) x[b][i] += partial(from, of_v, b, i);
  };
  __syncwarp(); // all lanes have read the tiles
  if (warp_index() != 0) store_partial(d_k, false);
  if (warp_index() != last) store_partial(d_v, true);
  __syncthreads();
  if (warp_index() == 0) {
    add_partials(d_k, false);
    if (p.positions_kv && !segment.is_empty())
      rotate_back(d_k, own.steps, {own.positions_kv[lane_index() / 4], own.positions_kv[lane_index() / 4 + 8]});
    store_rows<T>(segment.keys, p.d_k, q, d_k, {p.scale, p.scale});
  }
  if (warp_index() == last) {
    add_partials(d_v, true);
    store_rows<T>(segment.keys, p.d_v, v, d_v, {1, 1});
  }
}

template <class Kernel>
void enqueue_single_tile(const fvlm_call& call, Kernel kernel, const Problem& p) {
  const int bytes = p.head_group.heads * static_cast<int>(sizeof(WarpMemory));
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  const dim3 grid(static_cast<unsigned>(p.segments), static_cast<unsigned>(p.heads_kv));
  kernel<<<grid, static_cast<unsigned>(p.head_group.heads * warp_size), static_cast<std::size_t>(bytes),
           sdk::stream_of(call)>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace

bool single_tile_supported(const Problem& p, int longest_q, int longest_kv) {
  return p.segments > 0 && longest_q <= max_single_tile_rows && longest_kv <= max_single_tile_rows &&
         p.head_group.heads <= max_head_group && p.heads_kv <= 65535;
}

void single_tile_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_single_tile(call, single_tile_forward_kernel<typename decltype(element)::type>, p);
  });
}

void single_tile_backward(const fvlm_call& call, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_single_tile(call, single_tile_backward_kernel<typename decltype(element)::type>, p);
  });
}

} // namespace fvlm::plugins
