// streamed_producer.cuh: what streamed_forward.cu's warps have in common, and those that bring keys and values: the
// items of a block, the ring in shared memory, and the loads. For Hopper.
#pragma once

#include "persistent.cuh"

namespace fvlm::plugins::streamed {

using hopper::Barrier, hopper::warpgroup_warps, hopper::warpgroup_threads;

constexpr int consumer_warpgroups = 3, consumer_warps = consumer_warpgroups * warpgroup_warps,
              block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int tile = 64, item_queries = consumer_warpgroups * tile; // queries
constexpr int keys = 128, short_keys = 80;                          // of a tile, and of the last one where it fits
constexpr int depth = 16;                                           // keys of a product of probabilities and values
constexpr int stages = 10, query_stages = 2;

struct StreamedProblem {
  Problem call;
  HeadTensorMaps q, k, v;
  int tiles_of_head; // of queries of the longest segment
};

// Up to 192 queries of a head of a segment, and the segment's keys.
struct Item {
  int begin_q, rows_q, begin_kv, rows_kv, head;
  int rotation; // the warpgroup that has the first tile

  __device__ bool exists() const { return head >= 0; }
  __device__ int query_tiles() const { return (rows_q + tile - 1) / tile; }
  __device__ int key_tiles() const { return (rows_kv + keys - 1) / keys; }
  __device__ bool ends_short() const { return rows_kv > keys && (rows_kv - 1) % keys < short_keys; }
};

// What the warps of a group have of a tile of few queries.
constexpr int few_queries = 8, quarter = keys / warpgroup_warps;
struct FewQueries {
  float max[warpgroup_warps][few_queries], sum[warpgroup_warps][few_queries];
};

struct alignas(1024) Shared {
  char q[query_stages][item_queries * row_bytes]; // then the outputs
  char ring[stages][keys * row_bytes];            // keys of tile 0; keys of 1, values of 0; keys of 2, values of 1; ...
  FewQueries few[consumer_warpgroups];
  Item items[query_stages];
  Barrier q_full[query_stages], q_empty[query_stages];
  Barrier full[stages], padded[stages], empty[stages]; // padded: rows of values past the last key are zero
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Per thread. The sum must be exactly what the kernel is launched with, 128 per thread.
constexpr int consumer_registers = 160, producer_registers = 32;
static_assert(consumer_warpgroups * consumer_registers + producer_registers == (consumer_warpgroups + 1) * 128);

// The items of this block, one after the other. Called by one thread. A head's last tile comes first: it may have few
// queries, and what comes after it has to be near by then, in the L2.
class Items {
 public:
  __device__ explicit Items(const StreamedProblem& p) : p_(p) {
    const auto tiles = static_cast<long long>(p.call.segments) * p.call.heads_q * p.tiles_of_head;
    next_ = static_cast<int>(tiles * blockIdx.x / gridDim.x);
    end_ = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x);
  }

  __device__ Item next() {
    while (next_ < end_) {
      const int unit = next_ / p_.tiles_of_head, segment = unit / p_.call.heads_q,
                last = p_.tiles_of_head - next_ % p_.tiles_of_head,
                tiles = (min(last, end_ - next_) - 1) % consumer_warpgroups + 1;
      const int begin_q = p_.call.cu_q[segment] + (last - tiles) * tile, rows_q = p_.call.cu_q[segment + 1] - begin_q;
      next_ += tiles;
      if (rows_q <= 0) continue;
      const int begin_kv = p_.call.cu_kv[segment], rows_kv = p_.call.cu_kv[segment + 1] - begin_kv,
                head = unit - segment * p_.call.heads_q;
      const Item item{begin_q, min(rows_q, tiles * tile), begin_kv, rows_kv, head, rotation_};
      rotation_ = (rotation_ + item.query_tiles()) % consumer_warpgroups;
      return item;
    }
    return {0, 0, 0, 0, -1, 0};
  }

 private:
  const StreamedProblem& p_;
  int next_, end_, rotation_ = 0;
};

// Makes the compiler see that the value is the same in all threads of the warp.
__device__ inline int broadcast(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

__device__ inline void arrive_per_warp(Barrier& barrier) {
  __syncwarp();
  if (lane_index() == 0) barrier.arrive();
}

__device__ void run_producer(Shared& s, const StreamedProblem& p) {
  Items items(p);
  unsigned loads = 0;
  const auto load = [&](const HeadTensorMaps& boxes, const Item& item, int head, int index) {
    const hopper::PipelineStage<stages> stage(loads++);
    const int rows = min(keys, item.rows_kv - index * keys);
    s.empty[stage.index].wait(stage.parity ^ 1);
    s.full[stage.index].arrive_and_expect_tx(static_cast<unsigned>(loaded_rows(rows) * row_bytes));
    tma_load_rows(s.ring[stage.index], boxes, head, item.begin_kv + index * keys, rows, s.full[stage.index]);
  };
  for (unsigned count = 0;; ++count) {
    const Item item = items.next();
    const hopper::PipelineStage<query_stages> stage(count);
    s.q_empty[stage.index].wait(stage.parity ^ 1);
    s.items[stage.index] = item;
    s.q_full[stage.index].arrive_and_expect_tx(static_cast<unsigned>(loaded_rows(item.rows_q) * row_bytes));
    if (!item.exists()) return;
    tma_load_rows(s.q[stage.index], p.q, item.head, item.begin_q, item.rows_q, s.q_full[stage.index]);
    const int head_kv = p.call.head_group.row_of(item.head), tiles = item.key_tiles();
    for (int i = 0; i <= tiles; ++i) {
      if (i < tiles) load(p.k, item, head_kv, i);
      if (i > 0) load(p.v, item, head_kv, i - 1);
    }
  }
}

// Zeros what the last product of an item's values reads past the last key.
template <class T>
__device__ void zero_value_tails(Shared& s) {
  unsigned loads = 0;
  for (unsigned count = 0;; ++count) {
    const hopper::PipelineStage<query_stages> of_queries(count);
    s.q_full[of_queries.index].wait(of_queries.parity);
    const Item item = s.items[of_queries.index];
    if (!item.exists()) return;
    const int tiles = item.key_tiles(), last = item.rows_kv - (tiles - 1) * keys;
    for (int i = 0; i < 2 * tiles; ++i, ++loads) {
      const hopper::PipelineStage<stages> stage(loads);
      s.full[stage.index].wait(stage.parity);
      if (i == 2 * tiles - 1) zero_rows_between<T>(s.ring[stage.index], last, keys);
      arrive_per_warp(s.padded[stage.index]);
      arrive_per_warp(s.empty[stage.index]);
    }
    arrive_per_warp(s.q_empty[of_queries.index]);
  }
}

#endif

} // namespace fvlm::plugins::streamed
