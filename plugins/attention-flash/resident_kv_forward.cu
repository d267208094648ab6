// resident_kv_forward.cu: attention forward for short segments: Hopper, at most 144 rows and 8 query heads per key
// head, at least 96 rows on average, causal or not, rotation inside.
//
// A block of one warpgroup owns one key head of a segment (several blocks split its query tiles if there are few
// segments), with all keys and values in shared memory. It iterates over 64-row tiles of queries, which TMA loads into
// two pipeline stages, and keeps the scores of all keys in registers, so softmax needs no rescaling. Four blocks fit on
// a multiprocessor.
//
// Measured on an H200 (bf16, 9:3 heads, causal; bench/LOG.md, 2026-11-23), per layer: 32 x 136 tokens 15.7 us, 64 x 136
// 23.8 us, where forward.cu took 18.7 and 27.8 us.
#include "resident_kv.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int stages = 2;   // pipeline stages of query tiles
constexpr int resident = 4; // blocks per multiprocessor

struct alignas(1024) Shared {
  char k[keys_bytes], v[keys_bytes];
  char q[stages][tile_bytes]; // later overwritten with the output
  std::uint64_t steps[frequencies];
  std::int32_t positions_q[max_resident_rows], positions_kv[max_resident_rows];
  Barrier keys_full, full[stages];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// byte offset to the next 16 of the summed dimension
constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes;
constexpr int steps = head_dim / 16;

// Scores of the thread's two rows for `chunks` chunks of keys.
template <int chunks>
struct Scores {
  static constexpr int full_count = chunks < full_chunks ? chunks : full_chunks;
  static constexpr bool has_tail = chunks > full_chunks;
  static constexpr int blocks_of_keys = full_count * tile_rows / 8 + (has_tail ? tail_chunk / 8 : 0);

  Accumulator<tile_rows> full[full_count];
  Accumulator<tail_chunk> tail;

  // Element i of the four that a thread holds of a block of 8 keys.
  __device__ float& at(int block, int i) {
    constexpr int in_chunk = tile_rows / 8;
    return block < full_count * in_chunk ? full[block / in_chunk][block % in_chunk * 4 + i]
                                         : tail[(block - full_count * in_chunk) * 4 + i];
  }
};

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const ResidentProblem& problem, const KeyHeadTask& task)
      : s_(shared), all_(problem), p_(problem.call), task_(task), tiles_(task.tiles()) {}

  __device__ void run() {
    begin();
    s_.keys_full.wait(0);
    rotate_or_zero_keys<T>(task_, s_.k, s_.v, warp_index(), warpgroup_warps, [&](int key) {
      if (p_.positions_kv) rotate_in_place<T>(Tile{s_.k}, key, copy_quarter(), s_.steps, s_.positions_kv[key]);
    });
    fence_proxy_async();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      const Tile q = Tile{s_.q[i % stages]}.rows_from(warp_index() * rows_of_warp);
      s_.full[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
      prepare(q, i);
      switch (task_.visible_chunks(i)) {
      case 0:
      case 1:
        tile<1>(q, i);
        break;
      case 2:
        tile<2>(q, i);
        break;
      default:
        tile<3>(q, i);
        break;
      }
      if (i + stages < tiles_) {
        fence_proxy_async();
        __syncthreads();
        if (thread_index() == 0) load_tile(i + stages);
      }
    }
  }

 private:
  __device__ void begin() {
    // The thread that initializes a barrier also issues the loads it guards, so no block-wide barrier is needed in
    // between.
    if (lane_index() == 0) {
      if (warp_index() == 0) {
        s_.keys_full.init(1);
        Barrier::fence_init();
        s_.keys_full.arrive_and_expect_tx(static_cast<unsigned>(2 * loaded_rows(task_.rows_kv) * row_bytes));
        tma_load_rows(s_.k, all_.k, task_.head_kv, task_.begin_kv, task_.rows_kv, s_.keys_full);
        tma_load_rows(s_.v, all_.v, task_.head_kv, task_.begin_kv, task_.rows_kv, s_.keys_full);
      } else if (warp_index() == 1) {
        for (Barrier& each : s_.full) each.init(1);
        Barrier::fence_init();
        for (int i = 0; i < min(tiles_, stages); ++i) load_tile(i);
      }
    }
    // All of these loads are in flight at once.
    constexpr int times = (max_resident_rows + warpgroup_threads - 1) / warpgroup_threads;
    std::int32_t of_q[times], of_kv[times];
#pragma unroll
    for (int n = 0; n < times; ++n) {
      const int row = n * warpgroup_threads + thread_index();
      of_q[n] = p_.positions_q && row < task_.rows_q ? p_.positions_q[task_.begin_q + row] : 0;
      of_kv[n] = p_.positions_kv && row < task_.rows_kv ? p_.positions_kv[task_.begin_kv + row] : 0;
    }
    if (thread_index() < frequencies) s_.steps[thread_index()] = p_.steps[thread_index()];
#pragma unroll
    for (int n = 0; n < times; ++n)
      if (const int row = n * warpgroup_threads + thread_index(); row < max_resident_rows)
        s_.positions_q[row] = of_q[n], s_.positions_kv[row] = of_kv[n];
    zero_padding<T>(p_.out, p_.heads_q, task_.end_q, p_.tokens_q);
    __syncthreads();
  }

  __device__ void load_tile(int i) {
    Barrier& full = s_.full[i % stages];
    full.arrive_and_expect_tx(static_cast<unsigned>(all_.tiles.rows * row_bytes));
    tma_load(s_.q[i % stages], all_.q, 0, task_.first_head(),
             task_.begin_q + (i * task_.parts + task_.part) * all_.tiles.tokens, full);
  }

  // Rotates the warp's sixteen queries and zeros those that do not exist.
  __device__ void prepare(const Tile& q, int i) {
    const int part = copy_quarter();
#pragma unroll 1
    for (int row = lane_index() % 8; row < rows_of_warp; row += 8) {
      const WarpRows rows = task_.rows(i, warp_index() * rows_of_warp + row);
      if (rows.first >= rows.count)
        zero_packs<T>(q, row, part);
      else if (p_.positions_q)
        rotate_in_place<T>(q, row, part, s_.steps, s_.positions_q[rows.head_group.row_of(rows.first)]);
    }
    __syncwarp();
  }

  template <int chunks>
  __device__ void tile(const Tile& memory, int i) {
    using Of = Scores<chunks>;
    Of scores;
    {
      Fragment q[steps];
#pragma unroll
      for (int step = 0; step < steps; ++step) q[step] = load_a(memory, 0, step);
      const std::uint64_t k = matrix_descriptor(s_.k);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < Of::full_count; ++c)
          wgmma<T, false>(scores.full[c], q[step].at, advance_descriptor(k, c * tile_bytes + step * step_bytes),
                          step > 0);
        if constexpr (Of::has_tail)
          wgmma<T, false>(scores.tail, q[step].at, advance_descriptor(k, full_chunks * tile_bytes + step * step_bytes),
                          step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int c = 0; c < Of::full_count; ++c) fence_accumulators(scores.full[c]);
      if constexpr (Of::has_tail) fence_accumulators(scores.tail);
    }

    const WarpRows rows = task_.rows(i, warp_index() * rows_of_warp);
    const int keys_visible_to_all = task_.keys_visible_to_all(i);
    const int visible_keys[2] = {task_.visible_keys(rows.clamped(rows.first + lane_index() / 4)),
                                 task_.visible_keys(rows.clamped(rows.first + lane_index() / 4 + 8))};
