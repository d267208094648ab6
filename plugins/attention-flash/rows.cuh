// rows.cuh: what a warp has of a tile: sixteen rows, queries or keys, and how they come and go.
#pragma once

#include "rotation.cuh"
#include "segments.cuh"

namespace fvlm::plugins {

// Row f of a segment, counted as Problem says; f = first .. first + 15, those at and past `count` are not there.
struct WarpRows {
  Sharing sharing;
  int begin, first, count;
  int head; // the first of those that share rows

  __device__ int token(int flat) const { return begin + sharing.row_of(flat); }
  __device__ int head_of(int flat) const { return head + flat - sharing.row_of(flat) * sharing.heads; }
  template <class T>
  __device__ T* at(const Rows& rows, int flat) const {
    return plugins::at<T>(rows, token(flat), head_of(flat));
  }
  // The row itself, or the last one instead of one that is not there: its products are dropped, or have weight 0.
  __device__ int there(int flat) const { return min(flat, count - 1); }
};

// body(row of the 16, pack): all packs of the rows, a quarter of a row a thread and time.
template <class Body>
__device__ void each_pack(const Body& body) {
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += warp / packs) body(n + lane_index() / packs, lane_index() % packs);
}

// Begins to copy them to a tile of the warp's own.
template <class T>
__device__ void copy_rows(const WarpRows& own, const Rows& rows, const Tile& tile) {
  each_pack([&](int row, int index) {
    copy_pack(tile.at(row, index), own.at<T>(rows, own.there(own.first + row)) + index * pack);
  });
}
__device__ inline void copy_positions(const WarpRows& own, const std::int32_t* positions, std::int32_t* to) {
  const int row = lane_index();
  if (positions && row < rows_of_warp) copy_word(to + row, positions + own.token(own.there(own.first + row)));
}
// Turns them where they have arrived.
template <class T>
__device__ void turn_rows(const Tile& tile, const std::int32_t* positions, const std::uint64_t* steps) {
#pragma unroll 1
  for (int row = lane_index() % 8; row < rows_of_warp; row += 8)
    turn_in_place<T>(tile, row, filled_part(), steps, positions[row]);
  __syncwarp();
}

// Writes products times `factor` to them, by way of a tile of the warp's own.
template <class T>
__device__ void store_rows(const WarpRows& own, const Rows& rows, const Tile& tile, const float (&x)[blocks][4],
                           const float (&factor)[2]) {
  __syncwarp(); // of what the tile held, all has been read
  store_products<T>(tile, x, factor);
  each_pack([&](int row, int index) {
    if (own.first + row >= own.count) return;
    Pack<T, pack> values;
    values.load(tile.at<T>(row, index));
    values.store(own.at<T>(rows, own.first + row) + index * pack);
  });
}

// What rounding took from them, as Problem says, by way of the same tile.
__device__ inline void store_rests(const WarpRows& own, std::int8_t* rests, int heads, const Tile& tile,
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
      // The second bytes of both.
      const std::uint32_t both = __byte_perm(static_cast<std::uint32_t>(min(of_low, 0x7fff)),
                                             static_cast<std::uint32_t>(min(of_high, 0x7fff)), 0x51);
      tile.at<std::uint16_t>(lane_index() / 4 + 8 * h, b / 2)[b % 2 * 4 + part_index()] =
          static_cast<std::uint16_t>(both);
    }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < rows_of_warp; n += 8) {
    const int row = n + lane_index() / 4, part = lane_index() % 4;
    if (own.first + row >= own.count) continue;
    const std::int64_t head_row = std::int64_t{own.token(own.first + row)} * heads + own.head_of(own.first + row);
    *reinterpret_cast<uint4*>(rests + head_row * head_dim + part * 16) = *tile.at<uint4>(row, part);
  }
}

// The queries of a tile that a warp has, and how many keys they see.
struct Queries {
  WarpRows rows;
  int keys, offset; // query i sees keys up to i + offset where causal
  bool causal;
  int in_block; // flat rows up to the end of the block's tile

  __device__ Queries(const Problem& p, const Place& place, int head_kv)
      : rows{p.sharing, place.begin_q, place.tile * queries + warp_index() * rows_of_warp,
             place.rows_q * p.sharing.heads, head_kv * p.sharing.heads},
        keys(place.rows_kv), offset(place.rows_kv - place.rows_q), causal(p.causal),
        in_block(min((place.tile + 1) * queries, rows.count)) {}

