// short_statistics.cu: what the short backward needs to know of each query, in a launch before it: the logsumexp to
// base 2 and delta. It also zeros the gradients of padding rows after the last segment.
#include "common/cuda_dependent_launch.cuh"
#include "short_backward.cuh"
#include "zero_rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int threads = 256;

// A block takes a tile of queries of a head, half a warp a row.
template <class T>
__global__ void __launch_bounds__(threads) statistics_kernel(const __grid_constant__ ShortProblem p) {
  constexpr int unit = pack_size<T>, lanes_of_row = head_dim / unit, rows_at_once = threads / lanes_of_row,
                rounds = tile_rows / rows_at_once;
  start_next_kernel();
  const int tile = static_cast<int>(blockIdx.x) % p.tiles(),
            head = static_cast<int>(blockIdx.x) / p.tiles() % p.heads_q,
            segment = static_cast<int>(blockIdx.x) / p.tiles() / p.heads_q;
  const int begin = p.cu_q[segment], rows = p.cu_q[segment + 1] - begin, keys = p.cu_kv[segment + 1] - p.cu_kv[segment],
            masked = keys == 0  ? rows
                     : p.causal ? max(rows - keys, 0)
                                : 0; // the first queries, which have no key
  const int lane = static_cast<int>(threadIdx.x) % lanes_of_row,
            first = tile * tile_rows + static_cast<int>(threadIdx.x) / lanes_of_row;
  Statistics& statistics = p.statistics_of(segment, head, tile);
  Pack<T, unit> out[rounds], d_out[rounds];
  float row_lse[rounds];
#pragma unroll
  for (int n = 0; n < rounds; ++n) {
    const int row = first + n * rows_at_once;
    out[n] = d_out[n] = {};
    row_lse[n] = INFINITY;
    if (row < masked || row >= rows) continue;
    // Marked as read once: d_out is to stay in the L2, since the next kernel reads it.
    out[n].bits = sdk::bit_cast<typename Pack<T, unit>::Words>(
        __ldcs(reinterpret_cast<const uint4*>(row_of<T>(p.out, begin + row, head) + lane * unit)));
    d_out[n].load(row_of<T>(p.d_out, begin + row, head) + lane * unit);
    row_lse[n] = p.lse[(std::int64_t{segment} * p.heads_q + head) * p.max_q + row - masked];
  }
#pragma unroll
  for (int n = 0; n < rounds; ++n) {
    float one[unit], other[unit], delta = 0;
    out[n].widen(one);
    d_out[n].widen(other);
#pragma unroll
    for (int i = 0; i < unit; ++i) delta += one[i] * other[i];
#pragma unroll
    for (int distance = lanes_of_row / 2; distance > 0; distance /= 2)
      delta += __shfl_xor_sync(0xffffffffu, delta, distance);
    if (lane == 0) {
      statistics.row_lse[first % tile_rows + n * rows_at_once] = row_lse[n] * log2_e;
      statistics.delta[first % tile_rows + n * rows_at_once] = delta;
    }
  }
  for (const ZeroFill& z : p.zeros)
    zero_rows(z, (z.side == Side::query ? p.cu_q : p.cu_kv)[p.segments], z.rows,
              std::int64_t{blockIdx.x} * threads + threadIdx.x, std::int64_t{gridDim.x} * threads);
}

} // namespace

void compute_statistics(const fvlm_call& call, fvlm_dtype dtype, const ShortProblem& p) {
  const unsigned blocks = static_cast<unsigned>(p.segments * p.heads_q * p.tiles());
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    statistics_kernel<typename decltype(element)::type><<<blocks, threads, 0, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
