// tiled_backward.cu: attention backward in tiles of 64 rows by wgmma: Hopper, segments of any length, causal or not,
// rotation of q and k in the launch before (tiled_rows.cu).
//
// A block owns 64 keys of a key head of a segment, and computes their d_k and d_v from the tiles of queries of all
// heads of the group; or it owns 64 queries and computes d_q for each head of the group from the tiles of keys that
// these attend to. Scores and their gradients are computed for both and stay in the registers of one warpgroup, as
// operands of the next product, so that blocks exchange nothing and sums have one order. A second warpgroup loads the
// tiles through slots of shared memory, those of a block's next tile too. Two blocks share a multiprocessor.
//
// Measured on an H200 (bf16, 9:3 heads, causal; bench/LOG.md, 2026-11-30), per layer: 8 x 192 tokens 18.4 us, 32 x 192
// 37.9 us, where backward.cu took 21.9 and 55.7 us.
#include "tiled_producer.cuh"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using namespace tiled;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Per thread, together what the kernel is launched with, 2 x 128.
constexpr int consumer_registers = 232, producer_registers = 24;

// byte offset to the next 16 of the summed dimension
constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes;

using AFragments = std::uint32_t[tile_rows / 16][4];
using Sum = Accumulator<tile_rows>;

__device__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0); // the compiler knows that it is the same in the whole warp
}
template <class T>
__device__ void round_to(AFragments& left, const Sum& x) {
#pragma unroll
  for (int i = 0; i < 16; ++i) left[i / 4][i % 4] = rounded<T>(x[2 * i], x[2 * i + 1]);
}
// Keeps the compiler from computing what follows from the value ahead of a loop, which takes registers inside.
__device__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
// The column of an accumulator's value n, and which of the thread's two rows it belongs to.
__device__ int column_in_tile(int n) {
  return n / 4 * 8 + column_of(n);
}
constexpr __device__ int which_row(int n) {
  return n / 2 % 2;
}

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const MappedProblem& problem) : s_(shared), all_(problem), p_(problem.tiled.call) {}

  __device__ void run() {
    const bool is_producer = threadIdx.x == warpgroup_threads;
    if (is_producer) {
      for (Barrier& each : s_.full) each.init(1);
      for (Barrier& each : s_.empty) each.init(warpgroup_warps);
      for (Barrier& each : s_.task_full) each.init(1);
      for (Barrier& each : s_.task_empty) each.init(warpgroup_threads);
      Barrier::fence_init();
    }
    __syncthreads();
    if (uniform(warp_index()) < warpgroup_warps) {
      setmaxnreg_inc<consumer_registers>();
      if (all_.starts_with_keys()) for_each_task([&](const Task& task) { compute_d_k_and_d_v(task); });
      for_each_task([&](const Task& task) { compute_d_q(task); });
    } else {
      setmaxnreg_dec<producer_registers>();
      if (is_producer) Producer(s_, all_).run();
    }
  }

 private:
  template <class Body>
  __device__ void for_each_task(const Body& body) {
#pragma unroll 1
    for (bool is_last = false; !is_last; ++task_index_) {
      s_.task_full[task_index_ % tasks].wait(task_index_ / tasks % 2);
      const Task& task = s_.task[task_index_ % tasks];
      is_last = !task.exists;
      if (!is_last) body(task);
      s_.task_empty[task_index_ % tasks].arrive();
    }
  }

  __device__ int take() {
    const int slot = uniform(order_.next());
    s_.full[slot].wait(order_.use(slot));
    return slot;
  }
  // Rows at and past `rows` are zeroed: they belong to others, and get probability 0, but must be finite.
  __device__ int take(int rows) {
    const int slot = take();
    if (rows < tile_rows) {
      for (int row = rows + thread_index() / packs; row < tile_rows; row += warpgroup_threads / packs)
        for (char* tile : {s_.pairs[slot].one, s_.pairs[slot].other})
          *reinterpret_cast<uint4*>(tile + row * row_bytes + thread_index() % packs * 16) = {};
      fence_proxy_async();
      asm volatile("bar.sync 1, %0;" ::"n"(warpgroup_threads) : "memory");
    }
    return slot;
  }
  __device__ void release(int slot) {
    __syncwarp();
    if (lane_index() == 0) s_.empty[slot].arrive();
  }

  // The warp's rows of a tile, as a left operand.
  __device__ static void load_rows(AFragments& rows, char* tile) {
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) {
      const Fragment loaded = load_a(Tile{tile}, warp_index() * rows_of_warp, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[step][i] = loaded.at[i];
    }
  }
  // sum = rows tile^T over head_dim.
  __device__ static void multiply(Sum& sum, const AFragments& rows, const char* tile) {
    const std::uint64_t b = matrix_descriptor(tile);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
      wgmma<T, false>(sum, rows[step], advance_descriptor(b, static_cast<unsigned>(step) * step_bytes), step > 0);
    wgmma_commit();
  }
  // sum += a tile, whose rows are the summed dimension.
  __device__ static void add_product(Sum& sum, const AFragments& a, const char* tile) {
    const std::uint64_t b = matrix_descriptor(tile);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_rows / 16; ++step)
      wgmma<T, true>(sum, a[step], advance_descriptor(b, static_cast<unsigned>(step) * mn_step_bytes), true);
    wgmma_commit();
  }
  __device__ float scale_log2() const {
    return p_.scale * log2_e;
  }
  __device__ const Statistic* statistics(int slot, int begin_q) const {
    return s_.statistics[slot] + begin_q % 2;
  }

  __device__ void compute_d_q(const Task& task) {
    const int count = uniform(task.key_tiles()), tile = uniform(task.tile), group = uniform(task.group);
    const int row_of_tile = opaque(warp_index() * rows_of_warp + lane_index() / 4),
              row = tile * tile_rows + row_of_tile;
    const int visible[2] = {task.visible_keys(row), task.visible_keys(row + 8)},
              visible_to_all = task.visible_keys(tile * tile_rows);
#pragma unroll 1
    for (int head = 0; head < group; ++head) {
      Sum d_q = {};
      fence_accumulators(d_q);
      if (count > 0) {
        AFragments q, d_out;
        const int own = take();
        load_rows(q, s_.pairs[own].one);
        load_rows(d_out, s_.pairs[own].other);
        const Statistic of[2] = {statistics(own, task.begin_q)[row_of_tile],
                                 statistics(own, task.begin_q)[row_of_tile + 8]};
        release(own);
        AFragments by_scores;
        int keys = -1;
        // Multiplies a tile's scores while the product of the tile before it is under way.
        const auto next = [&](int key_tile, auto first_one) {
          constexpr bool is_first = decltype(first_one)::value;
          const int former = keys;
          keys = take(task.rows_kv - key_tile * tile_rows);
          Sum weights, d_scores;
          multiply(weights, q, s_.pairs[keys].one);
          multiply(d_scores, d_out, s_.pairs[keys].other);
          if constexpr (!is_first) add_product(d_q, by_scores, s_.pairs[former].one);
          wgmma_wait<is_first ? 1 : 2>();
          fence_accumulators(weights);
#pragma unroll
          for (int n = 0; n < 32; ++n) weights[n] = exp2_approx(weights[n] * scale_log2() - of[which_row(n)].row_lse);
          if ((key_tile + 1) * tile_rows > visible_to_all) {
#pragma unroll
            for (int n = 0; n < 32; ++n)
              if (key_tile * tile_rows + column_in_tile(n) >= visible[which_row(n)]) weights[n] = 0;
          }
          wgmma_wait<is_first ? 0 : 1>();
          fence_accumulators(d_scores);
#pragma unroll
          for (int n = 0; n < 32; ++n) d_scores[n] = weights[n] * (d_scores[n] - of[which_row(n)].delta);
          if constexpr (!is_first) {
            wgmma_wait<0>();
            fence_accumulators(d_q);
            release(former);
          }
          round_to<T>(by_scores, d_scores);
        };
        next(0, std::true_type{});
#pragma unroll 1
        for (int key_tile = 1; key_tile < count; ++key_tile) next(key_tile, std::false_type{});
        add_product(d_q, by_scores, s_.pairs[keys].one);
        wgmma_wait<0>();
        fence_accumulators(d_q);
        release(keys);
      }
      rotate_back(d_q, task.begin_q);
      store(p_.d_q, task.begin_q, task.rows_q, tile, task.head_kv * group + head, d_q, p_.scale);
    }
  }

  __device__ void compute_d_k_and_d_v(const Task& task) {
    Sum d_k = {}, d_v = {};
    fence_accumulators(d_k);
    fence_accumulators(d_v);
    sum_d_k_and_d_v(task, d_k, d_v);
    rotate_back(d_k, task.begin_kv);
    store(p_.d_k, task.begin_kv, task.rows_kv, task.tile, task.head_kv, d_k, p_.scale);
    store(p_.d_v, task.begin_kv, task.rows_kv, task.tile, task.head_kv, d_v, 1);
  }
  __device__ void sum_d_k_and_d_v(const Task& task, Sum& d_k, Sum& d_v) {
    const int first = uniform(task.first_query_tile()), end = uniform(task.query_tiles()),
              rows_q = uniform(task.rows_q), count = uniform(task.group) * (end - first);
    if (count <= 0) return;
    // The first query that attends to this thread's key, and the last one that does not attend to all keys.
    const int shift = task.rows_kv - rows_q,
              first_query =
                  opaque(task.causal ? task.tile * tile_rows + warp_index() * rows_of_warp + lane_index() / 4 - shift
                                     : -tile_rows),
              last_cut = uniform(task.causal ? (task.tile + 1) * tile_rows - 2 - shift : -1);
    AFragments k, v;
    const int own = take();
    load_rows(k, s_.pairs[own].one);
    load_rows(v, s_.pairs[own].other);
    release(own);
    AFragments by_weights, by_scores;
    int tile = first, queries = -1;
    const auto next = [&](auto first_one) { // as in compute_d_q()
      constexpr bool is_first = decltype(first_one)::value;
      const int former = queries;
      queries = take(rows_q - tile * tile_rows);
      const Statistic* of = statistics(queries, task.begin_q);
      Sum weights, d_scores;
      multiply(weights, k, s_.pairs[queries].one);
      multiply(d_scores, v, s_.pairs[queries].other);
      if constexpr (!is_first) {
        add_product(d_v, by_weights, s_.pairs[former].other);
        add_product(d_k, by_scores, s_.pairs[former].one);
      }
      wgmma_wait<is_first ? 1 : 3>();
      fence_accumulators(weights);
#pragma unroll
      for (int n = 0; n < 32; ++n) weights[n] = exp2_approx(weights[n] * scale_log2() - of[column_in_tile(n)].row_lse);
      // Rows of keys that do not exist are not stored.
      if (tile * tile_rows <= last_cut || (tile + 1) * tile_rows > rows_q) {
#pragma unroll
        for (int n = 0; n < 32; ++n)
          if (const int query = tile * tile_rows + column_in_tile(n);
              query < first_query + 8 * which_row(n) || query >= rows_q)
            weights[n] = 0;
      }
      wgmma_wait<is_first ? 0 : 2>();
      fence_accumulators(d_scores);
#pragma unroll
      for (int n = 0; n < 32; ++n) d_scores[n] = weights[n] * (d_scores[n] - of[column_in_tile(n)].delta);
      if constexpr (!is_first) {
        wgmma_wait<0>();
        fence_accumulators(d_v);
        fence_accumulators(d_k);
        release(former);
      }
      round_to<T>(by_weights, weights);
      round_to<T>(by_scores, d_scores);
      if (++tile == end) tile = first;
    };
    next(std::true_type{});
#pragma unroll 1
    for (int left = count - 1; left > 0; --left) next(std::false_type{});
    add_product(d_v, by_weights, s_.pairs[queries].other);
    add_product(d_k, by_scores, s_.pairs[queries].one);
    wgmma_wait<0>();
    fence_accumulators(d_k);
    fence_accumulators(d_v);
    release(queries);
  }

  // Applies the inverse rotation to gradients of rotated rows.
  __device__ void rotate_back(Sum& sum, int begin) {
    if (!p_.positions_q) return;
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      const int row = opaque(warp_index() * rows_of_warp + lane_index() / 4) + 8 * which_row(n);
      const float4 both =
          s_.rotations[task_index_ % tasks][row].of_pair[Rotations::place(begin + row, n / 4 * 4 + lane_in_quad())];
      Rotation{both.x, both.y}.undo(sum[n], sum[n + 16]);
      Rotation{both.z, both.w}.undo(sum[n + 1], sum[n + 17]);
    }
  }
  // Stores this block's tile of a head, 16 rows a warp, through shared memory that only the warp uses.
  __device__ void store(const HeadRows& to, int begin, int rows, int tile, int head, const Sum& sum, float factor) {
    store_rows<T>(WarpRows{{}, begin, tile * tile_rows + warp_index() * rows_of_warp, rows, head}, to,
                  Tile{s_.staging[warp_index()]}, reinterpret_cast<const float(&)[blocks][4]>(sum), {factor, factor});
  }

  Shared& s_;
  const MappedProblem& all_;
  const Problem& p_;
  SlotOrder order_;
  unsigned task_index_ = 0;
};

