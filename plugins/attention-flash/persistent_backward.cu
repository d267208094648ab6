// persistent_backward.cu: attention backward for segments like the frames of a vision tower: Hopper, not causal, no
// rotation, one key head per query head, 137 to 272 rows (257 patches and CLS in practice), optionally with one
// deferred query per segment.
//
// Persistent: one block per multiprocessor iterates over the (segment, head) work units, with all rows of a unit in
// shared memory and the next unit's keys double-buffered. Warp-specialized: two consumer warpgroups take tiles of 64
// keys, keeping d_k and d_v in registers, and then tiles of 64 queries, keeping d_q. Probabilities are recomputed in
// both passes (seven products instead of five), so that the warpgroups need not exchange anything. The third warpgroup
// has a producer warp that issues TMA loads, and three helper warps that zero rows past the end and compute delta.
//
// Measured for 257 x 257 rows, 6 heads, bf16, per layer (bench/LOG.md, 2026-11-22): on an H100 567 us for 512 frames
// and 88 us for 64, where cuDNN takes 1,027 and 148 us; on an H200 528 and 79.5 us, 547 us for 512 with deferred
// queries.
#include "persistent_backward_producer.cuh"

namespace fvlm::plugins {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// One of the two warpgroups that compute gradients.
template <class T>
class ConsumerWarpgroup {
 public:
  __device__ ConsumerWarpgroup(Shared& shared, const PersistentProblem& problem, int index)
      : s_(shared), p_(problem.call), index_(index), scale_(problem.call.scale * log2_e) {}

  __device__ void run() {
    for (;; ++state_.count) {
      s_.keys_ready[state_.stage()].wait(state_.keys_parity());
      unit_ = s_.units[state_.stage()];
      if (!unit_.exists()) return;
#pragma unroll 1
      for (int t = consumer_warpgroups - 1 - index_; t < tiles_of(unit_.rows_kv); t += consumer_warpgroups)
        process_key_tile(t);
      release_queries(tiles);
      released_ = 0;
#pragma unroll 1
      for (int t = 0; t < tiles_of(unit_.rows_q); ++t)
        if (is_own(t)) process_query_tile(t);
      arrive(s_.keys_empty[state_.stage()]);
    }
  }

 private:
  static constexpr int steps = head_dim / 16;
  // byte offset to the next 16 of the summed dimension
  static constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes;

  // Scores of one tile of keys (rows) against `size` queries (columns), and the gradients of the probabilities.
  template <int size>
  struct ScoreTile {
    Accumulator<size> weights, d_weights;
  };

  // Query tiles alternate between the warpgroups in twos, so that the tiles needed first by the next unit are released
  // first.
  __device__ bool is_own(int t) const {
    return t / 2 % consumer_warpgroups == index_;
  }
  // Releases the tiles before `end`, except this warpgroup's own, which its query pass still needs.
  __device__ void release_queries(int end) {
#pragma unroll 1
    for (; released_ < end; ++released_) {
      if (is_own(released_) && released_ < tiles_of(unit_.rows_q)) continue;
      s_.queries_ready[released_].wait(state_.queries_parity()); // so that the phase of the previous unit has completed
      arrive(s_.queries_empty[released_]);
    }
  }

