// persistent_forward.cu: attention forward for segments like the frames of a vision tower: Hopper, not causal, no
// rotation, 137 to 272 rows (257 in practice).
//
// Persistent: one block per multiprocessor iterates over (segment, head) work units, two pipeline stages deep.
// Warp-specialized: two consumer warpgroups alternate on tiles of 64 queries with the scores of all keys in registers,
// so softmax needs no rescaling. A ping-pong barrier gives one of them the tensor cores, for a tile's values and the
// next tile's scores, while the other computes exponentials. In the third warpgroup one warp issues TMA loads, one
// zeros the values past the last key, and one zeros padding.
//
// Measured for 257 keys, 6 heads, bf16, per layer on an H100 (bench/LOG.md, 2026-11-22): 168.5 us for 512 frames and 30
// us for 64, where cuDNN takes 345 and 51 us; loads and stores alone take 142 and 20.5 us.
#include "persistent.cuh"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using hopper::Barrier, hopper::warpgroup_warps, hopper::warpgroup_threads;

constexpr int consumer_warpgroups = 2, consumer_warps = consumer_warpgroups * warpgroup_warps,
              block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int stages = 2;

struct PersistentProblem {
  Problem call;
  HeadTensorMaps q, k, v;
};

struct alignas(1024) Shared {
  struct Stage {
    // the last tile of queries may be read past its end, into the keys
    char q[rows_bytes], k[rows_bytes], v[rows_bytes];
  } stage[stages];
  char out[consumer_warps][rows_of_warp * row_bytes];
  WorkUnit units[2 * stages];                                // a unit is read until the one after the next is loaded
  Barrier full[stages], empty[stages];                       // queries and keys
  Barrier v_full[stages], v_padded[stages], v_empty[stages]; // values; and whether the rows past the last key are zero
  Barrier ping_pong[consumer_warpgroups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int tile = 64; // queries
// Per thread. The sum must be exactly what the kernel is launched with, 168 per thread.
constexpr int consumer_registers = 232, producer_registers = 40;
static_assert(consumer_warpgroups * consumer_registers + producer_registers == (consumer_warpgroups + 1) * 168);

// Position in the sequence of work units: which stage holds a unit, and the parity of its barriers.
struct PipelineState {
  unsigned count = 0;

  __device__ unsigned stage() const { return count % stages; }
  __device__ unsigned parity() const { return count / stages % 2; }
  __device__ unsigned unit() const { return count % (2 * stages); }
};

__device__ inline void arrive_per_warp(Barrier& barrier) {
  if (lane_index() == 0) barrier.arrive();
}

// The unit in a stage, read by the lane that later releases the stage and broadcast to the warp.
__device__ inline WorkUnit unit_of(const Shared& s, const PipelineState& state) {
  WorkUnit unit{};
  if (lane_index() == 0) unit = s.units[state.unit()];
  int* const words = reinterpret_cast<int*>(&unit);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof unit / sizeof *words); ++i)
    words[i] = __shfl_sync(0xffffffffu, words[i], 0);
  return unit;
}

struct HasQueries {
  __device__ bool operator()(const WorkUnit& unit) const { return unit.rows_q > 0; }
};

__device__ inline void prefetch(const CUtensorMap& matrix) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&matrix) : "memory");
}

__device__ void run_producer(Shared& s, const PersistentProblem& p) {
  if (lane_index() == 0)
    for (const HeadTensorMaps* each : {&p.q, &p.k, &p.v}) prefetch(each->large), prefetch(each->small);
  WorkUnits units(p.call, HasQueries{});
  for (PipelineState state;; ++state.count) {
    const WorkUnit unit = units.next();
    if (lane_index() == 0) {
      const unsigned n = state.stage(), before = state.parity() ^ 1;
      const int head_kv = p.call.head_group.row_of(unit.head);
      auto& stage = s.stage[n];
      s.empty[n].wait(before);
      s.units[state.unit()] = unit;
      s.full[n].arrive_and_expect_tx(
          static_cast<unsigned>((loaded_rows(unit.rows_q) + loaded_rows(unit.rows_kv)) * row_bytes));
      if (unit.exists()) {
        tma_load_rows(stage.q, p.q, unit.head, unit.begin_q, unit.rows_q, s.full[n]);
        tma_load_rows(stage.k, p.k, head_kv, unit.begin_kv, unit.rows_kv, s.full[n]);
      }
      s.v_empty[n].wait(before);
      s.v_full[n].arrive_and_expect_tx(static_cast<unsigned>(loaded_rows(unit.rows_kv) * row_bytes));
      if (unit.exists()) tma_load_rows(stage.v, p.v, head_kv, unit.begin_kv, unit.rows_kv, s.v_full[n]);
    }
    if (!unit.exists()) return;
  }
}

template <class T>
__device__ void zero_value_tails(Shared& s) {
  for (PipelineState state;; ++state.count) {
    const unsigned n = state.stage();
    s.v_full[n].wait(state.parity());
    const WorkUnit unit = unit_of(s, state);
    if (!unit.exists()) return;
    zero_rows_between<T>(s.stage[n].v, unit.rows_kv, max_persistent_rows);
    arrive_per_warp(s.v_padded[n]);
  }
}

