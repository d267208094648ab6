// experts.cu: a mixture of experts for the few rows of a step of generation, which takes as long as reading the chosen
// experts' weights. Four kernels: the router's weights and the rows of each expert; gate and up with SwiGLU; down; and
// the sum over a row's experts. Which experts are chosen stays on the device, and no launch depends on it.
//
// A slot is an expert with up to eight of its rows (experts.h). A block has a slot and 16 or 32 rows of the expert's
// matrix, which it reads once for all rows of the slot. Its warps read weights and x straight into fragments of
// mma.sync; a sum does not depend on the order of its terms, so both agree on one in which a thread reads 16 bytes.
//
// The sums of a row have the same order whichever other rows there are.
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_gelu.cuh"
#include "common/cuda_packs.cuh"
#include "expert_products.cuh"

namespace fvlm::plugins {
namespace {

using namespace experts;

constexpr unsigned all_lanes = 0xffffffffu;

// ---- the router ----

constexpr int max_router_warps = 32;

// Unsigned numbers in the order of the scores, above 0, with NaN at the ends.
__device__ unsigned rank_of(float score) {
  const unsigned bits = __float_as_uint(score);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}

// A row's scores, spread over the threads of a warp: expert number i * 32 + lane is the thread's number i.
template <class T, int of_lane>
struct Scores {
  float values[of_lane];
  unsigned ranks[of_lane]; // by which experts are chosen; 0: none, or chosen before
  const int lane = static_cast<int>(threadIdx.x) % warp_size;

  __device__ Scores(const Experts& p, int row) {
    const T* const logits = static_cast<const T*>(p.logits.data) + row * p.logits.stride;
#pragma unroll
    for (int i = 0; i < of_lane; ++i) {
      const int expert = i * warp_size + lane;
      values[i] = expert < p.experts ? static_cast<float>(logits[expert]) : -INFINITY;
    }
    p.sigmoid ? apply_sigmoid() : apply_softmax();
#pragma unroll
    for (int i = 0; i < of_lane; ++i) {
      const int expert = i * warp_size + lane;
      if (expert >= p.experts) {
        ranks[i] = 0;
        continue;
      }
      ranks[i] = rank_of(p.bias ? values[i] + static_cast<float>(static_cast<const T*>(p.bias)[expert]) : values[i]);
    }
  }

  // The expert with the largest score, of equals the first one; and its score, given to all threads.
  struct Best {
    int expert;
    float score;
  };
  __device__ Best take_best() {
    unsigned top = 0;
#pragma unroll
    for (int i = 0; i < of_lane; ++i) top = max(top, ranks[i]);
    top = __reduce_max_sync(all_lanes, top);
    unsigned first = UINT_MAX;
#pragma unroll
    for (int i = of_lane - 1; i >= 0; --i)
      if (ranks[i] == top) first = static_cast<unsigned>(i * warp_size + lane);
    const int expert = static_cast<int>(__reduce_min_sync(all_lanes, first));
    float score = 0;
#pragma unroll
    for (int i = 0; i < of_lane; ++i)
      if (i * warp_size + lane == expert) score = values[i], ranks[i] = 0;
    return {expert, __shfl_sync(all_lanes, score, expert % warp_size)};
  }

 private:
  __device__ void apply_sigmoid() {
#pragma unroll
    for (int i = 0; i < of_lane; ++i) values[i] = 1 / (1 + expf(-values[i]));
  }
  __device__ void apply_softmax() {
    float largest = values[0], sum = 0;
#pragma unroll
    for (int i = 1; i < of_lane; ++i) largest = fmaxf(largest, values[i]);
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < of_lane; ++i) sum += values[i] = expf(values[i] - largest);
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < of_lane; ++i) values[i] /= sum;
  }
};

// What the block knows of all rows.
struct Choice {
  unsigned long long rows_of[most_experts]; // bit r: the expert is one of row r
  int first_slot[most_experts];
  int experts_of[most_rows * most_chosen]; // of each pair
};

template <class T, int of_lane>
__device__ void route_row(const Experts& p, int row, Choice& choice) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  Scores<T, of_lane> scores(p, row);
  int own = 0;
  float score = 0;
  for (int k = 0; k < p.chosen; ++k) {
    const auto best = scores.take_best();
    if (lane == k) own = best.expert, score = best.score;
  }
  const float total = warp_sum(score) + p.epsilon; // 0 of other threads
  if (lane >= p.chosen) return;
  p.shares[row * p.chosen + lane] = (p.normalized ? score / total : score) * p.scale;
  choice.experts_of[row * p.chosen + lane] = own;
  atomicOr(&choice.rows_of[own], 1ull << row);
}

