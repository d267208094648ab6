// whole_forward.cu: four warps have tiles of queries, one after the other, and the scores of all keys in registers.
// Blocks that share a segment have every second tile, or every fourth.
#include "whole.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int stages = 2;   // of tiles
constexpr int resident = 4; // blocks of a multiprocessor

struct alignas(1024) Shared {
  char k[whole_keys_bytes], v[whole_keys_bytes];
  char q[stages][tile_bytes]; // and then what comes of them
  std::uint64_t steps[frequencies];
  std::int32_t positions_q[most_whole], positions_kv[most_whole];
  Barrier keys_there, there[stages];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr unsigned step_bytes = 16 * 2, turned_step_bytes = 16 * row_bytes; // to the next 16 of what is summed
constexpr int steps = head_dim / 16;

// The scores of so many chunks of keys, of a thread's two rows.
template <int chunks>
struct Scores {
  static constexpr int whole = chunks < whole_chunks ? chunks : whole_chunks;
  static constexpr bool has_short = chunks > whole_chunks;
  static constexpr int blocks_of_keys = whole * whole_tile / 8 + (has_short ? short_chunk / 8 : 0);

  ProductOf<whole_tile> of_whole[whole];
  ProductOf<short_chunk> of_short;

  // Element i of those that a thread has of a block of 8 keys.
  __device__ float& at(int block, int i) {
    constexpr int in_chunk = whole_tile / 8;
    return block < whole * in_chunk ? of_whole[block / in_chunk][block % in_chunk * 4 + i]
                                    : of_short[(block - whole * in_chunk) * 4 + i];
  }
};

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const WholeProblem& problem, const Whole& whole)
      : s_(shared), all_(problem), p_(problem.call), whole_(whole), tiles_(whole.tiles()) {}

  __device__ void run() {
    begin();
    s_.keys_there.wait(0);
    settle_keys<T>(whole_, s_.k, s_.v, warp_index(), group_warps, [&](int key) {
      if (p_.positions_kv) turn_in_place<T>(Tile{s_.k}, key, filled_part(), s_.steps, s_.positions_kv[key]);
    });
    before_copies();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      const Tile q = Tile{s_.q[i % stages]}.rows_from(warp_index() * rows_of_warp);
      s_.there[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
      prepare(q, i);
      switch (whole_.chunks_seen(i)) {
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
        before_copies();
        __syncthreads();
        if (thread_index() == 0) load_tile(i + stages);
      }
    }
  }

 private:
  __device__ void begin() {
    // What a barrier is for is begun by the thread that begins the barrier.
    if (lane_index() == 0) {
      if (warp_index() == 0) {
        s_.keys_there.begin(1);
        Barrier::begun();
        s_.keys_there.expect(static_cast<unsigned>(2 * loaded_rows(whole_.rows_kv) * row_bytes));
        load_rows(s_.k, all_.k, whole_.head_kv, whole_.begin_kv, whole_.rows_kv, s_.keys_there);
        load_rows(s_.v, all_.v, whole_.head_kv, whole_.begin_kv, whole_.rows_kv, s_.keys_there);
      } else if (warp_index() == 1) {
        for (Barrier& each : s_.there) each.begin(1);
        Barrier::begun();
        for (int i = 0; i < min(tiles_, stages); ++i) load_tile(i);
      }
    }
    // All are on their way at once.
    constexpr int times = (most_whole + group_threads - 1) / group_threads;
    std::int32_t of_q[times], of_kv[times];
#pragma unroll
    for (int n = 0; n < times; ++n) {
      const int row = n * group_threads + thread_index();
      of_q[n] = p_.positions_q && row < whole_.rows_q ? p_.positions_q[whole_.begin_q + row] : 0;
      of_kv[n] = p_.positions_kv && row < whole_.rows_kv ? p_.positions_kv[whole_.begin_kv + row] : 0;
    }
    if (thread_index() < frequencies) s_.steps[thread_index()] = p_.steps[thread_index()];
#pragma unroll
    for (int n = 0; n < times; ++n)
      if (const int row = n * group_threads + thread_index(); row < most_whole)
        s_.positions_q[row] = of_q[n], s_.positions_kv[row] = of_kv[n];
    zero_behind_segments<T>(p_.out, p_.heads_q, whole_.end_q, p_.tokens_q);
    __syncthreads();
  }

  __device__ void load_tile(int i) {
    Barrier& there = s_.there[i % stages];
    there.expect(static_cast<unsigned>(all_.tiles.rows * row_bytes));
    load_box(s_.q[i % stages], all_.q, 0, whole_.first_head(),
             whole_.begin_q + (i * whole_.parts + whole_.part) * all_.tiles.tokens, there);
  }

  // Turns the warp's sixteen queries, and zeros those that are not there.
  __device__ void prepare(const Tile& q, int i) {
    const int part = filled_part();
#pragma unroll 1
    for (int row = lane_index() % 8; row < rows_of_warp; row += 8) {
      const WarpRows rows = whole_.rows(i, warp_index() * rows_of_warp + row);
      if (rows.first >= rows.count)
        zero_packs<T>(q, row, part);
      else if (p_.positions_q)
        turn_in_place<T>(q, row, part, s_.steps, s_.positions_q[rows.sharing.row_of(rows.first)]);
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
      for (int step = 0; step < steps; ++step) q[step] = left(memory, 0, step);
      const std::uint64_t k = operand(s_.k);
      before_products();
#pragma unroll
      for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < Of::whole; ++c)
          multiply<T, false>(scores.of_whole[c], q[step].at, behind(k, c * tile_bytes + step * step_bytes), step > 0);
        if constexpr (Of::has_short)
          multiply<T, false>(scores.of_short, q[step].at, behind(k, whole_chunks * tile_bytes + step * step_bytes),
                             step > 0);
      }
      end_products();
      wait_for_products<0>();