constexpr int depth = 16, steps = max_persistent_rows / depth; // keys per product of probabilities and values
constexpr int halves = 2;                                      // of the keys
using Scores = hopper::Accumulator<max_persistent_rows / halves>[halves];

// Element i of the four that a thread holds of a block of 8 keys.
__device__ inline float& score_at(Scores& scores, int block, int i) {
  constexpr int blocks_of_half = max_persistent_rows / halves / 8;
  return scores[block / blocks_of_half][block % blocks_of_half * 4 + i];
}

template <class T>
__device__ void compute_scores(Scores& scores, const char* q, const char* k) {
  const std::uint64_t left = hopper::matrix_descriptor(q), right = hopper::matrix_descriptor(k);
  hopper::wgmma_fence();
#pragma unroll
  for (unsigned step = 0; step < head_dim / depth; ++step)
#pragma unroll
    for (unsigned half = 0; half < halves; ++half)
      hopper::wgmma<T, false>(scores[half], hopper::advance_descriptor(left, step * depth * 2),
                              hopper::advance_descriptor(right, half * rows_bytes / halves + step * depth * 2),
                              step > 0);
  hopper::wgmma_commit();
}

// Masks the scores of keys that do not exist.
__device__ inline void mask_from(Scores& scores, int keys) {
  constexpr int usual = max_persistent_rows - depth; // segments of the usual length need checks past this key only
  const int last = keys - column_of(0);
  const auto mask_block = [&](int block) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (8 * block + i % 2 >= last) score_at(scores, block, i) = -INFINITY;
  };
  if (keys < usual) {
#pragma unroll
    for (int block = 0; block < usual / 8; ++block) mask_block(block);
  }
#pragma unroll
  for (int block = usual / 8; block < max_persistent_rows / 8; ++block) mask_block(block);
}

// Softmax of the thread's two rows; the probabilities become A fragments. row_max is scaled to base 2.
template <class T>
__device__ void softmax_weights(Scores& scores, float scale, float (&row_max)[2], float (&row_sum)[2],
                                Fragment (&probabilities)[steps]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float chain_max[2] = {-INFINITY, -INFINITY}; // two independent chains, which halves the latency
#pragma unroll
    for (int block = 0; block < max_persistent_rows / 8; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i) chain_max[i] = fmaxf(chain_max[i], score_at(scores, block, 2 * h + i));
    row_max[h] = quad_max(fmaxf(chain_max[0], chain_max[1]));
    row_max[h] = row_max[h] == -INFINITY ? 0 : row_max[h] * scale; // all keys are masked
    row_sum[h] = 0;
  }
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    float x[2][4];
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[block][i] = exp2_approx(score_at(scores, 2 * step + block, i) * scale - row_max[i / 2]);
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] += (x[0][2 * h] + x[0][2 * h + 1]) + (x[1][2 * h] + x[1][2 * h + 1]);
    probabilities[step] = to_a_fragment<T>(x[0], x[1]);
  }
}

template <class T>
__device__ void compute_outputs(hopper::Accumulator<64>& sum, const Fragment (&weights)[steps], const char* v) {
  const std::uint64_t right = hopper::matrix_descriptor(v);
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < steps; ++step)
    hopper::wgmma<T, true>(sum, weights[step].at,
                           hopper::advance_descriptor(right, static_cast<unsigned>(step * depth * row_bytes)),
                           step > 0);
  hopper::wgmma_commit();
}

// `first`: index of the warp's first query in the segment.
template <class T>
__device__ void store_outputs(const Problem& p, const WorkUnit& unit, int first, const hopper::Accumulator<64>& sum,
                              const float (&row_max)[2], const float (&thread_sum)[2], char* memory) {
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float row_sum = quad_sum(thread_sum[h]);
    factor[h] = row_sum > 0 ? __fdividef(1, row_sum) : 0;
    const int row = first + lane_index() / 4 + 8 * h;
    if (p.lse && lane_in_quad() == 0 && row < unit.rows_q)
      p.lse[(unit.begin_q + row) * p.heads_q + unit.head] = row_sum > 0 ? row_max[h] + __log2f(row_sum) : INFINITY;
  }
  store_accumulators<T>(p.out, unit.begin_q + first, unit.rows_q - first, unit.head, sum, factor, memory);
}

// A tile of 64 queries: number `index` of its work unit.
struct QueryTile {
  PipelineState state;
  WorkUnit unit{};
  int index = 0;

  __device__ int tiles() const { return (unit.rows_q + tile - 1) / tile; }
  __device__ bool is_last_of_warpgroup() const { return index + consumer_warpgroups >= tiles(); }
  __device__ int first_row_of_warp() const { return index * tile + warp_index() % warpgroup_warps * rows_of_warp; }
};

// Iterates over the tiles of one consumer warpgroup.
class ConsumerTiles {
 public:
  __device__ ConsumerTiles(Shared& s, int group) : s_(s), first_(group) { --now_.state.count; }