// One warp numbers the slots by expert.
__device__ void number_slots(const Experts& p, Choice& choice) {
  const int lane = static_cast<int>(threadIdx.x), each = (p.experts + warp_size - 1) / warp_size,
            begin = min(lane * each, p.experts), end = min(begin + each, p.experts);
  const auto slots_of = [&](int expert) { return (__popcll(choice.rows_of[expert]) + slot_rows - 1) / slot_rows; };
  int own = 0;
  for (int expert = begin; expert < end; ++expert) own += slots_of(expert);
  int next = own; // sums of all threads up to this one
#pragma unroll
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const int before = __shfl_up_sync(all_lanes, next, distance);
    if (lane >= distance) next += before;
  }
  next -= own;
  for (int expert = begin; expert < end; ++expert) {
    choice.first_slot[expert] = next;
    next += slots_of(expert);
  }
}

template <class T, int of_lane>
__global__ void __launch_bounds__(max_router_warps* warp_size) route_kernel(const __grid_constant__ Experts p) {
  __shared__ Choice choice;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  wait_for_previous_kernel();
  start_next_kernel();
  for (int i = thread; i < p.experts; i += threads) choice.rows_of[i] = 0;
  for (int i = thread; i < p.slots; i += threads) p.slot_experts[i] = -1;
  for (int i = thread; i < p.slots * slot_rows; i += threads) p.slot_pairs[i] = -1;
  __syncthreads();
  for (int row = thread / warp_size; row < p.rows; row += threads / warp_size) route_row<T, of_lane>(p, row, choice);
  __syncthreads();
  if (thread < warp_size) number_slots(p, choice);
  __syncthreads();
  for (int pair = thread; pair < p.rows * p.chosen; pair += threads) {
    const int expert = choice.experts_of[pair], row = pair / p.chosen,
              place = __popcll(choice.rows_of[expert] & ((1ull << row) - 1)),
              slot = choice.first_slot[expert] + place / slot_rows;
    p.slot_pairs[slot * slot_rows + place % slot_rows] = pair;
    if (place % slot_rows == 0) p.slot_experts[slot] = expert;
  }
}

// ---- the products ----

constexpr int warps = 4, threads = warps * warp_size, blocks_a_multiprocessor = 6;

// Gate and up, or down: how the warps of a block are divided. `parts` share the summed features of 16 rows of the
// weight: eight of gate and the eight of up with the same columns of the result, or 16 of down.
template <bool gated>
struct Division {
  static constexpr int parts = gated ? 4 : 2, tiles = warps / parts, columns = gated ? 8 : 16;
  static constexpr int block_columns = tiles * columns;
};

