// tiled_producer.cuh: what tiled_backward.cu's warps have in common, and the thread that loads: the tasks of a block,
// slots of shared memory, and the loads. For Hopper.
#pragma once

#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"
#include "tiled_backward.cuh"

namespace fvlm::plugins::tiled {

using hopper::Barrier, hopper::warpgroup_warps, hopper::warpgroup_threads, hopper::tma_load;

constexpr int tile_bytes = tile_rows * row_bytes, slots = 4, tasks = 2; // pairs of tiles and tasks in shared memory
static_assert(threads == 2 * warpgroup_threads);

struct MappedProblem {
  TiledProblem tiled;
  CUtensorMap q, k, v, d_out;

  __device__ bool starts_with_keys() const { return static_cast<int>(blockIdx.x) < tiled.workers_kv; }
};

// A tile of the keys or of the queries of a key head of a segment.
struct Task {
  bool exists, of_keys, causal;
  int head_kv, group, tile, begin_q, rows_q, begin_kv, rows_kv;

  __device__ int visible_keys(int row) const {
    return causal ? min(max(row + rows_kv - rows_q + 1, 0), rows_kv) : rows_kv;
  }
  // Tiles of keys that this task's queries need; the first tile of queries that needs its keys, and how many there are.
  __device__ int key_tiles() const {
    return (visible_keys(min((tile + 1) * tile_rows, rows_q) - 1) + tile_rows - 1) / tile_rows;
  }
  __device__ int first_query_tile() const {
    return causal ? min(max(tile * tile_rows - (rows_kv - rows_q), 0) / tile_rows, query_tiles()) : 0;
  }
  __device__ int query_tiles() const { return (rows_q + tile_rows - 1) / tile_rows; }
};

struct alignas(1024) Shared {
  struct Pair {
    char one[tile_bytes], other[tile_bytes]; // queries and d_out, or keys and values
  } pairs[slots];
  char staging[warpgroup_warps][rows_of_warp * row_bytes];
  Rotations rotations[tasks][tile_rows];                       // of the block's own rows
  alignas(16) Statistic statistics[slots][statistics_of_tile]; // of the queries of a pair
  Task task[tasks];
  Barrier full[slots], empty[slots], task_full[tasks], task_empty[tasks];
};

__device__ inline void bulk_load(void* to, const void* from, unsigned bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

// The slots in the order of their use, four bits each, and the parity of each one's next use.
struct SlotOrder {
  unsigned queue = 0x3210, uses = 0;

  __device__ int next() {
    const int slot = static_cast<int>(queue & 15);
    queue = queue >> 4 | static_cast<unsigned>(slot) << 4 * (slots - 1);
    return slot;
  }
  __device__ unsigned use(int slot) {
    const unsigned parity = uses >> slot & 1;
    uses ^= 1u << slot;
    return parity;
  }
};

// The thread that loads all of a block's tasks.
class Producer {
 public:
  __device__ Producer(Shared& shared, const MappedProblem& problem)
      : s_(shared), all_(problem), tiled_(problem.tiled), p_(problem.tiled.call) {}

  __device__ void run() {
    wait_for_previous_kernel();
    const int block = static_cast<int>(blockIdx.x);
    if (all_.starts_with_keys()) load_tasks(true, block);
    load_tasks(false, all_.starts_with_keys() ? next_task(false) : block - tiled_.workers_kv);
  }

 private:
  __device__ int task_count(bool of_keys) const {
    return (of_keys ? tiled_.tiles_kv : tiled_.tiles_q) * p_.segments * p_.heads_kv;
  }
  // Blocks have a first task of their own, and take more only where there are more.
  __device__ int next_task(bool of_keys) const {
    const int workers = of_keys ? tiled_.workers_kv : static_cast<int>(gridDim.x) - tiled_.workers_kv;
    return workers < task_count(of_keys) ? workers + atomicAdd(&tiled_.taken[of_keys], 1) : workers;
  }

  // Tasks with most work come first, and blocks take the next one as they have room for it. Of causal segments the
  // first keys are seen by most queries, and the last queries see most keys.
  __device__ void load_tasks(bool of_keys, int index) {
    const int tiles = of_keys ? tiled_.tiles_kv : tiled_.tiles_q, key_heads = p_.segments * p_.heads_kv;
#pragma unroll 1
    for (; index < task_count(of_keys); index = next_task(of_keys)) {
      const int rank = index / key_heads, key_head = index - rank * key_heads, segment = key_head / p_.heads_kv;
      const int begin_q = p_.cu_q[segment], end_q = p_.cu_q[segment + 1], begin_kv = p_.cu_kv[segment],
                end_kv = p_.cu_kv[segment + 1], tile = of_keys ? rank : tiles - 1 - rank;
      if (tile * tile_rows >= (of_keys ? end_kv - begin_kv : end_q - begin_q)) continue;
      Task& task = give_task();
      task = {true,         of_keys,
              p_.causal,    key_head - segment * p_.heads_kv,
              tiled_.group, tile,
              begin_q,      end_q - begin_q,
              begin_kv,     end_kv - begin_kv};
      Barrier& full = s_.task_full[task_index_ % tasks];
      full.arrive_and_expect_tx(p_.positions_q ? sizeof s_.rotations[0] : 0);
      if (p_.positions_q)
        bulk_load(s_.rotations[task_index_ % tasks],
                  (of_keys ? tiled_.rotations_kv + begin_kv : tiled_.rotations_q + begin_q) + tile * tile_rows,
                  sizeof s_.rotations[0], full);
      load_pairs(task);
      ++task_index_;
    }
    give_task().exists = false;
    s_.task_full[task_index_++ % tasks].arrive();
  }
  __device__ Task& give_task() {
    if (task_index_ >= tasks) s_.task_empty[task_index_ % tasks].wait((task_index_ / tasks - 1) % 2);
    return s_.task[task_index_ % tasks];
  }

  // Calls body(is_of_queries, head of the group, tile) for all pairs of tiles in the order of their use: the block's
  // own, and those that it is multiplied by.
  template <class Body>
  __device__ static void for_each_pair(const Task& task, const Body& body) {
    if (task.of_keys) {
      const int first = task.first_query_tile(), end = task.query_tiles();
      if (first < end) body(false, 0, task.tile);
#pragma unroll 1
      for (int head = 0; head < task.group; ++head)
#pragma unroll 1
        for (int tile = first; tile < end; ++tile) body(true, head, tile);
    } else if (const int count = task.key_tiles(); count > 0) {
#pragma unroll 1
      for (int head = 0; head < task.group; ++head) {
        body(true, head, task.tile);
#pragma unroll 1
        for (int tile = 0; tile < count; ++tile) body(false, 0, tile);
      }
    }
  }

  __device__ void load_pairs(const Task& task) {
    for_each_pair(task, [&](bool is_of_queries, int head, int tile) {
      const int slot = order_.next();
      const unsigned parity = order_.use(slot);
      if (pair_count_++ >= slots) s_.empty[slot].wait(parity ^ 1);
      Shared::Pair& pair = s_.pairs[slot];
      Barrier& full = s_.full[slot];
      const int row = (is_of_queries ? task.begin_q : task.begin_kv) + tile * tile_rows,
                of_head = is_of_queries ? task.head_kv * task.group + head : task.head_kv;
      full.arrive_and_expect_tx(2 * tile_bytes + (is_of_queries ? sizeof s_.statistics[slot] : 0));
      tma_load(pair.one, is_of_queries ? all_.q : all_.k, 0, of_head, row, full);
      tma_load(pair.other, is_of_queries ? all_.d_out : all_.v, 0, of_head, row, full);
      if (is_of_queries)
        bulk_load(s_.statistics[slot],
                  tiled_.statistics + int64_t{of_head} * tiled_.statistics_rows(p_.tokens_q) + row / 2 * 2,
                  sizeof s_.statistics[slot], full);
    });
  }

  Shared& s_;
  const MappedProblem& all_;
  const TiledProblem& tiled_;
  const Problem& p_;
  SlotOrder order_;
  int pair_count_ = 0; // loaded so far
  unsigned task_index_ = 0;
};

} // namespace fvlm::plugins::tiled
