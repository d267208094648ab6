// warp_rows.cuh: the sixteen rows of a tile that a warp works on, the keys that a block keeps in shared memory, and how
// both are loaded and stored.
#pragma once

#include "block_tiles.cuh"
#include "rotary.cuh"

namespace fvlm::plugins {

// Flat rows first to first + 15 of a segment (see problem.h). Rows at and past `count` do not exist.
struct WarpRows {
  HeadGroup head_group;
  int begin, first, count;
  int head; // the first head of the group

  __device__ int token(int flat) const { return begin + head_group.row_of(flat); }
  __device__ int head_of(int flat) const { return head + flat - head_group.row_of(flat) * head_group.heads; }
  template <class T>
  __device__ T* at(const HeadRows& rows, int flat) const {
    return plugins::at<T>(rows, token(flat), head_of(flat));
  }
  // The row itself, or the last existing one. Products of rows that do not exist are dropped or have probability 0.
  __device__ int clamped(int flat) const { return min(flat, count - 1); }
};

// Calls body(row, pack index) for all packs of the sixteen rows, eight threads per row.
template <class Body>
__device__ void for_each_pack(const Body& body) {
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += warp_size / packs) body(n + lane_index() / packs, lane_index() % packs);
}

// Starts copying the rows to a tile that only this warp uses.
template <class T>
__device__ void copy_rows(const WarpRows& own, const HeadRows& rows, const Tile& tile) {
  for_each_pack([&](int row, int index) {
    cp_async_16(tile.at(row, index), own.at<T>(rows, own.clamped(own.first + row)) + index * pack);
  });
}
__device__ inline void copy_positions(const WarpRows& own, const std::int32_t* positions, std::int32_t* to) {
  const int row = lane_index();
  if (positions && row < rows_of_warp) cp_async_4(to + row, positions + own.token(own.clamped(own.first + row)));
}
// Rotates the rows once the copies have completed.
template <class T>
__device__ void rotate_rows(const Tile& tile, const std::int32_t* positions, const std::uint64_t* steps) {
#pragma unroll 1
  for (int row = lane_index() % 8; row < rows_of_warp; row += 8)
    rotate_in_place<T>(tile, row, copy_quarter(), steps, positions[row]);
  __syncwarp();
}

// Stores accumulators scaled by `factor` to the rows, through a tile that only this warp uses.
template <class T>
__device__ void store_rows(const WarpRows& own, const HeadRows& rows, const Tile& tile, const float (&x)[blocks][4],
                           const float (&factor)[2]) {
  __syncwarp(); // all lanes have read the tile's previous content
  store_accumulators<T>(tile, x, factor);
  for_each_pack([&](int row, int index) {
    if (own.first + row >= own.count) return;
    Pack<T, pack> values;
    values.load(tile.at<T>(row, index));
    values.store(own.at<T>(rows, own.first + row) + index * pack);
  });
}

// Stores what rounding took from the rows (Problem::out_compensation), through the same tile.
__device__ inline void store_compensation(const WarpRows& own, std::int8_t* compensation, int heads, const Tile& tile,
                                          const float (&x)[blocks][4], const float (&factor)[2]) {
  __syncwarp();
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float low = x[b][2 * h] * factor[h], high = x[b][2 * h + 1] * factor[h];
      const std::uint32_t kept = rounded<BFloat16>(low, high);
      const std::int32_t of_low = __float_as_int(low) - static_cast<std::int32_t>(kept << 16),
                         of_high = __float_as_int(high) - static_cast<std::int32_t>(kept & 0xffff0000u);
      // Byte 1 of both values.
      const std::uint32_t both = __byte_perm(static_cast<std::uint32_t>(min(of_low, 0x7fff)),
                                             static_cast<std::uint32_t>(min(of_high, 0x7fff)), 0x51);
      tile.at<std::uint16_t>(lane_index() / 4 + 8 * h, b / 2)[b % 2 * 4 + lane_in_quad()] =
          static_cast<std::uint16_t>(both);
    }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += 8) {
    const int row = n + lane_index() / 4, part = lane_index() % 4;
    if (own.first + row >= own.count) continue;
    const std::int64_t head_row = std::int64_t{own.token(own.first + row)} * heads + own.head_of(own.first + row);
    *reinterpret_cast<uint4*>(compensation + head_row * head_dim + part * 16) = *tile.at<uint4>(row, part);
  }
}

// The queries of a tile that belong to this warp, and how many keys they attend to.
struct WarpQueries {
  WarpRows rows;
  int keys, offset; // if causal, query i attends to keys up to i + offset
  bool causal;
  int in_block; // flat rows up to the end of the block's tile