  // Starts the two products of a tile of keys with a tile of queries.
  template <int size>
  __device__ void start_products(ScoreTile<size>& x, std::uint64_t k, std::uint64_t v, int t) {
    const std::uint64_t q = matrix_descriptor(s_.q + t * tile_bytes),
                        d_out = matrix_descriptor(s_.d_out + t * tile_bytes);
    s_.queries_ready[t].wait(state_.queries_parity());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.weights, advance_descriptor(k, step * step_bytes), advance_descriptor(q, step * step_bytes),
                      step > 0);
    wgmma_commit();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.d_weights, advance_descriptor(v, step * step_bytes),
                      advance_descriptor(d_out, step * step_bytes), step > 0);
    wgmma_commit();
  }
  // Adds one tile of queries to d_k and d_v. `last`: this is the warpgroup's last tile of keys, so tiles can be
  // released.
  template <int size>
  __device__ void add_query_tile(std::uint64_t k, std::uint64_t v, Accumulator<64>& d_k, Accumulator<64>& d_v, int t,
                                 bool last) {
    ScoreTile<size> x;
    start_products(x, k, v, t);
    const float *const lse = s_.lse + t * tile + column_of(0), *const deltas = s_.deltas + t * tile + column_of(0);
    AFragment by_weights[size / 16], by_scores[size / 16];
    wgmma_wait<1>();
    if (last) release_queries(t);
    fence_accumulators(x.weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& weight = x.weights[4 * b + i];
        weight = exp2_approx(weight * scale_ - (i % 2 == 0 ? row_lse.x : row_lse.y));
      }
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_weights[step], x.weights + 8 * step);
    wgmma_wait<0>();
    fence_accumulators(x.d_weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.weights[4 * b + i] *= x.d_weights[4 * b + i] - (i % 2 == 0 ? delta.x : delta.y);
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t q = matrix_descriptor(s_.q + t * tile_bytes),
                        d_out = matrix_descriptor(s_.d_out + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < size / 16; ++step) {
      wgmma<T, true>(d_v, by_weights[step], advance_descriptor(d_out, step * mn_step_bytes), true);
      wgmma<T, true>(d_k, by_scores[step], advance_descriptor(q, step * mn_step_bytes), true);
    }
    wgmma_commit();
  }

  __device__ void process_key_tile(int t) {
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes),
                        v = matrix_descriptor(s_.v[state_.stage()] + t * tile_bytes);
    const int end = full_tiles_of(unit_.rows_q);
    const bool last = t + consumer_warpgroups >= tiles_of(unit_.rows_kv);
    Accumulator<64> d_k = {}, d_v = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add_query_tile<tile>(k, v, d_k, d_v, of, last);
    if (unit_.rows_q > full_tile_rows || unit_.deferred >= 0)
      add_query_tile<tail_rows>(k, v, d_k, d_v, full_tiles, last);
    wgmma_wait<0>();
    fence_accumulators(d_k);
    fence_accumulators(d_v);
    store(p_.d_v, d_v, t, unit_.begin_kv, unit_.rows_kv, 1);
    store(p_.d_k, d_k, t, unit_.begin_kv, unit_.rows_kv, p_.scale);
  }

  // A tile of queries as A fragments, with the statistics of the thread's two rows.
  struct QueryTile {
    AFragment q[steps], d_out[steps];
    float row_lse[2], delta[2];
  };

  template <int size>
  __device__ void start_products(ScoreTile<size>& x, const QueryTile& own, int t) {
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes),
                        v = matrix_descriptor(s_.v[state_.stage()] + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.weights, own.q[step], advance_descriptor(k, step * step_bytes), step > 0);
    wgmma_commit();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.d_weights, own.d_out[step], advance_descriptor(v, step * step_bytes), step > 0);
    wgmma_commit();
  }
  template <int size>
  __device__ void add_key_tile(const QueryTile& own, Accumulator<64>& d_q, int t) {
    ScoreTile<size> x;
    start_products(x, own, t);
    const int keys_left = unit_.rows_kv - t * tile;
    AFragment by_scores[size / 16];
    wgmma_wait<1>();
    fence_accumulators(x.weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] = exp2_approx(x.weights[i] * scale_ - own.row_lse[i / 2 % 2]);
    if (keys_left < size) {
#pragma unroll
      for (int i = 0; i < size / 2; ++i)
        if (i / 4 * 8 + column_of(i) >= keys_left) x.weights[i] = 0;
    }
    wgmma_wait<0>();
    fence_accumulators(x.d_weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] *= x.d_weights[i] - own.delta[i / 2 % 2];
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < size / 16; ++step)
      wgmma<T, true>(d_q, by_scores[step], advance_descriptor(k, step * mn_step_bytes), true);
    wgmma_commit();
  }

  __device__ void process_query_tile(int t) {
    // a short last tile repeats the rows that exist
    const int first = t < full_tiles ? warp_index() % warpgroup_warps * rows_of_warp : 0;
    const Tile q{s_.q + t * tile_bytes}, d_out{s_.d_out + t * tile_bytes};
    QueryTile own;
    s_.queries_ready[t].wait(state_.queries_parity());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const Fragment of_q = load_a(q, first, step), of_d_out = load_a(d_out, first, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) own.q[step][i] = of_q.at[i], own.d_out[step][i] = of_d_out.at[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = t * tile + first + lane_index() / 4 + 8 * h;
      own.row_lse[h] = s_.lse[row], own.delta[h] = s_.deltas[row];
    }
    arrive(s_.queries_empty[t]);

    const int end = full_tiles_of(unit_.rows_kv);
    Accumulator<64> d_q = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add_key_tile<tile>(own, d_q, of);
    if (unit_.rows_kv > full_tile_rows) add_key_tile<tail_rows>(own, d_q, full_tiles);
    wgmma_wait<0>();
    fence_accumulators(d_q);
    store(p_.d_q, d_q, t, unit_.begin_q, unit_.rows_q, p_.scale);
  }

  __device__ void store(const HeadRows& to, const Accumulator<64>& sum, int t, int begin, int rows, float factor) {
    const WarpRows own{{}, begin, t * tile + warp_index() % warpgroup_warps * rows_of_warp, rows, unit_.head};
    store_rows<T>(own, to, {s_.results[warp_index()]}, reinterpret_cast<const float(&)[blocks][4]>(sum),
                  {factor, factor});
  }

  Shared& s_;
  const Problem& p_;
  const int index_;
  const float scale_;
  PipelineState state_;
  WorkUnit unit_;
  int released_ = 0; // tiles of the unit's queries that were released
};

__device__ void init_barriers(Shared& s) {
  if (thread_index() == 0) {
    for (Barrier& each : s.keys_full) each.init(1);
    for (Barrier& each : s.keys_ready) each.init(helper_threads);
    for (Barrier& each : s.keys_empty) each.init(consumer_and_helper_threads);
    for (Barrier& each : s.queries_full) each.init(1);
    for (Barrier& each : s.queries_ready) each.init(helper_threads);
    for (Barrier& each : s.queries_empty) each.init(consumer_and_helper_threads);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    persistent_backward_kernel(const __grid_constant__ PersistentProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  init_barriers(s);
  const int group = __shfl_sync(0xffffffffu, warp_index() / warpgroup_warps, 0); // uniform within the warp
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<helper_registers>();
    if (warp_index() == consumer_warps)
      run_producer(s, p);
    else
      run_helper<T>(s, p, warp_index() - consumer_warps - 1);
  } else {
    setmaxnreg_inc<consumer_registers>();
    ConsumerWarpgroup<T>(s, p, group).run();
  }
#endif
}

} // namespace

bool persistent_backward_supported(const Problem& p) {
  return persistent_forward_supported(p) && heads_tma_compatible(p.d_out, p.heads_q);
}

void persistent_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem) {
  const auto boxes = [&](const HeadRows& rows, int tokens) {
    return head_tensor_maps(dtype, rows, tokens, problem.heads_q);
  };
  const PersistentProblem p{problem, boxes(problem.q, problem.tokens_q), boxes(problem.k, problem.tokens_kv),
                            boxes(problem.v, problem.tokens_kv), boxes(problem.d_out, problem.tokens_q)};
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = persistent_backward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<static_cast<unsigned>(multiprocessors), block_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
