// resident_kv.cuh: what the kernels for short segments share: a block holds all keys and values of one key head of a
// segment in shared memory, rotates the keys once, and iterates over tiles of the queries of that head group. For
// Hopper.
#pragma once

#include "persistent.cuh"
#include "warp_rows.cuh"

namespace fvlm::plugins {

// Keys are multiplied in chunks of tile_rows and a short tail chunk.
constexpr int tile_rows = 64, full_chunks = 2, tail_chunk = max_resident_rows - full_chunks * tile_rows;
constexpr int keys_bytes = max_resident_rows * row_bytes, tile_bytes = tile_rows * row_bytes;
static_assert(tail_chunk == 16 && max_resident_rows % tile_rows <= max_small_box_rows && keys_bytes % 1024 == 0);

// Over all segments.
inline int64_t key_head_count(const Problem& p) {
  return int64_t{p.segments} * p.heads_kv;
}

// Whether TMA can read the operands and a block can hold the keys.
inline bool resident_supported(const Problem& p, int longest_q, int longest_kv) {
  return p.segments > 0 && p.tokens_q > 0 && p.tokens_kv > 0 && p.head_group.heads <= max_resident_head_group &&
         longest_q <= max_resident_rows && longest_kv <= max_resident_rows && heads_tma_compatible(p.q, p.heads_q) &&
         heads_tma_compatible(p.k, p.heads_kv) && heads_tma_compatible(p.v, p.heads_kv);
}

// Tiles of queries as TMA loads them: whole tokens with all heads of the group.
struct QueryTiles {
  int tokens, rows; // per tile

  explicit QueryTiles(const Problem& p) : tokens(tile_rows / p.head_group.heads), rows(tokens * p.head_group.heads) {}

  CUtensorMap boxes(const Problem& p, fvlm_dtype dtype, const HeadRows& of) const {
    return TensorMapShape{tensor_map_type(dtype),
                          3,
                          {head_dim, static_cast<cuuint64_t>(p.heads_q), static_cast<cuuint64_t>(p.tokens_q)},
                          {of.head_stride, of.row_stride},
                          {head_dim, static_cast<cuuint32_t>(p.head_group.heads), static_cast<cuuint32_t>(tokens)}}
        .encode(of.data);
  }
  CUtensorMap compensation_tensor_map(const Problem& p) const {
    const auto heads = static_cast<cuuint64_t>(p.heads_q);
    return TensorMapShape{CU_TENSOR_MAP_DATA_TYPE_UINT8,
                          3,
                          {head_dim, heads, static_cast<cuuint64_t>(p.tokens_q)},
                          {head_dim, head_dim * heads},
                          {head_dim, static_cast<cuuint32_t>(p.head_group.heads), static_cast<cuuint32_t>(tokens)},
                          CU_TENSOR_MAP_SWIZZLE_NONE}
        .encode(p.out_compensation);
  }
};

struct ResidentProblem {
  Problem call;
  QueryTiles tiles;
  HeadTensorMaps k, v;
  CUtensorMap q;

  ResidentProblem(const Problem& p, fvlm_dtype dtype)
      : call(p), tiles(p), k(head_tensor_maps(dtype, p.k, p.tokens_kv, p.heads_kv)),
        v(head_tensor_maps(dtype, p.v, p.tokens_kv, p.heads_kv)), q(tiles.boxes(p, dtype, p.q)) {}
};

// A key head of a segment, and the query tiles part, part + parts, ... of its head group.
struct KeyHeadTask {
  int begin_q, rows_q, begin_kv, rows_kv, end_q, end_kv, head_kv, part, parts, rows_of_tile;
  bool causal;
  HeadGroup head_group;

  __device__ KeyHeadTask(const Problem& p, const QueryTiles& tiles, int parts)
      : part(static_cast<int>(blockIdx.x) % parts), parts(parts), rows_of_tile(tiles.rows), causal(p.causal),
        head_group(p.head_group) {
    const int unit = static_cast<int>(blockIdx.x) / parts, segment = unit / p.heads_kv;
    const volatile std::int32_t *cu_q = p.cu_q, *cu_kv = p.cu_kv; // volatile, so that all loads are in flight at once
    const int behind_q = cu_q[segment + 1], behind_kv = cu_kv[segment + 1];
    head_kv = unit - segment * p.heads_kv;
    begin_q = cu_q[segment], begin_kv = cu_kv[segment], end_q = cu_q[p.segments], end_kv = cu_kv[p.segments];
    rows_q = behind_q - begin_q, rows_kv = behind_kv - begin_kv;
  }

