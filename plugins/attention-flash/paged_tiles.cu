// paged_tiles.cu: attention over pages for passes that read prompts, many rows of a sequence side by side, with
// head_dim 64 in 16 bits. A warp has 16 adjacent rows of a query head and multiplies them by mma.sync with 32 keys at a
// time (flash attention), which paged_attention.cu would read once a row. Rows of several sequences in a warp take
// turns: the keys of each sequence are masked for the others' rows.
//
// A warp has its own keys in shared memory, so that no warp waits for another. Those of the next step are on their way
// during each.
#include "common/cuda_dependent_launch.cuh"
#include "online_softmax.cuh"
#include "paged_attention.h"

namespace fvlm::plugins {
namespace {

constexpr int tile_rows = 16, step_keys = 32, warps = 4;
constexpr int keys_bytes = step_keys * row_bytes, step_bytes = 2 * keys_bytes; // keys, then values
constexpr int warp_bytes = 2 * step_bytes + tile_rows * row_bytes;

// A sequence of the warp's rows: which of these are its own, and how many keys they need.
struct Sequence {
  unsigned members;
  int number, end;
};

template <class T>
struct WarpTile {
  const PagedProblem& p;
  char* memory;
  const int first, rows, head, lane = lane_index();
  int length = 0, sequence = -1; // of row first + lane

  __device__ WarpTile(const PagedProblem& problem, char* shared, int first_row, int all_rows, int query_head)
      : p(problem), memory(shared), first(first_row), rows(all_rows), head(query_head) {
    const int row = first + lane;
    if (lane >= tile_rows || row >= rows) return;
    length = p.lengths[row];
    if (length > 0) sequence = p.sequences[row];
  }

  __device__ Tile queries() const { return {memory + 2 * step_bytes}; }
  __device__ Tile keys(int step) const { return {memory + step % 2 * step_bytes}; }
  __device__ Tile values(int step) const { return {memory + step % 2 * step_bytes + keys_bytes}; }

  __device__ void fetch_queries() const {
#pragma unroll
    for (int n = 0; n < tile_rows; n += warp_size / packs) {
      const int row = n + lane / packs, index = lane % packs;
      const T* from = static_cast<const T*>(p.q) + min(first + row, rows - 1) * p.q_row + head * p.q_head;
      cp_async_16(queries().template at<char>(row, index), from + index * pack);
    }
    cp_async_commit();
  }

  // The next sequence of the rows in `left`, which it is taken from.
  __device__ Sequence take(unsigned& left) const {
    const int number = __shfl_sync(~0u, sequence, __ffs(static_cast<int>(left)) - 1);
    const unsigned members = __ballot_sync(~0u, sequence == number) & left;
    left &= ~members;
    const bool is_member = members >> lane & 1;
    return {members, number, __reduce_max_sync(~0u, is_member ? length : 0)};
  }

  // Starts copying the step's keys and values. Those past the end repeat the last one: they must be finite.
  __device__ void fetch(const Sequence& own, int step) const {
    const int kv_head = head / p.group;
    const auto key_of = [&](int row) { return min(step * step_keys + row, own.end - 1); };
    const int page = p.table[own.number * p.max_pages + (key_of(lane) >> p.page_shift)];
#pragma unroll
    for (int n = 0; n < step_keys; n += warp_size / packs) {
      const int row = n + lane / packs, index = lane % packs, in_page = key_of(row) & ((1 << p.page_shift) - 1);
      const std::int64_t of_row = __shfl_sync(~0u, page, row);
      cp_async_16(keys(step).template at<char>(row, index), static_cast<const T*>(p.k) + of_row * p.k_page +
                                                                in_page * p.k_row + kv_head * p.k_head + index * pack);
      cp_async_16(values(step).template at<char>(row, index), static_cast<const T*>(p.v) + of_row * p.v_page +
                                                                  in_page * p.v_row + kv_head * p.v_head +
                                                                  index * pack);
    }
  }

