// persistent.cuh: what the persistent kernels share: iteration over the (segment, head) work units of a block, TMA
// loads of a head's rows, and stores from accumulators. The queries and keys of a unit fit in shared memory. For
// Hopper.
#pragma once

#include "block_tiles.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"

namespace fvlm::plugins {

constexpr int large_box = 64, small_box = 8, max_small_box_rows = max_persistent_rows % large_box;
constexpr int rows_bytes = max_persistent_rows * row_bytes; // of a head's queries, keys or values in shared memory

// Tensor maps of [tokens, heads, head_dim]. The last rows of a segment are loaded in small boxes, so that little is
// read past its end.
struct HeadTensorMaps {
  CUtensorMap large, small;
  int head; // head stride in elements
};

inline bool heads_tma_compatible(const HeadRows& rows, int heads) {
  return tma_compatible(rows.data, rows.row_stride / 2) && rows.head_stride % 16 == 0 &&
         int64_t{rows.head_stride} / 2 * heads <= INT32_MAX; // box coordinates are 32-bit
}
inline HeadTensorMaps head_tensor_maps(fvlm_dtype dtype, const HeadRows& rows, int tokens, int heads,
                                       CUtensorMapL2promotion promotion = usual_promotion) {
  const int64_t row = rows.row_stride / 2, head = rows.head_stride / 2, columns = (heads - 1) * head + head_dim;
  return {make_tensor_map(dtype, rows.data, row, tokens, columns, large_box, promotion),
          make_tensor_map(dtype, rows.data, row, tokens, columns, small_box, promotion), static_cast<int>(head)};
}

// The work unit of a block: one head of one segment.
struct WorkUnit {
  int begin_q, rows_q, begin_kv, rows_kv, head, deferred; // deferred: index of the segment's deferred query, or -1

  __device__ bool exists() const { return head >= 0; }
};

// The units of this block: every gridDim.x-th head of the segments that match the predicate. Called by a whole warp.
template <class Predicate>
class WorkUnits {
 public:
  __device__ WorkUnits(const Problem& p, const Predicate& predicate)
      : p_(p), predicate_(predicate), current_(segment(lane_index())), next_(segment(warp_size + lane_index())) {}

  // Returns the next unit, the same in all threads.
  __device__ WorkUnit next() {
    const int segment_index = next_unit_ / p_.heads_q, head = next_unit_ % p_.heads_q;
    next_unit_ += static_cast<int>(gridDim.x);
    for (;;) {
      const bool is_match = current_.exists() && predicate_(current_);
      const unsigned all = __ballot_sync(0xffffffffu, is_match);
      const int count = __popc(all);
      if (segment_index < matches_before_ + count) {
        const bool found = is_match && matches_before_ + __popc(all & ((1u << lane_index()) - 1)) == segment_index;
        const int lane = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, found))) - 1;
        const auto of_lane = [lane](int value) { return __shfl_sync(0xffffffffu, value, lane); };
        return {of_lane(current_.begin_q),
                of_lane(current_.rows_q),
                of_lane(current_.begin_kv),
                of_lane(current_.rows_kv),
                head,
                of_lane(current_.deferred)};
      }
      first_ += warp_size;
      if (first_ >= p_.segments) return {0, 0, 0, 0, -1, -1};
      matches_before_ += count;
      current_ = next_;
      next_ = segment(first_ + warp_size + lane_index());
    }
  }

 private:
  // Each lane examines one of 32 segments, and already loads the one 32 further on.
  __device__ WorkUnit segment(int s) const {
    if (s >= p_.segments) return {0, 0, 0, 0, -1, -1};
    // volatile, so that all four loads are in flight at once
    const volatile std::int32_t *cu_q = p_.cu_q, *cu_kv = p_.cu_kv;
    const int begin_q = cu_q[s], end_q = cu_q[s + 1], begin_kv = cu_kv[s], end_kv = cu_kv[s + 1];
    const int deferred = p_.cu_deferred && p_.cu_deferred[s] < p_.cu_deferred[s + 1] ? p_.cu_deferred[s] : -1;
    return {begin_q, end_q - begin_q, begin_kv, end_kv - begin_kv, 0, deferred};
  }

  const Problem& p_;
  const Predicate predicate_;
  WorkUnit current_, next_;
  int next_unit_ = static_cast<int>(blockIdx.x), first_ = 0, matches_before_ = 0; // matching segments before `first_`
};

