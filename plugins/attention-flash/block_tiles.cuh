// block_tiles.cuh: the mapping from blocks to tiles of segments, which every block finds by itself in cu_seqlens, and
// the zeroing of padding rows that belong to no segment.
#pragma once

#include "tiles.cuh"

#include <climits>

namespace fvlm::plugins {

constexpr int threads = 256, warps = threads / warp_size;
constexpr int rows_of_warp = 16, queries = warps * rows_of_warp; // per tile

// A tile of `size` rows of a segment. Blocks after the last segment get `padding` tiles, whose rows count from the
// start of the buffer.
struct BlockTile {
  int tile;
  bool padding;
  int begin_q, rows_q, begin_kv, rows_kv;
};

// Number of block slots. Segment s starts at slot cu[s] * unit / size + s (`unit`: flat rows per token), which is at
// least as many slots as it has tiles, so no prefix sum over tile counts is needed. Slots after the last segment zero
// the padding.
inline int tile_slots(int tokens, int unit, int size, int segments) {
  return (tokens * unit + size - 1) / size + segments;
}

template <int size>
__device__ BlockTile find_block_tile(const Problem& p, bool of_keys, int slot) {
  __shared__ BlockTile found;
  // volatile, so that all four loads are in flight at once
  const volatile std::int32_t *cu_q = p.cu_q, *cu_kv = p.cu_kv;
  for (int s = thread_index(); s <= p.segments; s += threads) {
    const bool padding = s == p.segments;
    const int next = padding ? s : s + 1;
    const int begin_q = cu_q[s], end_q = cu_q[next], begin_kv = cu_kv[s], end_kv = cu_kv[next];
    const int first = (of_keys ? begin_kv : begin_q * p.head_group.heads) / size + s;
    const int next_slot = padding ? INT_MAX : (of_keys ? end_kv : end_q * p.head_group.heads) / size + next;
    if (first <= slot && slot < next_slot)
      found = {
          padding ? slot - p.segments : slot - first, padding, begin_q, end_q - begin_q, begin_kv, end_kv - begin_kv};
  }
  __syncthreads();
  return found;
}

// Zeros the rows of a padding tile that lie after the last segment. Rows are flat and count from the start of the
// buffer. `first`: the first head of the group.
template <class T, int size>
__device__ void zero_rows(const HeadRows& rows, const HeadGroup& head_group, int first, int tile, int segments_end,
                          int tokens) {
  const int begin = max(tile * size, segments_end * head_group.heads),
            end = min((tile + 1) * size, tokens * head_group.heads);
  const Pack<T, pack> zero{};
#pragma unroll 1
  for (int i = thread_index(); i < (end - begin) * packs; i += threads) {
    const int flat = begin + i / packs, row = head_group.row_of(flat), head = first + flat - row * head_group.heads;
    zero.store(at<T>(rows, row, head) + i % packs * pack);
  }
}

// Launches one block per slot and key head.
template <class Kernel, class... More>
void enqueue(const fvlm_call& call, Kernel kernel, int slots, int bytes, const Problem& p, More... more) {
  const int64_t count = int64_t{slots} * p.heads_kv;
  if (count == 0) return;
  if (count > INT32_MAX)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld blocks exceed the grid", static_cast<long long>(count));
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  kernel<<<static_cast<unsigned>(count), threads, static_cast<std::size_t>(bytes), sdk::stream_of(call)>>>(p, more...);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