  __device__ int first_head() const { return head_kv * head_group.heads; }
  __device__ int tiles() const {
    return ((rows_q * head_group.heads + rows_of_tile - 1) / rows_of_tile - part + parts - 1) / parts;
  }
  // Flat rows of this block's tile i, starting `from` rows into the tile.
  __device__ WarpRows rows(int i, int from) const {
    const int first = (i * parts + part) * rows_of_tile;
    return {head_group, begin_q, first + from, min(first + rows_of_tile, rows_q * head_group.heads), first_head()};
  }
  // Number of keys that a flat row attends to.
  __device__ int visible_keys(int flat) const {
    return causal ? min(max(head_group.row_of(flat) + rows_kv - rows_q + 1, 0), rows_kv) : rows_kv;
  }
  // Keys visible to every row of the tile; chunks that any row of it needs.
  __device__ int keys_visible_to_all(int i) const { return visible_keys(rows(i, 0).first); }
  __device__ int visible_chunks(int i) const {
    return (visible_keys(rows(i, 0).count - 1) + tile_rows - 1) / tile_rows;
  }
  // Rows of keys that wgmma reads: at least one chunk.
  __device__ int keys_read() const {
    return rows_kv > full_chunks * tile_rows ? max_resident_rows
                                             : max((rows_kv + tile_rows - 1) / tile_rows, 1) * tile_rows;
  }
};

template <class Block, class Shared, class Operands>
__device__ void run_block(const Operands& p, int parts) {
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const KeyHeadTask task(p.call, p.tiles, parts);
  Block(s, p, task).run();
}

// Zeros packs `part` and part + 4 of a row.
template <class T>
__device__ void zero_packs(const Tile& tile, int row, int part) {
  const Pack<T, pack> zero{};
  zero.store(tile.at<T>(row, part));
  zero.store(tile.at<T>(row, part + packs / 2));
}

// Sines and cosines for the positions of a segment's queries, computed while TMA loads are in flight. Two frequencies
// share 16 bytes; the layout avoids bank conflicts between neighbouring tokens.
struct RotationTable {
  static constexpr int pairs = frequencies / 2, bytes = max_resident_rows * pairs * 16;
  char* memory;

  __device__ float4* at(int token, int pair) const {
    return reinterpret_cast<float4*>(memory) + token * pairs + (pair ^ ((token & 3) << 2));
  }
  // The rotations of two neighbouring frequencies.
  __device__ static float4 rotation_pair(const std::uint64_t* steps, std::int32_t position) {
    const Rotation one(steps[0], position), next(steps[1], position);
    return {one.cosine, one.sine, next.cosine, next.sine};
  }
  // Rotates packs `part` and part + 4 of a tile's row, part < 4.
  template <class T>
  __device__ void rotate(const Tile& tile, int row, int part, int token) const {
    T *const low = tile.at<T>(row, part), *const high = tile.at<T>(row, part + packs / 2);
    float a[pack], b[pack];
    read(low, a);
    read(high, b);
#pragma unroll
    for (int i = 0; i < pack; i += 2) {
      const float4 both = *at(token, (part * pack + i) / 2);
      Rotation{both.x, both.y}.apply(a[i], b[i]);
      Rotation{both.z, both.w}.apply(a[i + 1], b[i + 1]);
    }
    write(low, a);
    write(high, b);
  }
  // Applies the inverse rotation to gradients in accumulators.
  __device__ void rotate_back(float (&x)[blocks][4], const int (&tokens)[2]) const {
#pragma unroll
    for (int b = 0; b < blocks / 2; ++b)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 both = *at(tokens[h], 4 * b + lane_in_quad());
        Rotation{both.x, both.y}.undo(x[b][2 * h], x[b + blocks / 2][2 * h]);
        Rotation{both.z, both.w}.undo(x[b][2 * h + 1], x[b + blocks / 2][2 * h + 1]);
      }
  }
};

// Calls rotate(key) with four threads per key, and zeros the rows after the last key. Warp `own` of the `all` warps
// that share the keys.
template <class T, class Rotate>
__device__ void rotate_or_zero_keys(const KeyHeadTask& task, char* k, char* v, int own, int all, const Rotate& rotate) {
#pragma unroll 1
  for (int row = own * 8 + lane_index() % 8; row < task.keys_read(); row += all * 8) {
    if (row < task.rows_kv) {
      rotate(row);
    } else {
      zero_packs<T>(Tile{k}, row, copy_quarter());
      zero_packs<T>(Tile{v}, row, copy_quarter());
    }
  }
}

// Zeros the padding rows after the last segment, shared by all threads of the grid.
template <class T>
__device__ void zero_padding(const HeadRows& rows, int heads, int end, int tokens) {
  const Pack<T, pack> zero{};
  const int64_t packs_of_row = int64_t{heads} * packs, threads_of_all = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (int64_t i = end * packs_of_row + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens * packs_of_row;
       i += threads_of_all)
    zero.store(at<T>(rows, static_cast<int>(i / packs_of_row), static_cast<int>(i % packs_of_row / packs)) +
               i % packs * pack);
}

// Launches `parts` blocks per key head of a segment, in clusters of `cluster` blocks.
template <class Shared, class Operands>
void enqueue_resident(const fvlm_call& call, void (*kernel)(Operands, int), int threads, const Operands& operands,
                      int parts, int cluster) {
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(key_head_count(operands.call) * parts);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = sdk::stream_of(call);
  config.attrs = &attribute;
  config.numAttrs = 1;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, operands, parts), "launch");
}

} // namespace fvlm::plugins