// Rows that tma_load_rows() transfers for a segment of `rows` rows: whole boxes, so some rows after the last. Loads are
// issued by one thread.
__device__ inline int loaded_rows(int rows) {
  const int task = rows / large_box * large_box, remainder = rows - task;
  return task + (remainder > max_small_box_rows ? large_box : (remainder + small_box - 1) / small_box * small_box);
}
__device__ inline void tma_load_rows(char* to, const HeadTensorMaps& boxes, int head, int begin, int rows,
                                     hopper::Barrier& barrier) {
  const int end = loaded_rows(rows), column = head * boxes.head;
  int row = 0;
#pragma unroll 1
  for (; row + large_box <= end; row += large_box)
    hopper::tma_load(to + row * row_bytes, boxes.large, column, begin + row, barrier);
#pragma unroll 1
  for (; row < end; row += small_box) hopper::tma_load(to + row * row_bytes, boxes.small, column, begin + row, barrier);
}

// The registers of an A operand of wgmma for 16 columns, converted from eight accumulator values of the thread's rows.
using AFragment = std::uint32_t[4];

template <class T>
__device__ void round_to(AFragment& left, const float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = rounded<T>(x[2 * i], x[2 * i + 1]);
}

// The address that this lane passes to ldmatrix or stmatrix for a 16 x 16 part of a tile. The part `step` columns of 16
// further on is at that address ^ step << 5.
__device__ inline std::uint32_t matrix_address(const char* memory) {
  const int lane = lane_index(), row_in_matrix = lane % 8;
  return shared_address(memory) + static_cast<std::uint32_t>((lane / 8 % 2 * 8 + row_in_matrix) * row_bytes +
                                                             ((lane / 16 ^ row_in_matrix) << 4));
}

// Zeros rows after the last of a segment, which wgmma reads, and makes that visible to the tensor cores. Called by a
// whole warp.
template <class T>
__device__ void zero_rows_between(char* memory, int begin, int end) {
  const Tile tile{memory};
  const Pack<T, pack> zero{};
  for (int i = begin * packs + lane_index(); i < end * packs; i += warp_size)
    zero.store(tile.at<T>(i / packs, i % packs));
  hopper::fence_proxy_async();
  __syncwarp();
}

// Stores a warp's 16 accumulator rows, scaled by `factor` (of rows t / 4 and t / 4 + 8), to the head's rows from `row`
// on, at most `count` of them. Goes through shared memory of the warp so that global stores are whole packs.
template <class T>
__device__ void store_accumulators(const HeadRows& to, int row, int count, int head, const hopper::Accumulator<64>& x,
                                   const float (&factor)[2], char* memory) {
  const std::uint32_t squares = matrix_address(memory);
#pragma unroll
  for (unsigned step = 0; step < head_dim / 16; ++step) {
    const float* y = x + 8 * step;
    hopper::Matrix8x8x4{{rounded<T>(y[0] * factor[0], y[1] * factor[0]), rounded<T>(y[2] * factor[1], y[3] * factor[1]),
                         rounded<T>(y[4] * factor[0], y[5] * factor[0]),
                         rounded<T>(y[6] * factor[1], y[7] * factor[1])}}
        .store(squares ^ step << 5);
  }
  __syncwarp();
  constexpr int at_once = warp_size / packs; // rows per iteration
  const int first = lane_index() / packs, index = lane_index() % packs;
  char* const own = reinterpret_cast<char*>(at<T>(to, row + first, head) + index * pack);
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += at_once) {
    Pack<T, pack> values;
    values.load(Tile{memory}.at<T>(first + n, index));
    if (first + n < count) values.store(reinterpret_cast<T*>(own + n * static_cast<int64_t>(to.row_stride)));
  }
  __syncwarp();
}

// Zeros the outputs after the last segment, shared by one warp of every block.
template <class T>
__device__ void zero_padding(const Problem& p) {
  const int begin = p.cu_q[p.segments] * p.heads_q, end = p.tokens_q * p.heads_q, step = warp_size / packs;
  const Pack<T, pack> zero{};
  for (int i = begin + static_cast<int>(blockIdx.x) * step + lane_index() / packs; i < end;
       i += static_cast<int>(gridDim.x) * step)
    zero.store(at<T>(p.out, i / p.heads_q, i % p.heads_q) + lane_index() % packs * pack);
}

} // namespace fvlm::plugins