#pragma unroll
    for (int block = 0; block < Of::blocks_of_keys; ++block)
      if (8 * block + 8 > keys_visible_to_all) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (8 * block + column_of(n) >= visible_keys[n / 2]) scores.at(block, n) = -INFINITY;
      }
    float row_max[2], row_sum[2] = {};
    const float scale = p_.scale * log2_e;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float chain_max[2] = {-INFINITY, -INFINITY}; // two independent chains, which halves the latency
#pragma unroll
      for (int block = 0; block < Of::blocks_of_keys; ++block)
#pragma unroll
        for (int n = 0; n < 2; ++n) chain_max[n] = fmaxf(chain_max[n], scores.at(block, 2 * h + n));
      row_max[h] = quad_max(fmaxf(chain_max[0], chain_max[1]));
      row_max[h] = row_max[h] == -INFINITY ? 0 : row_max[h] * scale; // all keys are masked
    }
    AFragment weights[Of::blocks_of_keys / 2];
#pragma unroll
    for (int step = 0; step < Of::blocks_of_keys / 2; ++step) {
      float x[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        x[n] = exp2_approx(scores.at(2 * step + n / 4, n % 4) * scale - row_max[n / 2 % 2]);
        row_sum[n / 2 % 2] += x[n];
      }
      round_to<T>(weights[step], x);
    }
    Accumulator<head_dim> sum;
    const std::uint64_t v = matrix_descriptor(s_.v);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Of::blocks_of_keys / 2; ++step)
      wgmma<T, true>(sum, weights[step], advance_descriptor(v, step * mn_step_bytes), step > 0);
    wgmma_commit();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int flat = rows.first + lane_index() / 4 + 8 * h;
      row_sum[h] = quad_sum(row_sum[h]);
      factor[h] = row_sum[h] > 0 ? 1 / row_sum[h] : 0;
      if (p_.lse && lane_in_quad() == 0 && flat < rows.count)
        p_.lse[rows.token(flat) * p_.heads_q + rows.head_of(flat)] =
            row_sum[h] > 0 ? row_max[h] + __log2f(row_sum[h]) : INFINITY;
    }
    wgmma_wait<0>();
    fence_accumulators(sum);
    const auto& sums = reinterpret_cast<const float(&)[blocks][4]>(sum);
    store_rows<T>(rows, p_.out, memory, sums, factor);
    if constexpr (std::is_same_v<T, BFloat16>)
      if (p_.out_compensation) store_compensation(rows, p_.out_compensation, p_.heads_q, memory, sums, factor);
  }

  Shared& s_;
  const ResidentProblem& all_;
  const Problem& p_;
  const KeyHeadTask& task_;
  const int tiles_;
};

#endif

template <class T>
__global__ void __launch_bounds__(hopper::warpgroup_threads, resident)
    resident_forward_kernel(const __grid_constant__ ResidentProblem p, int parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_block<Block<T>, Shared>(p, parts);
#endif
}

} // namespace

// For few and short segments the setup costs more than is gained.
bool resident_forward_supported(const Problem& p, int multiprocessors, int longest_q, int longest_kv) {
  constexpr int least_rows = 96;
  return resident_supported(p, longest_q, longest_kv) && p.tokens_q / p.segments >= least_rows &&
         2 * key_head_count(p) >= multiprocessors;
}

void resident_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p) {
  // Up to three blocks per multiprocessor: with 64 segments a fourth would run in a second wave.
  int parts = 1;
  while (parts < 4 && key_head_count(p) * parts * 2 <= int64_t{3} * multiprocessors) parts *= 2;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_resident<Shared>(call, resident_forward_kernel<typename decltype(element)::type>, hopper::warpgroup_threads,
                             ResidentProblem(p, dtype), parts, 1);
  });
}

} // namespace fvlm::plugins