// The kernel of down may start as soon as all blocks of the one before have seen the router's end, so it may read the
// slots, and with them the weights, before it waits for that one.
template <class T, bool gated, class Product>
__global__ void __launch_bounds__(threads, blocks_a_multiprocessor) product_kernel(const __grid_constant__ Experts p) {
  using Own = Division<gated>;
  __shared__ float shared[warps][4][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size,
            part = warp % Own::parts, group = lane / 4, slot = static_cast<int>(blockIdx.y),
            first_column = (static_cast<int>(blockIdx.x) * Own::tiles + warp / Own::parts) * Own::columns;
  const int count = gated ? p.width : p.inner, width = gated ? p.inner : p.width, column = first_column + group;
  const auto wait = [] {
    wait_for_previous_kernel();
    start_next_kernel();
  };
  if (gated) wait();
  const int expert = __ldcg(p.slot_experts + slot), pair = __ldcg(p.slot_pairs + slot * slot_rows + group);
  if (expert < 0) {
    if (!gated) wait();
    return;
  }
  // Rows of the expert's matrix: behind those of gate come those of up. Those behind the last one, and rows of x that
  // are none, stand for others, whose products nobody reads.
  const std::int64_t first_row = static_cast<std::int64_t>(expert) * (gated ? 2 : 1) * width;
  const int low = min(column, width - 1), high = gated ? low + width : min(column + 8, width - 1),
            other = pair < 0 ? __ldcg(p.slot_pairs + slot * slot_rows) : pair;
  const T* const x = gated ? static_cast<const T*>(p.x.data) + other / p.chosen * p.x.stride
                           : static_cast<const T*>(p.hidden) + static_cast<std::int64_t>(other) * count;
  Product product(gated ? p.gate_up : p.down, first_row + low, first_row + high, x, count, {part, Own::parts});
  float sums[4] = {};
  product.multiply(sums, [&] {
    if (!gated) wait();
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) shared[warp][i][lane] = sums[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = __shfl_sync(all_lanes, pair, (lane % 4 * 2 + i) * 4); // the row of x of results i and i + 2
    if (part != 0 || own < 0) continue;
    float results[2] = {sums[i], sums[i + 2]};
#pragma unroll
    for (int other = 1; other < Own::parts; ++other)
      results[0] += shared[warp + other][i][lane], results[1] += shared[warp + other][i + 2][lane];
    const std::int64_t at = static_cast<std::int64_t>(own) * width;
    if constexpr (gated) {
      if (column < width) static_cast<T*>(p.hidden)[at + column] = T(results[0] * sigmoid<T>(results[0]) * results[1]);
    } else {
      if (column < width) p.outputs[at + column] = results[0];
      if (column + 8 < width) p.outputs[at + column + 8] = results[1];
    }
  }
}

constexpr int sum_threads = 256;

// A thread has a number of y.
template <class T>
__global__ void __launch_bounds__(sum_threads) sum_kernel(const __grid_constant__ Experts p) {
  const int column = static_cast<int>(blockIdx.x * sum_threads + threadIdx.x), row = static_cast<int>(blockIdx.y);
  wait_for_previous_kernel();
  start_next_kernel();
  if (column >= p.width) return;
  const float* const shares = p.shares + row * p.chosen;
  const float* const outputs = p.outputs + static_cast<std::int64_t>(row) * p.chosen * p.width + column;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < p.chosen; ++k) sum = fmaf(shares[k], outputs[static_cast<std::int64_t>(k) * p.width], sum);
  static_cast<T*>(p.y.data)[row * p.y.stride + column] = T(sum);
}

void launch(const Device& device, void (*kernel)(Experts), const Experts& p, dim3 blocks, int block_threads) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(block_threads));
  config.stream = device.stream;
  cudaLaunchAttribute early = may_start_early();
  config.attrs = &early;
  config.numAttrs = device.has_clusters ? 1 : 0;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

template <class T>
void launch_router(const Device& device, const Experts& p) {
  const int router_threads = std::clamp(p.rows, 4, max_router_warps) * warp_size;
  const auto kernel = p.experts <= 4 * warp_size    ? route_kernel<T, 4>
                      : p.experts <= 8 * warp_size  ? route_kernel<T, 8>
                      : p.experts <= 16 * warp_size ? route_kernel<T, 16>
                                                    : route_kernel<T, most_experts / warp_size>;
  launch(device, kernel, p, dim3(1), router_threads);
}

template <class T, bool gated, class Product>
void launch_product(const Device& device, const Experts& p) {
  const int width = gated ? p.inner : p.width, columns = Division<gated>::block_columns;
  launch(device, product_kernel<T, gated, Product>, p,
         dim3(static_cast<unsigned>((width + columns - 1) / columns), static_cast<unsigned>(p.slots)), threads);
}

// By how the weights are stored.
template <class T, bool gated>
void launch_product(const Device& device, const Experts& p) {
  if (p.weight_bits == 16)
    return p.vectorized ? launch_product<T, gated, NumberProduct<T, true>>(device, p)
                        : launch_product<T, gated, NumberProduct<T, false>>(device, p);
  if (p.weight_bits == 8)
    return p.vectorized ? launch_product<T, gated, CodeProduct<T, 8, 4, true>>(device, p)
                        : launch_product<T, gated, CodeProduct<T, 8, 4, false>>(device, p);
  const int group = gated ? p.gate_up.group : p.down.group;
  if (!p.vectorized) return launch_product<T, gated, CodeProduct<T, 4, 1, false>>(device, p);
  if (group % 128 == 0) return launch_product<T, gated, CodeProduct<T, 4, 4, true>>(device, p);
  if (group % 64 == 0) return launch_product<T, gated, CodeProduct<T, 4, 2, true>>(device, p);
  launch_product<T, gated, CodeProduct<T, 4, 1, true>>(device, p);
}

} // namespace

void mix_experts(const Device& device, const Experts& p) {
  if (p.rows == 0 || p.width == 0) return;
  sdk::dispatch<BFloat16, Half>(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    launch_router<T>(device, p);
    launch_product<T, true>(device, p);
    launch_product<T, false>(device, p);
    launch(device, sum_kernel<T>, p,
           dim3(static_cast<unsigned>((p.width + sum_threads - 1) / sum_threads), static_cast<unsigned>(p.rows)),
           sum_threads);
  });
}

} // namespace fvlm::plugins