  __device__ int seen(int flat) const {
    return causal ? min(max(rows.sharing.row_of(flat) + offset + 1, 0), keys) : keys;
  }
  // By any row of the block; by any of the warp; by all of the warp.
  __device__ int seen_by_block() const { return seen(in_block - 1); }
  __device__ int seen_by_warp() const {
    return rows.first < rows.count ? seen(rows.there(rows.first + rows_of_warp - 1)) : 0;
  }
  __device__ int seen_by_all() const { return seen(rows.first); }
};

// The thread's two rows of the warp's products: t / 4 and t / 4 + 8.
struct ThreadRows {
  int token[2], head[2], seen[2];
  bool there[2];

  __device__ explicit ThreadRows(const Queries& own) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int wanted = own.rows.first + lane_index() / 4 + 8 * h, flat = own.rows.there(wanted);
      there[h] = flat == wanted;
      token[h] = own.rows.token(flat), head[h] = own.rows.head_of(flat);
      seen[h] = own.seen(flat);
    }
  }
};

// Some keys and values of a segment in shared memory, `most` of them. The block's threads share the work, a quarter of
// a row each.
template <class T, int most>
class Keys {
 public:
  static constexpr int bytes = most * (2 * row_bytes + 4);

  __device__ Keys(const Problem& p, const Place& place, int head, char* memory, const std::uint64_t* steps)
      : p_(p), begin_(place.begin_kv), count_(place.rows_kv), head_(head), memory_(memory), steps_(steps) {}

  __device__ Tile k() const { return {memory_}; }
  __device__ Tile v() const { return {memory_ + most * row_bytes}; }

  __device__ std::int32_t position(int row) const { return positions()[row]; }

  // Begins to copy those from `first` on, as far as `end`, and on to a multiple of `span` the last one: what is there
  // has weight 0, but has to be a number.
  template <int span>
  __device__ void fetch(int first, int end) {
    each((end - first + span - 1) / span * span, [&](int row, int part) {
      const int token = begin_ + min(first + row, count_ - 1);
      const T *from_k = at<T>(p_.k, token, head_), *from_v = at<T>(p_.v, token, head_);
#pragma unroll
      for (int index = part, turn = 0; turn < 2; index += 4, ++turn) {
        copy_pack(k().at(row, index), from_k + index * pack);
        copy_pack(v().at(row, index), from_v + index * pack);
      }
      if (part == 0 && p_.positions_kv) copy_word(positions() + row, p_.positions_kv + token);
    });
  }
  // body(first, keys, values) for each `span` of them below `seen`, which is the warp's. All of the block's warps come
  // along as far as `end`; what shared memory holds at once has been fetched from 0 on.
  template <int span, class Body>
  __device__ void walk(int end, int seen, const Body& body) {
    for (int first = 0; first < end; first += most) {
      const int behind = min(first + most, end);
      if (first > 0) {
        __syncthreads(); // nobody uses those before any more
        fetch<span>(first, behind);
        end_group();
      }
      wait_for_copies<0>();
      __syncwarp();
      settle(first, behind);
      __syncthreads();
#pragma unroll 1
      for (int begin = first; begin < min(first + most, seen); begin += span)
        body(begin, k().rows_from(begin - first), v().rows_from(begin - first));
    }
  }
  // Turns the keys that were fetched, when the warp's copies have ended.
  __device__ void settle(int first, int end) {
    if (!p_.positions_kv) return;
    each(end - first, [&](int row, int part) { turn_in_place<T>(k(), row, part, steps_, positions()[row]); });
  }

 private:
  // body(row, quarter), as far as a warp has one of the rows. Not unrolled: instructions that run once are waited for.
  template <class Body>
  __device__ static void each(int rows, const Body& body) {
#pragma unroll 1
    for (int first = warp_index() * 8; first < rows; first += threads / 4)
      body(first + filled_row() % 8, filled_part());
  }
  __device__ std::int32_t* positions() const {
    return reinterpret_cast<std::int32_t*>(memory_ + 2 * most * row_bytes);
  }

  const Problem& p_;
  int begin_, count_, head_;
  char* memory_;
  const std::uint64_t* steps_;
};

} // namespace fvlm::plugins
