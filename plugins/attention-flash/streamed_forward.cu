// streamed_forward.cu: attention forward for long segments without a mask: Hopper, not causal, no rotation, more rows
// than the persistent kernels hold (577 and 1,024 patches of a vision tower in practice).
//
// Persistent: each block takes a contiguous share of all tiles of 64 queries, and goes through it in items of up to
// three tiles of one head of one segment. Warp-specialized: each of three consumer warpgroups has a tile, and one warp
// of the fourth brings keys and values through a ring in shared memory by TMA, far ahead. Which warpgroup has an item's
// first tile rotates, so that an item with a single tile costs a third of a full one. A warpgroup multiplies the values
// of one tile of keys and the scores of the next at once, also from one item to the next, and computes its softmax
// meanwhile.
//
// Measured in bf16 on an H100 (bench/LOG.md, 2026-11-27): 32 segments of 577 rows with 16 heads 115 us, 32 of 1,024
// with 12 heads 230 us, 16 of 729 with 16 heads 94 us, where cuDNN takes 150, 232 and 106 us.
#include "online_softmax.cuh"
#include "streamed_producer.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace streamed;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a thread sums up for its two rows of a tile of queries.
struct Rows {
  float max[2] = {-INFINITY, -INFINITY}; // of the scores
  float sum_of_weights[2] = {};
  float factor[2] = {}; // of what was summed before the last tile of keys
};

using Outputs = hopper::Accumulator<head_dim>;
using Weights = Fragment[keys / depth]; // probabilities of the tile of keys whose values come next

// Starts the scores of a tile of keys.
template <class T, int width>
__device__ void start_scores(hopper::Accumulator<width>& scores, const char* q, const char* k) {
  const std::uint64_t left = hopper::matrix_descriptor(q), right = hopper::matrix_descriptor(k);
#pragma unroll
  for (unsigned step = 0; step < head_dim / 16; ++step)
    hopper::wgmma<T, false>(scores, hopper::advance_descriptor(left, step * 32),
                            hopper::advance_descriptor(right, step * 32), step > 0);
  hopper::wgmma_commit();
}

// Starts adding the values of a tile of keys.
template <class T, int width>
__device__ void start_outputs(Outputs& sum, const Weights& weights, const char* v, bool adds) {
  const std::uint64_t right = hopper::matrix_descriptor(v);
#pragma unroll
  for (int step = 0; step < width / depth; ++step)
    hopper::wgmma<T, true>(sum, weights[step].at,
                           hopper::advance_descriptor(right, static_cast<unsigned>(step * depth * row_bytes)),
                           adds || step > 0);
  hopper::wgmma_commit();
}

// Masks the scores of keys that do not exist.
template <int width>
__device__ void mask_from(hopper::Accumulator<width>& scores, int keys_left) {
  const int last = keys_left - column_of(0);
#pragma unroll
  for (int i = 0; i < width / 2; ++i)
    if (i / 4 * 8 + i % 2 >= last) scores[i] = -INFINITY;
}

// Makes powers of the scores, and keeps what the sums so far have to be multiplied by.
template <int width>
__device__ void exponentiate(hopper::Accumulator<width>& scores, float scale, Rows& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float chain_max[2] = {-INFINITY, -INFINITY}; // two independent chains, which halves the latency
#pragma unroll
    for (int block = 0; block < width / 8; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i) chain_max[i] = fmaxf(chain_max[i], scores[4 * block + 2 * h + i]);
    const float highest = fmaxf(rows.max[h], quad_max(fmaxf(chain_max[0], chain_max[1])));
    // a segment has a key, so only a row of NaN or of -infinity has no highest score
    const float offset = highest == -INFINITY ? 0 : highest * scale;
    rows.factor[h] = exp2_approx(rows.max[h] * scale - offset);
    rows.max[h] = highest;
    float chain_sum[2] = {0, 0};
#pragma unroll
    for (int block = 0; block < width / 8; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[4 * block + 2 * h + i];
        score = exp2_approx(fmaf(score, scale, -offset));
        chain_sum[i] += score;
      }
    rows.sum_of_weights[h] = fmaf(rows.sum_of_weights[h], rows.factor[h], chain_sum[0] + chain_sum[1]);
  }
}

template <class T, int width>
__device__ void keep_weights(const hopper::Accumulator<width>& powers, Weights& weights) {
#pragma unroll
  for (int step = 0; step < width / depth; ++step) {
    const float* x = powers + 8 * step;
    weights[step] = {{rounded<T>(x[0], x[1]), rounded<T>(x[2], x[3]), rounded<T>(x[4], x[5]), rounded<T>(x[6], x[7])}};
  }
}

