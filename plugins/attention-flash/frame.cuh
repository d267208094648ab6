// frame.cuh: what the kernels for frames have in common: segments whose queries and keys of a head fit in shared
// memory, each head of a segment a block's work for a while. For Hopper.
#pragma once

#include "common/cuda_boxes.h"
#include "common/cuda_hopper.cuh"
#include "segments.cuh"

namespace fvlm::plugins {

constexpr int large_box = 64, small_box = 8, most_small_rows = most_rows % large_box;
constexpr int rows_bytes = most_rows * row_bytes; // of a head's queries, keys or values in shared memory

// Rows of heads as the copy engine reads them. The last rows of a segment come in small boxes.
struct HeadBoxes {
  CUtensorMap large, small;
  int head; // elements from a head to the next
};

inline bool fits_boxes(const Rows& rows, int heads) {
  return copy_engine_takes(rows.data, rows.row / 2) && rows.head % 16 == 0 &&
         int64_t{rows.head} / 2 * heads <= INT32_MAX; // columns of boxes
}
inline HeadBoxes boxes_of_heads(fvlm_dtype dtype, const Rows& rows, int tokens, int heads) {
  const int64_t row = rows.row / 2, head = rows.head / 2, columns = (heads - 1) * head + head_dim;
  return {boxes_of(dtype, rows.data, row, tokens, columns, large_box),
          boxes_of(dtype, rows.data, row, tokens, columns, small_box), static_cast<int>(head)};
}

// A head of a segment.
struct Unit {
  int begin_q, rows_q, begin_kv, rows_kv, head, guest; // -1: it has none

  __device__ bool exists() const { return head >= 0; }
};

// What a block has of the heads of all segments that `Wanted` says yes to: every so many of them. For a warp.
template <class Wanted>
class Units {
 public:
  __device__ Units(const Problem& p, const Wanted& wanted)
      : p_(p), wanted_(wanted), own_(segment(lane_index())), ahead_(segment(warp + lane_index())) {}

  // The next one, the same in all threads.
  __device__ Unit next() {
    const int segment_wanted = number_ / p_.heads_q, head = number_ % p_.heads_q;
    number_ += static_cast<int>(gridDim.x);
    for (;;) {
      const bool is_wanted = own_.exists() && wanted_(own_);
      const unsigned all = __ballot_sync(0xffffffffu, is_wanted);
      const int count = __popc(all);
      if (segment_wanted < before_ + count) {
        const bool found = is_wanted && before_ + __popc(all & ((1u << lane_index()) - 1)) == segment_wanted;
        const int lane = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, found))) - 1;
        const auto of_lane = [lane](int value) { return __shfl_sync(0xffffffffu, value, lane); };
        return {of_lane(own_.begin_q), of_lane(own_.rows_q), of_lane(own_.begin_kv), of_lane(own_.rows_kv), head,
                of_lane(own_.guest)};
      }
      first_ += warp;
      if (first_ >= p_.segments) return {0, 0, 0, 0, -1, -1};
      before_ += count;
      own_ = ahead_;
      ahead_ = segment(first_ + warp + lane_index());
    }
  }

 private:
  // A thread looks at one of 32 segments, and has the one 32 behind it on its way.
  __device__ Unit segment(int s) const {
    if (s >= p_.segments) return {0, 0, 0, 0, -1, -1};
    const volatile std::int32_t *cu_q = p_.cu_q, *cu_kv = p_.cu_kv; // so that all four are on their way at once
    const int begin_q = cu_q[s], end_q = cu_q[s + 1], begin_kv = cu_kv[s], end_kv = cu_kv[s + 1];
    const int guest = p_.cu_guests && p_.cu_guests[s] < p_.cu_guests[s + 1] ? p_.cu_guests[s] : -1;
    return {begin_q, end_q - begin_q, begin_kv, end_kv - begin_kv, 0, guest};
  }

  const Problem& p_;
  const Wanted wanted_;
  Unit own_, ahead_;
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
#pragma unroll 1
  for (; row + large_box <= end; row += large_box)
    hopper::load_box(to + row * row_bytes, boxes.large, column, begin + row, barrier);
#pragma unroll 1
  for (; row < end; row += small_box) hopper::load_box(to + row * row_bytes, boxes.small, column, begin + row, barrier);
}

// A left operand's registers of a step of a product, from eight values of a thread's rows of another one.
using Left = std::uint32_t[4];

template <class T>
__device__ void round_to(Left& left, const float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = rounded<T>(x[2 * i], x[2 * i + 1]);
}

// Where a thread has its row of the four squares that make up sixteen rows and columns of a tile; `step` squares' pairs
// further it is that ^ step << 5.
__device__ inline std::uint32_t squares_at(const char* memory) {
  const int lane = lane_index(), in_square = lane % 8;
  return shared_address(memory) +
         static_cast<std::uint32_t>((lane / 8 % 2 * 8 + in_square) * row_bytes + ((lane / 16 ^ in_square) << 4));
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

// Sixteen rows of products, those of rows t / 4 and t / 4 + 8 times `factor`, to the head's rows from `row` on, as far
// as there are `count`. By way of memory of the warp's own.
template <class T>
__device__ void store_products(const Rows& to, int row, int count, int head, const hopper::ProductOf<64>& x,
                               const float (&factor)[2], char* memory) {
  const std::uint32_t squares = squares_at(memory);
#pragma unroll
  for (unsigned step = 0; step < head_dim / 16; ++step) {
    const float* y = x + 8 * step;
    hopper::Squares{{rounded<T>(y[0] * factor[0], y[1] * factor[0]), rounded<T>(y[2] * factor[1], y[3] * factor[1]),
                     rounded<T>(y[4] * factor[0], y[5] * factor[0]), rounded<T>(y[6] * factor[1], y[7] * factor[1])}}
        .store(squares ^ step << 5);
  }
  __syncwarp();
  constexpr int at_once = warp / packs; // rows
  const int first = lane_index() / packs, index = lane_index() % packs;
  char* const own = reinterpret_cast<char*>(at<T>(to, row + first, head) + index * pack);
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += at_once) {
    Pack<T, pack> values;
    values.load(Tile{memory}.at<T>(first + n, index));
    if (first + n < count) values.store(reinterpret_cast<T*>(own + n * static_cast<int64_t>(to.row)));
  }
  __syncwarp();
}

} // namespace fvlm::plugins