#endif

template <class T>
__global__ void __launch_bounds__(threads, 2) tiled_kernel(const __grid_constant__ MappedProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  Block<T>(*reinterpret_cast<Shared*>(memory), p).run();
#endif
}

int tile_count(int rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// Boxes of 64 rows of one head.
CUtensorMap tile_map(fvlm_dtype dtype, const HeadRows& rows, int tokens, int heads) {
  return TensorMapShape{tensor_map_type(dtype),
                        3,
                        {head_dim, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(tokens)},
                        {rows.head_stride, rows.row_stride},
                        {head_dim, 1, tile_rows}}
      .encode(rows.data);
}

} // namespace

// Blocks go through the tiles that all segments would have if they were as long as the longest one, which takes time if
// most of these do not exist.
bool tiled_backward_supported(const fvlm_attention_query& query) {
  const auto are_full_enough = [&](int longest, int64_t tokens) {
    return tokens > 0 && query.segments * tile_count(longest) <= 8 * (tokens / tile_rows + query.segments);
  };
  return query.max_seqlen_q > tile_rows && std::max(query.max_seqlen_q, query.max_seqlen_kv) > max_resident_rows &&
         are_full_enough(query.max_seqlen_q, query.tokens_q) && are_full_enough(query.max_seqlen_kv, query.tokens_kv);
}