// A warpgroup that goes through the items of its block.
template <class T>
class Consumer {
 public:
  __device__ Consumer(Shared& s, const Problem& p, int group) : s_(s), p_(p), group_(group), scale_(p.scale * log2_e) {}

  __device__ void run() {
    for (Item next = wait_for_item(); next.exists();) {
      if (!has_full_tile(next)) {
        has_tile(next) ? attend_few(next) : skip(next);
        release_queries((items_ - 1) % query_stages);
        next = wait_for_item();
        continue;
      }
      start(next);
      for (bool goes_on = true; goes_on;) {
        const int tiles = item_.key_tiles();
        const bool ends_short = item_.ends_short();
#pragma unroll 1
        for (int i = 1; i < tiles - 1; ++i) add_tile<keys, false>(i);
        if (ends_short)
          add_tile<short_keys, true>(tiles - 1);
        else if (tiles > 1)
          add_tile<keys, true>(tiles - 1);
        next = wait_for_item();
        goes_on = has_full_tile(next);
        ends_short ? finish<short_keys>(next, goes_on) : finish<keys>(next, goes_on);
      }
    }
  }

 private:
  // The next item. One that does not exist is behind the last.
  __device__ Item wait_for_item() {
    const hopper::PipelineStage<query_stages> stage(items_++);
    s_.q_full[stage.index].wait(stage.parity);
    const Item& item = s_.items[stage.index];
    return {broadcast(item.begin_q), broadcast(item.rows_q), broadcast(item.begin_kv),
            broadcast(item.rows_kv), broadcast(item.head),   broadcast(item.rotation)};
  }
  __device__ void release_queries(unsigned stage) {
    arrive_per_warp(s_.q_empty[stage]);
  }

  // The next stage of the ring.
  __device__ unsigned wait_for_load() {
    const hopper::PipelineStage<stages> stage(loads_++);
    s_.full[stage.index].wait(stage.parity);
    return stage.index;
  }
  __device__ void release_load(unsigned stage) {
    arrive_per_warp(s_.empty[stage]);
  }

  __device__ int tile_of(const Item& item) const {
    return (group_ + consumer_warpgroups - item.rotation) % consumer_warpgroups;
  }
  __device__ bool has_tile(const Item& item) const {
    return item.exists() && item.rows_kv > 0 && tile_of(item) < item.query_tiles();
  }
  // Of more than a few queries.
  __device__ bool has_full_tile(const Item& item) const {
    return has_tile(item) && item.rows_q - tile_of(item) * tile > few_queries;
  }
  __device__ int first_row_of_warp(const Item& item) const {
    return tile_of(item) * tile + warp_ * rows_of_warp;
  }
  __device__ char* queries_of(const Item& item, unsigned stage) const {
    return s_.q[stage] + tile_of(item) * tile * row_bytes;
  }

  // Goes past an item whose queries are the other warpgroups', or that has no keys.
  __device__ void skip(const Item& item) {
    for (int i = 0; i < 2 * item.key_tiles(); ++i) release_load(wait_for_load());
    q_stage_ = (items_ - 1) % query_stages;
    if (item.rows_kv == 0 && tile_of(item) < item.query_tiles()) store(item, Outputs{}, Rows{});
  }

  // A tile of a few queries: each warp has a quarter of every tile of keys, and they add up what they have in the end.
  __device__ void attend_few(const Item& item) {
    const int first_key = warp_ * quarter, tiles = item.key_tiles();
    char* const memory = queries_of(item, (items_ - 1) % query_stages);
    Fragment q[head_dim / 16];
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) q[step] = load_a(Tile{memory}, 0, step);
    OnlineSoftmax softmax{scale_};
    float sum[blocks][4] = {};
    unsigned k = wait_for_load();
    for (int i = 0; i < tiles; ++i) {
      const int left = item.rows_kv - i * keys - first_key;
      float scores[quarter / 8][4] = {};
#pragma unroll
      for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < quarter / 16; ++pair)
          mma_16x8x16<T>(scores[2 * pair], scores[2 * pair + 1], q[step],
                         load_b(Tile{s_.ring[k]}.rows_from(first_key), 16 * pair, step));
#pragma unroll
      for (int block = 0; block < quarter / 8; ++block)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (8 * block + column_of(j) >= left) scores[block][j] = -INFINITY;
      release_load(k);
      if (i + 1 < tiles) k = wait_for_load();
      const unsigned v = wait_for_load();
      if (i + 1 == tiles) s_.padded[v].wait((loads_ - 1) / stages % 2);
      softmax.template accumulate<T>(scores, Tile{s_.ring[v]}.rows_from(first_key), sum);
      release_load(v);
    }
    FewQueries& few = s_.few[group_];
    sync_group(); // the queries have been read
    auto* const parts = reinterpret_cast<float(*)[few_queries][head_dim]>(memory);
    const int row = lane_index() / 4;
    few.max[warp_][row] = softmax.row_max[0];
    few.sum[warp_][row] = quad_sum(softmax.row_sum[0]);
