// frame.cuh: what the kernels for frames have in common: segments whose queries and keys of a head fit in shared
// memory, each head of a segment a block's work for a while. For Hopper.
#pragma once

#include "common/cuda_boxes.h"
#include "common/cuda_hopper.cuh"
#include "rows.cuh"

namespace fvlm::plugins {

constexpr int large_box = 64, small_box = 8, most_small_rows = most_rows % large_box;
constexpr int rows_bytes = most_rows * row_bytes; // of a head's queries, keys or values in shared memory

// Rows of heads as the copy engine reads them. The last rows of a segment come in small boxes.
struct HeadBoxes {
  CUtensorMap large, small;
  int head; // elements from a head to the next
};

inline bool fits_boxes(const Rows& rows) {
  return copy_engine_takes(rows.data, rows.row / 2) && rows.head % 16 == 0;
}
inline HeadBoxes boxes_of_heads(fvlm_dtype dtype, const Rows& rows, int tokens, int heads) {
  const int64_t row = rows.row / 2, head = rows.head / 2, columns = (heads - 1) * head + head_dim;
  return {boxes_of(dtype, rows.data, row, tokens, columns, large_box),
          boxes_of(dtype, rows.data, row, tokens, columns, small_box), static_cast<int>(head)};
}

// A head of a segment.
struct Unit {
  int begin_q, rows_q, begin_kv, rows_kv, head;

  __device__ bool exists() const { return head >= 0; }
};

// What a block has of the heads of all segments that `Wanted` says yes to: every so many of them. For a warp.
template <class Wanted>
class Units {
 public:
  __device__ Units(const Problem& p, const Wanted& wanted) : p_(p), wanted_(wanted) { look(); }

  // The next one, the same in all threads.
  __device__ Unit next() {
    const int segment = number_ / p_.heads_q, head = number_ % p_.heads_q;
    number_ += static_cast<int>(gridDim.x);
    for (;;) {
      const unsigned all = __ballot_sync(0xffffffffu, is_wanted_);
      const int count = __popc(all);
      if (segment < before_ + count) {
        const bool found = is_wanted_ && before_ + __popc(all & ((1u << lane_index()) - 1)) == segment;
        const int lane = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, found))) - 1;
        const auto of_lane = [lane](int value) { return __shfl_sync(0xffffffffu, value, lane); };
        return {of_lane(own_.begin_q), of_lane(own_.rows_q), of_lane(own_.begin_kv), of_lane(own_.rows_kv), head};
      }
      if (first_ + warp >= p_.segments) return {0, 0, 0, 0, -1};
      before_ += count;
      first_ += warp;
      look();
    }
  }

 private:
  // At the next 32 segments, one a thread.
  __device__ void look() {
    const int s = min(first_ + lane_index(), p_.segments), next = min(s + 1, p_.segments);
    const volatile std::int32_t *cu_q = p_.cu_q, *cu_kv = p_.cu_kv; // so that all four are on their way at once
    const int begin_q = cu_q[s], end_q = cu_q[next], begin_kv = cu_kv[s], end_kv = cu_kv[next];
    own_ = {begin_q, end_q - begin_q, begin_kv, end_kv - begin_kv, 0};
    is_wanted_ = s < next && wanted_(own_);
  }

  const Problem& p_;
  const Wanted wanted_;
  Unit own_;
  bool is_wanted_;
  int number_ = static_cast<int>(blockIdx.x), first_ = 0, before_ = 0; // wanted ones before `first_`
};

// Copies of `rows` rows from `begin` on, and some behind them, as whole boxes. For one thread.
__device__ inline int loaded_rows(int rows) {
  const int whole = rows / large_box * large_box, rest = rows - whole;
  return whole + (rest > most_small_rows ? large_box : (rest + small_box - 1) / small_box * small_box);
}
__device__ inline void load_rows(char* to, const HeadBoxes& boxes, int head, int begin, int rows,
                                 hopper::Barrier& barrier) {
  const int end = loaded_rows(rows), column = head * boxes.head;
  int row = 0;
  for (; row + large_box <= end; row += large_box)
    hopper::load_box(to + row * row_bytes, boxes.large, column, begin + row, barrier);
  for (; row < end; row += small_box) hopper::load_box(to + row * row_bytes, boxes.small, column, begin + row, barrier);
}

// Zeros the rows behind those of a segment, as products read them. For a warp; the tensor cores see it.
template <class T>
__device__ void zero_behind(char* memory, int rows) {
  const Tile tile{memory};
  const Pack<T, pack> zero{};
  for (int i = rows * packs + lane_index(); i < most_rows * packs; i += warp)
    zero.store(tile.at<T>(i / packs, i % packs));
  hopper::before_copies();
  __syncwarp();
}

} // namespace fvlm::plugins