  __device__ void attend(const Fragment (&q)[head_dim / 16], const Sequence& own, OnlineSoftmax& softmax,
                         float (&sum)[blocks][4]) const {
    int visible[2]; // keys, to the thread's two rows
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h, of_row = __shfl_sync(~0u, length, row);
      visible[h] = own.members >> row & 1 ? of_row : 0;
    }
    const int steps = (own.end + step_keys - 1) / step_keys;
    fetch(own, 0);
    cp_async_commit();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) fetch(own, step + 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncwarp();
      float scores[step_keys / 8][4] = {};
#pragma unroll
      for (int i = 0; i < head_dim / 16; ++i)
#pragma unroll
        for (int pair = 0; pair < step_keys / 16; ++pair)
          mma_16x8x16<T>(scores[2 * pair], scores[2 * pair + 1], q[i], load_b(keys(step), 16 * pair, i));
#pragma unroll
      for (int b = 0; b < step_keys / 8; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (step * step_keys + 8 * b + column_of(i) >= visible[i / 2]) scores[b][i] = -INFINITY;
      softmax.template accumulate<T>(scores, values(step), sum);
      __syncwarp(); // the step after the next one overwrites these keys
    }
  }

  __device__ void store(const float (&sum)[blocks][4], const float (&factor)[2]) const {
    store_accumulators<T>(queries(), sum, factor);
#pragma unroll
    for (int n = 0; n < tile_rows; n += warp_size / packs) {
      const int row = n + lane / packs, index = lane % packs;
      if (first + row >= rows) continue;
      Pack<T, pack> numbers;
      numbers.load(queries().template at<T>(row, index));
      numbers.store(static_cast<T*>(p.out) + (first + row) * p.out_row + head * p.out_head + index * pack);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(warps* warp_size, 3)
    paged_tiles_kernel(const __grid_constant__ PagedProblem p, int rows) {
  extern __shared__ __align__(128) char memory[];
  start_next_kernel();
  wait_for_previous_kernel();
  const int first = (static_cast<int>(blockIdx.x) * warps + warp_index()) * tile_rows;
  if (first >= rows) return;
  const WarpTile<T> own(p, memory + warp_index() * warp_bytes, first, rows, static_cast<int>(blockIdx.y));
  own.fetch_queries();
  cp_async_wait<0>();
  __syncwarp();
  Fragment q[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) q[step] = load_a(own.queries(), 0, step);
  float sum[blocks][4] = {};
  OnlineSoftmax softmax{p.scale_log2};
  unsigned left = __ballot_sync(~0u, own.sequence >= 0);
  while (left) own.attend(q, own.take(left), softmax, sum);
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float row_sum = quad_sum(softmax.row_sum[h]);
    factor[h] = row_sum > 0 ? 1 / row_sum : 0;
  }
  __syncwarp();
  own.store(sum, factor);
}

bool is_aligned(const void* data, std::int64_t row, std::int64_t head) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row % pack == 0 && head % pack == 0;
}

} // namespace

bool paged_tiles_take(const fvlm_paged_attention_query& query, const PagedProblem& p) {
  return query.dtype.bits == 16 && query.head_dim == head_dim && p.window == 0 && query.rows >= min_rows_of_tiles &&
         query.rows >= min_rows_of_sequence * query.sequences && is_aligned(p.q, p.q_row, p.q_head) &&
         is_aligned(p.out, p.out_row, p.out_head);
}

void paged_tiles(const fvlm_call& call, const fvlm_paged_attention_query& query, const PagedProblem& p,
                 bool starts_early) {
  sdk::dispatch<BFloat16, Half>(query.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int bytes = warps * warp_bytes;
    const auto kernel = paged_tiles_kernel<T>;
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>((query.rows + warps * tile_rows - 1) / (warps * tile_rows)),
                      static_cast<unsigned>(query.heads_q), 1};
    config.blockDim = {warps * warp_size, 1, 1};
    config.dynamicSmemBytes = bytes;
    config.stream = sdk::stream_of(call);
    cudaLaunchAttribute attribute = may_start_early();
    config.attrs = &attribute;
    config.numAttrs = starts_early ? 1 : 0;
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p, static_cast<int>(query.rows)), "launch");
  });
}

} // namespace fvlm::plugins