#pragma unroll
    for (int block = 0; block < blocks; ++block)
      *reinterpret_cast<float2*>(&parts[warp_][row][8 * block + column_of(0)]) = {sum[block][0], sum[block][1]};
    sync_group();
    add_up_few(item, few, parts);
    hopper::fence_proxy_async(); // before the next queries are brought there
  }

  // Adds up what the warps have. A thread has four columns of a row.
  __device__ void add_up_few(const Item& item, const FewQueries& few, const float (*parts)[few_queries][head_dim]) {
    const int thread = warp_ * warp_size + lane_index(), row = thread / 16, column = thread % 16 * 4;
    const int row_of_item = tile_of(item) * tile + row;
    float highest = -INFINITY, weights = 0, sum[4] = {};
    for (int w = 0; w < warpgroup_warps; ++w) highest = fmaxf(highest, few.max[w][row]);
    for (int w = 0; w < warpgroup_warps; ++w) {
      const float factor = highest == -INFINITY ? 0 : exp2_approx((few.max[w][row] - highest) * scale_);
      weights += factor * few.sum[w][row];
      for (int i = 0; i < 4; ++i) sum[i] += factor * parts[w][row][column + i];
    }
    if (row_of_item >= item.rows_q) return;
    const float factor = weights > 0 ? __fdividef(1, weights) : 0;
    Pack<T, 4> out;
    out.round({sum[0] * factor, sum[1] * factor, sum[2] * factor, sum[3] * factor});
    out.store(at<T>(p_.out, item.begin_q + row_of_item, item.head) + column);
    if (p_.lse && column == 0)
      p_.lse[(item.begin_q + row_of_item) * p_.heads_q + item.head] =
          weights > 0 ? highest * scale_ + __log2f(weights) : INFINITY;
  }
  __device__ void sync_group() {
    asm volatile("bar.sync %0, %1;" ::"r"(group_ + 1), "n"(warpgroup_threads) : "memory");
  }

  // The first tile of keys of an item.
  __device__ void start(const Item& item) {
    item_ = item, q_stage_ = (items_ - 1) % query_stages, rows_ = {};
    hopper::Accumulator<keys> scores;
    const unsigned k = wait_for_load();
    hopper::wgmma_fence();
    start_scores<T, keys>(scores, queries_of(item_, q_stage_), s_.ring[k]);
    hopper::wgmma_wait<0>();
    hopper::fence_accumulators(scores);
    release_load(k);
    weigh_first(scores);
    keep_weights<T, keys>(scores, weights_);
  }
  __device__ void weigh_first(hopper::Accumulator<keys>& scores) {
    if (item_.rows_kv < keys) mask_from<keys>(scores, item_.rows_kv);
    exponentiate<keys>(scores, scale_, rows_);
  }

  // Tile `index` of keys after the first: its scores, and the values of the tile before it.
  template <int width, bool is_last>
  __device__ void add_tile(int index) {
    hopper::Accumulator<width> scores;
    const unsigned k = wait_for_load(), v = wait_for_load();
    hopper::wgmma_fence();
    start_scores<T, width>(scores, queries_of(item_, q_stage_), s_.ring[k]);
    start_outputs<T, keys>(sum_, weights_, s_.ring[v], index > 1);
    hopper::wgmma_wait<1>();
    hopper::fence_accumulators(scores);
    release_load(k);
    if (is_last) mask_from<width>(scores, item_.rows_kv - index * keys);
    exponentiate<width>(scores, scale_, rows_);
    hopper::wgmma_wait<0>();
    hopper::fence_accumulators(sum_);
    release_load(v);
#pragma unroll
    for (int i = 0; i < head_dim / 2; ++i) sum_[i] *= rows_.factor[i / 2 % 2];
    keep_weights<T, width>(scores, weights_);
  }

  // The last values of the item, of `width` keys, and the first scores of the next one if it goes on with that.
  template <int width>
  __device__ void finish(const Item& next, bool goes_on) {
    const bool adds = item_.key_tiles() > 1;
    const unsigned v = wait_for_load();
    s_.padded[v].wait((loads_ - 1) / stages % 2);
    if (!goes_on) {
      hopper::wgmma_fence();
      start_outputs<T, width>(sum_, weights_, s_.ring[v], adds);
      hopper::wgmma_wait<0>();
      hopper::fence_accumulators(sum_);
      release_load(v);
      store(item_, sum_, rows_);
      release_queries(q_stage_);
      return;
    }
    hopper::Accumulator<keys> scores;
    const unsigned k = wait_for_load(), next_stage = (items_ - 1) % query_stages;
    hopper::wgmma_fence();
    start_scores<T, keys>(scores, queries_of(next, next_stage), s_.ring[k]);
    start_outputs<T, width>(sum_, weights_, s_.ring[v], adds);
    hopper::wgmma_wait<1>();
    hopper::fence_accumulators(scores);
    release_load(k);
    const Item done = item_;
    const Rows rows_done = rows_;
    const unsigned stage_done = q_stage_;
    item_ = next, rows_ = {};
    weigh_first(scores);
    hopper::wgmma_wait<0>();
    hopper::fence_accumulators(sum_);
    release_load(v);
    store(done, sum_, rows_done);
    release_queries(stage_done);
    q_stage_ = next_stage;
    keep_weights<T, keys>(scores, weights_);
  }

  // Stores the warp's 16 rows by way of the memory of their queries.
  __device__ void store(const Item& item, const Outputs& sum, const Rows& rows) {
    const int first = first_row_of_warp(item);
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float weights = quad_sum(rows.sum_of_weights[h]);
      factor[h] = weights > 0 ? __fdividef(1, weights) : 0;
      const int row = first + lane_index() / 4 + 8 * h;
      if (p_.lse && lane_in_quad() == 0 && row < item.rows_q)
        p_.lse[(item.begin_q + row) * p_.heads_q + item.head] =
            weights > 0 ? rows.max[h] * scale_ + __log2f(weights) : INFINITY;
    }
    store_accumulators<T>(p_.out, item.begin_q + first, item.rows_q - first, item.head, sum, factor,
                          s_.q[q_stage_] + first * row_bytes);
    hopper::fence_proxy_async(); // before the next queries are brought there
  }

  Shared& s_;
  const Problem& p_;
  const int group_, warp_ = broadcast(warp_index() % warpgroup_warps);
  const float scale_;
  unsigned items_ = 0, loads_ = 0; // that have been waited for
  Item item_{};
  unsigned q_stage_ = 0; // where item_'s queries are
  Rows rows_;
  Outputs sum_;
  Weights weights_;
};