#pragma unroll
      for (int c = 0; c < Of::whole; ++c) settled(scores.of_whole[c]);
      if constexpr (Of::has_short) settled(scores.of_short);
    }

    const WarpRows rows = whole_.rows(i, warp_index() * rows_of_warp);
    const int seen_by_all = whole_.seen_by_all(i);
    const int seen[2] = {whole_.seen(rows.there(rows.first + lane_index() / 4)),
                         whole_.seen(rows.there(rows.first + lane_index() / 4 + 8))};
#pragma unroll
    for (int block = 0; block < Of::blocks_of_keys; ++block)
      if (8 * block + 8 > seen_by_all) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (8 * block + column_of(n) >= seen[n / 2]) scores.at(block, n) = -INFINITY;
      }
    float most[2], total[2] = {};
    const float scale = p_.scale * log2_e;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest[2] = {-INFINITY, -INFINITY}; // two chains, which take half as long
#pragma unroll
      for (int block = 0; block < Of::blocks_of_keys; ++block)
#pragma unroll
        for (int n = 0; n < 2; ++n) largest[n] = fmaxf(largest[n], scores.at(block, 2 * h + n));
      most[h] = most_of_four(fmaxf(largest[0], largest[1]));
      most[h] = most[h] == -INFINITY ? 0 : most[h] * scale; // no key is seen
    }
    Left weights[Of::blocks_of_keys / 2];
#pragma unroll
    for (int step = 0; step < Of::blocks_of_keys / 2; ++step) {
      float x[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        x[n] = power_of_2(scores.at(2 * step + n / 4, n % 4) * scale - most[n / 2 % 2]);
        total[n / 2 % 2] += x[n];
      }
      round_to<T>(weights[step], x);
    }
    ProductOf<head_dim> sum;
    const std::uint64_t v = operand(s_.v);
    before_products();
#pragma unroll
    for (int step = 0; step < Of::blocks_of_keys / 2; ++step)
      multiply<T, true>(sum, weights[step], behind(v, step * turned_step_bytes), step > 0);
    end_products();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int flat = rows.first + lane_index() / 4 + 8 * h;
      total[h] = sum_of_four(total[h]);
      factor[h] = total[h] > 0 ? 1 / total[h] : 0;
      if (p_.log_sums && part_index() == 0 && flat < rows.count)
        p_.log_sums[rows.token(flat) * p_.heads_q + rows.head_of(flat)] =
            total[h] > 0 ? most[h] + __log2f(total[h]) : INFINITY;
    }
    wait_for_products<0>();
    settled(sum);
    const auto& sums = reinterpret_cast<const float(&)[blocks][4]>(sum);
    store_rows<T>(rows, p_.out, memory, sums, factor);
    if constexpr (std::is_same_v<T, BFloat16>)
      if (p_.out_rest) store_rests(rows, p_.out_rest, p_.heads_q, memory, sums, factor);
  }

  Shared& s_;
  const WholeProblem& all_;
  const Problem& p_;
  const Whole& whole_;
  const int tiles_;
};

#endif

template <class T>
__global__ void __launch_bounds__(hopper::group_threads, resident)
    whole_forward_kernel(const __grid_constant__ WholeProblem p, int parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_block<Block<T>, Shared>(p, parts);
#endif
}

} // namespace

// Few and short segments have less to gain than it costs to begin.
bool takes_whole_forward(const Problem& p, int multiprocessors, int longest_q, int longest_kv) {
  constexpr int least_rows = 96;
  return takes_whole(p, longest_q, longest_kv) && p.tokens_q / p.segments >= least_rows &&
         2 * units_of(p) >= multiprocessors;
}

void whole_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p) {
  // Three blocks a multiprocessor, as far as there are: a fourth one would have to wait for them at 64 segments.
  int parts = 1;
  while (parts < 4 && units_of(p) * parts * 2 <= int64_t{3} * multiprocessors) parts *= 2;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_whole<Shared>(call, whole_forward_kernel<typename decltype(element)::type>, hopper::group_threads,
                          WholeProblem(p, dtype), parts, 1);
  });
}

} // namespace fvlm::plugins