TiledWorkspace tiled_workspace(sdk::Workspace& workspace, const fvlm_attention_query& query) {
  const auto bytes = [&](int64_t count) { return workspace.take<char>(count).data(); };
  TiledWorkspace all{};
  all.taken = bytes(2 * int64_t{sizeof(int)});
  all.statistics = bytes(query.heads_q * (query.tokens_q + statistics_of_tile + 1) * int64_t{sizeof(Statistic)});
  if (query.rotary_dim == 0) return all;
  all.rotated_q = bytes(query.tokens_q * query.heads_q * row_bytes);
  all.rotated_k = bytes(query.tokens_kv * query.heads_kv * row_bytes);
  all.rotations_q = bytes((query.tokens_q + tile_rows) * int64_t{sizeof(Rotations)});
  all.rotations_kv = bytes((query.tokens_kv + tile_rows) * int64_t{sizeof(Rotations)});
  return all;
}

void tiled_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p,
                    const TiledWorkspace& workspace, int longest_q, int longest_kv) {
  MappedProblem all{};
  TiledProblem& tiled = all.tiled;
  tiled.call = p;
  tiled.group = p.head_group.heads;
  tiled.tiles_q = tile_count(longest_q), tiled.tiles_kv = tile_count(longest_kv);
  tiled.taken = reinterpret_cast<int*>(workspace.taken);
  tiled.statistics = reinterpret_cast<Statistic*>(workspace.statistics);
  tiled.rotated_q = workspace.rotated_q, tiled.rotated_k = workspace.rotated_k;
  tiled.rotations_q = reinterpret_cast<Rotations*>(workspace.rotations_q);
  tiled.rotations_kv = reinterpret_cast<Rotations*>(workspace.rotations_kv);
  const int key_heads = p.segments * p.heads_kv, workers_q = std::min(tiled.tiles_q * key_heads, multiprocessors);
  tiled.workers_kv = std::min(tiled.tiles_kv * key_heads, multiprocessors);
  const auto rotated = [&](const HeadRows& rows, char* data, int heads) -> HeadRows {
    if (!p.positions_q) return rows;
    return {data, static_cast<std::uint32_t>(heads * row_bytes), row_bytes};
  };
  all.q = tile_map(dtype, rotated(p.q, tiled.rotated_q, p.heads_q), p.tokens_q, p.heads_q);
  all.k = tile_map(dtype, rotated(p.k, tiled.rotated_k, p.heads_kv), p.tokens_kv, p.heads_kv);
  all.v = tile_map(dtype, p.v, p.tokens_kv, p.heads_kv);
  all.d_out = tile_map(dtype, p.d_out, p.tokens_q, p.heads_q);
  prepare_rows(call, dtype, tiled);
  cudaLaunchAttribute starts_early = may_start_early();
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(tiled.workers_kv + workers_q);
  config.blockDim = threads;
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = sdk::stream_of(call);
  config.attrs = &starts_early;
  config.numAttrs = 1;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    auto* kernel = tiled_kernel<typename decltype(element)::type>;
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
                    "cudaFuncSetAttribute");
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, all), "launch");
  });
}

} // namespace fvlm::plugins
