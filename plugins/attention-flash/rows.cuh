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

  __device__ int64_t token(int flat) const { return begin + sharing.row_of(flat); }
  __device__ int head_of(int flat) const { return head + flat - sharing.row_of(flat) * sharing.heads; }
  template <class T>
  __device__ T* at(const HeadRows& rows, int flat) const {
    return plugins::at<T>(rows, token(flat), head_of(flat));
  }
};

// body(row of the 16, pack, there): all packs of the rows, a quarter of a row a thread and time.
template <class Body>
__device__ void each_pack(const WarpRows& own, const Body& body) {
#pragma unroll
  for (int i = lane_index(); i < rows_of_warp * packs; i += warp)
    body(i / packs, i % packs, own.first + i / packs < own.count);
}

// Begins to copy them to a tile of the warp's own.
template <class T>
__device__ void copy_rows(const WarpRows& own, const HeadRows& rows, const Tile& tile) {
  each_pack(own, [&](int row, int index, bool there) {
    copy_pack(tile.at(row, index), there ? own.at<T>(rows, own.first + row) + index * pack : rows.data, there);
  });
}

// Writes products times `factor` to them, by way of a tile of the warp's own.
template <class T>
__device__ void store_rows(const WarpRows& own, const HeadRows& rows, const Tile& tile, const float (&x)[blocks][4],
                           const float (&factor)[2]) {
  store_products<T>(tile, x, factor);
  each_pack(own, [&](int row, int index, bool there) {
    if (!there) return;
    Pack<T, pack> values;
    values.load(tile.at<T>(row, index));
    values.store(own.at<T>(rows, own.first + row) + index * pack);
  });
}

// The queries of a tile that a warp has, and how many keys they see.
struct Queries {
  WarpRows rows;
  int keys, offset; // query i sees keys up to i + offset where causal
  bool causal;
  int in_block; // flat rows up to the end of the block's tile

  __device__ Queries(const Problem& p, const Place& place, int head_kv)
      : rows{p.sharing, place.begin_q, place.tile * queries + thread_index() / warp * rows_of_warp,
             place.rows_q * p.sharing.heads, head_kv * p.sharing.heads},
        keys(place.rows_kv), offset(place.rows_kv - place.rows_q), causal(p.causal),
        in_block(min((place.tile + 1) * queries, rows.count)) {}

  __device__ int seen(int flat) const {
    return causal ? min(max(rows.sharing.row_of(flat) + offset + 1, 0), keys) : keys;
  }
  // By any row of the block; by any of the warp; by all of the warp.
  __device__ int seen_by_block() const { return seen(in_block - 1); }
  __device__ int seen_by_warp() const {
    return rows.first < rows.count ? seen(min(rows.first + rows_of_warp, rows.count) - 1) : 0;
  }
  __device__ int seen_by_all() const { return seen(rows.first); }
};

// The thread's two rows of the warp's products: t / 4 and t / 4 + 8.
struct ThreadRows {
  int flat[2], position[2] = {}, seen[2] = {};
  bool there[2];

  __device__ ThreadRows(const Queries& own, const std::int32_t* positions) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      flat[h] = own.rows.first + lane_index() / 4 + 8 * h;
      there[h] = flat[h] < own.rows.count;
      if (!there[h]) continue;
      seen[h] = own.seen(flat[h]);
      if (positions) position[h] = positions[own.rows.token(flat[h])];
    }
  }
};

// The keys and values of a segment, tile after tile, `depth` of each kept: with two, one is computed with while the
// next is fetched. The block's threads share the work, a quarter of a row each.
template <class T, int depth>
class Keys {
 public:
  static constexpr int bytes = 2 * depth * keys * row_bytes;

  __device__ Keys(const Problem& p, const Place& place, int head, char* memory, const std::uint64_t* steps)
      : p_(p), begin_(place.begin_kv), count_(place.rows_kv), head_(head), memory_(memory), steps_(steps) {}

  __device__ Tile k(int tile) const { return {memory_ + tile % depth * 2 * keys * row_bytes}; }
  __device__ Tile v(int tile) const { return {memory_ + (tile % depth * 2 + 1) * keys * row_bytes}; }

  // Keys on the way into registers, values into their tile.
  __device__ void fetch(int tile) {
    const int row = thread_index() / 4, part = thread_index() % 4, key = tile * keys + row;
    there_ = key < count_;
    const int64_t token = there_ ? begin_ + key : 0;
    halves_ = {};
    if (there_) halves_.load(at<T>(p_.k, token, head_), part);
    if (there_ && p_.positions_kv) position_ = p_.positions_kv[token];
#pragma unroll
    for (int i = part; i < packs; i += 4) copy_pack(v(tile).at(row, i), at<T>(p_.v, token, head_) + i * pack, there_);
  }
  // Keys into their tile.
  __device__ void settle(int tile) {
    const int row = thread_index() / 4, part = thread_index() % 4;
    if (there_ && p_.positions_kv) halves_.turn(steps_, part, position_);
    halves_.store(k(tile), row, part);
  }

 private:
  const Problem& p_;
  int begin_, count_, head_;
  char* memory_;
  const std::uint64_t* steps_;
  Halves<T> halves_;
  std::int32_t position_ = 0;
  bool there_ = false;
};

} // namespace fvlm::plugins
