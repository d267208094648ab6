// gemm_pipeline.cuh: the main loop of the fused products. A producer warp loads chunks of 64 of the inner dimension
// into the stages of a pipeline; two consumer warpgroups alternate on tiles, one running its epilogue while the other
// uses the tensor cores (ping-pong). For sm_90a.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_tensor_map.h"
#include "gemm_epilogues.cuh"

namespace fvlm::plugins::fused {

inline int64_t ceil_divide(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit;
}

inline CUtensorMap map_of(fvlm_dtype dtype, const Matrix& matrix, int64_t rows, int64_t columns, int box_rows_wanted) {
  return make_tensor_map(dtype, matrix.data, matrix.row_stride, rows, columns, box_rows_wanted);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// A chunk in shared memory, of x and of the weight.
struct ChunkDescriptors {
  std::uint64_t x, weight;
};

// Computes the product of the warpgroup's tile number `tile_count`. A warpgroup starts when the other one has seen all
// of its chunks arrive: the parity of a stage's barrier cannot distinguish its two latest chunks. wait(chunk, count)
// waits for a chunk of the tile, which is the block's number `count`, and returns its descriptors; release(count) tells
// the producer that it has been read.
template <class T, bool weight_mn_major, int wide, class Wait, class Release>
__device__ void multiply_tile(TileSum<wide>& sum, Barrier (&ping_pong)[consumer_warpgroups], int chunks, int group,
                              int tile_count, const Wait& wait, const Release& release) {
  constexpr int depth = 16, steps = box_width / depth; // of one wgmma
  constexpr int step_bytes = weight_mn_major ? depth * box_row_bytes : depth * 2;
  constexpr int x_bytes = tile_rows * box_row_bytes; // of a chunk
  const unsigned count = static_cast<unsigned>((consumer_warpgroups * tile_count + group) * chunks);
  ping_pong[group].wait(static_cast<unsigned>(tile_count + 1 - group) & 1);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const ChunkDescriptors of = wait(chunk, count + static_cast<unsigned>(chunk));
    wgmma_fence();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half)
        wgmma<T, weight_mn_major>(sum[half], advance_descriptor(of.x, half * x_bytes / halves + step * depth * 2),
                                  advance_descriptor(of.weight, step * step_bytes), chunk > 0 || step > 0);
    wgmma_commit();
    if (chunk == 0) continue;
    wgmma_wait<1>();
    release(count + static_cast<unsigned>(chunk) - 1);
  }
  if (threadIdx.x % warp_size == 0) ping_pong[consumer_warpgroups - 1 - group].arrive();
  wgmma_wait<0>();
  release(count + static_cast<unsigned>(chunks) - 1);
}

#endif

} // namespace fvlm::plugins::fused