  __device__ const QueryTile& now() const { return now_; }

  // Advances to the next tile and waits for its queries and keys. Returns false after the last.
  __device__ bool next() {
    for (now_.index += consumer_warpgroups; now_.index >= now_.tiles();) {
      ++now_.state.count;
      const unsigned n = now_.state.stage();
      s_.full[n].wait(now_.state.parity());
      now_.unit = unit_of(s_, now_.state);
      if (!now_.unit.exists()) return false;
      now_.index = first_;
      first_ = (first_ + now_.tiles()) % consumer_warpgroups;
      if (now_.index < now_.tiles()) break;
      arrive_per_warp(s_.empty[n]);
      s_.v_full[n].wait(now_.state.parity()); // so that the previous phase has completed
      arrive_per_warp(s_.v_empty[n]);
    }
    return true;
  }

 private:
  Shared& s_;
  QueryTile now_;
  int first_; // first tile in the next unit
};

// The consumer loop. The ping-pong barrier alternates the tensor cores between the warpgroups: while one multiplies a
// tile's values and the next tile's keys, the other computes softmax.
template <class T>
__device__ void run_consumer(Shared& s, const Problem& p, int group) {
  Fragment probabilities[steps] = {};
  hopper::Accumulator<64> sum = {};
  float row_max[2] = {}, row_sum[2] = {};
  QueryTile own;
  const auto add_values = [&] {
    const unsigned n = own.state.stage();
    s.v_full[n].wait(own.state.parity());
    s.v_padded[n].wait(own.state.parity());
    compute_outputs<T>(sum, probabilities, s.stage[n].v);
    hopper::wgmma_wait<0>();
    if (own.is_last_of_warpgroup()) arrive_per_warp(s.v_empty[n]);
  };
  const auto store = [&] {
    store_outputs<T>(p, own.unit, own.first_row_of_warp(), sum, row_max, row_sum, s.out[warp_index()]);
  };
  ConsumerTiles tiles(s, group);
  for (unsigned iteration = 0; tiles.next(); ++iteration) {
    const QueryTile& next = tiles.now();
    const auto& stage = s.stage[next.state.stage()];
    s.ping_pong[group].wait((iteration + 1 - static_cast<unsigned>(group)) & 1);
    if (iteration > 0) add_values();
    Scores scores;
    compute_scores<T>(scores, stage.q + next.index * tile * row_bytes, stage.k);
    store(); // stores nothing in the first iteration
    hopper::wgmma_wait<0>();
    arrive_per_warp(s.ping_pong[consumer_warpgroups - 1 - group]);
    if (next.is_last_of_warpgroup()) arrive_per_warp(s.empty[next.state.stage()]);
    mask_from(scores, next.unit.rows_kv);
    softmax_weights<T>(scores, p.scale * log2_e, row_max, row_sum, probabilities);
    own = next;
  }
  if (own.unit.rows_q == 0) return;
  add_values();
  store();
}

__device__ void init_barriers(Shared& s) {
  if (thread_index() == 0) {
    for (int n = 0; n < stages; ++n) {
      s.full[n].init(1);
      s.v_full[n].init(1);
      s.v_padded[n].init(1);
      s.empty[n].init(consumer_warps);
      s.v_empty[n].init(consumer_warps);
    }
    for (Barrier& each : s.ping_pong) each.init(warpgroup_warps);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    persistent_forward_kernel(const __grid_constant__ PersistentProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  init_barriers(s);
  const int group = __shfl_sync(0xffffffffu, thread_index() / warpgroup_threads, 0); // uniform within the warp
  if (group == consumer_warpgroups) {
    hopper::setmaxnreg_dec<producer_registers>();
    switch (warp_index() % warpgroup_warps) {
    case 0:
      run_producer(s, p);
      break;
    case 1:
      zero_value_tails<T>(s);
      break;
    case 2:
      zero_padding<T>(p.call);
      break;
    default:
      break;
    }
  } else {
    hopper::setmaxnreg_inc<consumer_registers>();
    run_consumer<T>(s, p.call, group);
  }
#endif
}

} // namespace

bool persistent_forward_supported(const Problem& p) {
  return p.tokens_q > 0 && p.tokens_kv > 0 && heads_tma_compatible(p.q, p.heads_q) &&
         heads_tma_compatible(p.k, p.heads_kv) && heads_tma_compatible(p.v, p.heads_kv);
}

void persistent_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem) {
  const PersistentProblem p{problem, head_tensor_maps(dtype, problem.q, problem.tokens_q, problem.heads_q),
                            head_tensor_maps(dtype, problem.k, problem.tokens_kv, problem.heads_kv),
                            head_tensor_maps(dtype, problem.v, problem.tokens_kv, problem.heads_kv)};
  const int64_t units = int64_t{problem.segments} * problem.heads_q;
  const auto count = static_cast<unsigned>(std::min<int64_t>(multiprocessors, std::max<int64_t>(units, 1)));
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = persistent_forward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<count, block_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