__device__ void init_barriers(Shared& s) {
  if (thread_index() == 0) {
    for (int n = 0; n < query_stages; ++n) s.q_full[n].init(1), s.q_empty[n].init(consumer_warps + 1);
    for (int n = 0; n < stages; ++n) s.full[n].init(1), s.padded[n].init(1), s.empty[n].init(consumer_warps + 1);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 1) streamed_forward_kernel(const __grid_constant__ StreamedProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  init_barriers(s);
  const int group = broadcast(thread_index() / warpgroup_threads);
  if (group == consumer_warpgroups) {
    hopper::setmaxnreg_dec<producer_registers>();
    const int warp = warp_index() % warpgroup_warps;
    if (warp == 0 && lane_index() == 0) run_producer(s, p);
    if (warp == 1) zero_value_tails<T>(s);
    if (warp == 2) zero_padding<T>(p.call);
  } else {
    hopper::setmaxnreg_inc<consumer_registers>();
    Consumer<T>(s, p.call, group).run();
  }
#endif
}

} // namespace

bool streamed_forward_supported(const Problem& p, int longest_q) {
  return p.tokens_q > 0 && p.tokens_kv > 0 && heads_tma_compatible(p.q, p.heads_q) &&
         heads_tma_compatible(p.k, p.heads_kv) && heads_tma_compatible(p.v, p.heads_kv) &&
         int64_t{p.segments} * p.heads_q * ((longest_q + tile - 1) / tile) <= INT32_MAX;
}

void streamed_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem,
                      int longest_q) {
  // A block reads the heads one after the other, so that lines of two heads would be read twice.
  constexpr auto promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const StreamedProblem p{problem, head_tensor_maps(dtype, problem.q, problem.tokens_q, problem.heads_q, promotion),
                          head_tensor_maps(dtype, problem.k, problem.tokens_kv, problem.heads_kv, promotion),
                          head_tensor_maps(dtype, problem.v, problem.tokens_kv, problem.heads_kv, promotion),
                          (longest_q + tile - 1) / tile};
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = streamed_forward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<static_cast<unsigned>(multiprocessors), block_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