  __device__ WarpQueries(const Problem& p, const BlockTile& block_tile, int head_kv)
      : rows{p.head_group, block_tile.begin_q, block_tile.tile * queries + warp_index() * rows_of_warp,
             block_tile.rows_q * p.head_group.heads, head_kv * p.head_group.heads},
        keys(block_tile.rows_kv), offset(block_tile.rows_kv - block_tile.rows_q), causal(p.causal),
        in_block(min((block_tile.tile + 1) * queries, rows.count)) {}

  __device__ int visible_keys(int flat) const {
    return causal ? min(max(rows.head_group.row_of(flat) + offset + 1, 0), keys) : keys;
  }
  // Keys needed by any row of the block, by any row of the warp, and visible to all rows of the warp.
  __device__ int keys_visible_to_block() const { return visible_keys(in_block - 1); }
  __device__ int keys_visible_to_warp() const {
    return rows.first < rows.count ? visible_keys(rows.clamped(rows.first + rows_of_warp - 1)) : 0;
  }
  __device__ int keys_visible_to_all() const { return visible_keys(rows.first); }
};

// The two accumulator rows of this thread, t / 4 and t / 4 + 8.
struct ThreadRows {
  int token[2], head[2], visible_keys[2];
  bool exists[2];

  __device__ explicit ThreadRows(const WarpQueries& own) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = own.rows.first + lane_index() / 4 + 8 * h, flat = own.rows.clamped(row);
      exists[h] = flat == row;
      token[h] = own.rows.token(flat), head[h] = own.rows.head_of(flat);
      visible_keys[h] = own.visible_keys(flat);
    }
  }
};

// Up to `capacity` keys and values of a segment in shared memory, loaded by all threads of the block.
template <class T, int capacity>
class Keys {
 public:
  static constexpr int bytes = capacity * (2 * row_bytes + 4);

  __device__ Keys(const Problem& p, const BlockTile& block_tile, int head, char* memory, const std::uint64_t* steps)
      : p_(p), begin_(block_tile.begin_kv), count_(block_tile.rows_kv), head_(head), memory_(memory), steps_(steps) {}

  __device__ Tile k() const { return {memory_}; }
  __device__ Tile v() const { return {memory_ + capacity * row_bytes}; }

  __device__ std::int32_t position(int row) const { return positions()[row]; }

  // Starts copying keys from `first` up to `end`, rounded up to a multiple of step_rows. The excess rows repeat the
  // last key: they get probability 0, but must be finite.
  template <int step_rows>
  __device__ void fetch(int first, int end) {
    for_each_row((end - first + step_rows - 1) / step_rows * step_rows, [&](int row, int part) {
      const int token = begin_ + min(first + row, count_ - 1);
      const T *from_k = at<T>(p_.k, token, head_), *from_v = at<T>(p_.v, token, head_);
#pragma unroll
      for (int index = part, half = 0; half < 2; index += 4, ++half) {
        cp_async_16(k().at(row, index), from_k + index * pack);
        cp_async_16(v().at(row, index), from_v + index * pack);
      }
      if (part == 0 && p_.positions_kv) cp_async_4(positions() + row, p_.positions_kv + token);
    });
  }
  // Calls body(first, keys, values) for every step_rows keys below the warp's `visible_keys`. All warps of the block
  // take part up to `end`. The first `capacity` keys must already have been fetched.
  template <int step_rows, class Body>
  __device__ void for_each_step(int end, int visible_keys, const Body& body) {
    for (int first = 0; first < end; first += capacity) {
      const int chunk_end = min(first + capacity, end);
      if (first > 0) {
        __syncthreads(); // no warp uses the previous keys any more
        fetch<step_rows>(first, chunk_end);
        cp_async_commit();
      }
      cp_async_wait<0>();
      __syncwarp();
      rotate(first, chunk_end);
      __syncthreads();
#pragma unroll 1
      for (int begin = first; begin < min(first + capacity, visible_keys); begin += step_rows)
        body(begin, k().rows_from(begin - first), v().rows_from(begin - first));
    }
  }
  // Rotates the fetched keys once the warp's copies have completed.
  __device__ void rotate(int first, int end) {
    if (!p_.positions_kv) return;
    for_each_row(end - first, [&](int row, int part) { rotate_in_place<T>(k(), row, part, steps_, positions()[row]); });
  }

 private:
  // Calls body(row, quarter) for the rows of this warp. Not unrolled, since code that runs once mostly waits for its
  // instructions to be loaded.
  template <class Body>
  __device__ static void for_each_row(int rows, const Body& body) {
#pragma unroll 1
    for (int first = warp_index() * 8; first < rows; first += threads / 4) body(first + copy_row() % 8, copy_quarter());
  }
  __device__ std::int32_t* positions() const {
    return reinterpret_cast<std::int32_t*>(memory_ + 2 * capacity * row_bytes);
  }

  const Problem& p_;
  int begin_, count_, head_;
  char* memory_;
  const std::uint64_t* steps_;
};

} // namespace fvlm::plugins
