// cuda_tiled_product.cuh: products y = x weight^T of tens of tokens in bfloat16 by wgmma, for weights of any number of
// bits. For Hopper.
//
// A block has 64 output features for each of its consumer warpgroups, and all tokens of a tile. Lines of the weight,
// 128 bytes of each output feature, and 64 columns of x at a time come through two rings in shared memory by TMA; the
// first lines are on their way while the kernel before this one runs. The weight becomes numbers in registers, the left
// operand of wgmma; x is the right one as it lies. The norm's weight multiplies those numbers, its factor of a token
// the sums. The blocks of a cluster split the columns of the weight, and add up in distributed shared memory.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_copies.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_tensor_map.h"

#include <algorithm>

namespace fvlm::plugins::tiled {

using hopper::Barrier, hopper::box_row_bytes, hopper::box_width;

constexpr int most_weight_stages = 8, most_x_stages = 16, square_warps = 2;

struct Problem {
  CUtensorMap x, weight;
  const void *bias, *residual, *norm_weight;
  const float* scales; // of a quantized weight: [rows of the weight, groups]
  void* y;
  std::int64_t residual_stride, y_stride;
  int tokens, cols, width; // width: of y
  int groups, group_shift; // a group of scales is of 2^group_shift columns
  int weight_stages, x_stages;
  float epsilon;
  bool is_gated; // y = silu(gate) up, the weight has gate [width, cols] before up
};

// The left operands of a step: 64 columns of the lane's two output features.
using Left = std::uint32_t[4][4];

// Weight: what its numbers are, such as PlainWeight.
template <class WeightOf, int of_tokens, int of_warpgroups, int of_blocks>
struct Layout {
  using Weight = WeightOf;
  static constexpr int tokens = of_tokens, warpgroups = of_warpgroups;
  static constexpr int rows = 64 * warpgroups, consumers = hopper::warpgroup_threads * warpgroups,
                       threads = consumers + hopper::warpgroup_threads;
  static constexpr int line_bytes = rows * box_row_bytes, line_columns = 8 * box_row_bytes / Weight::bits;
  // Of a stage. A step's operands are in registers while those of the next are made, so steps are an even number.
  static constexpr int columns = Weight::lines * line_columns, steps = columns / box_width,
                       weight_bytes = Weight::lines * line_bytes, x_bytes = tokens * box_row_bytes;
  static_assert(steps % 2 == 0);
  static constexpr int sum_stride = rows + 4;               // no two threads of a store share a bank
  static constexpr int sum_bytes = tokens * sum_stride * 4; // at the end they are where the weight was
  static constexpr int blocks = of_blocks;                  // that have to fit on a multiprocessor
  // Per thread, of what a multiprocessor has for each.
  static constexpr int registers = (64 << 10) / (threads * blocks) / 8 * 8,
                       producer_registers = registers > 100 ? 56 : 40,
                       consumer_registers =
                           std::min(((warpgroups + 1) * registers - producer_registers) / warpgroups / 8 * 8, 232);
};

template <class L>
struct alignas(1024) Shared {
  Barrier weight_full[most_weight_stages], weight_empty[most_weight_stages], x_full[most_x_stages],
      x_empty[most_x_stages];
  float squares[L::tokens];

  __device__ char* weight(int stage) { return reinterpret_cast<char*>(this + 1) + stage * L::weight_bytes; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// A stage of a ring, and the parity of its barriers.
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What a block computes: outputs from `first` on, of a tile's tokens, from stages [begin, end) of the weight.
template <class L>
struct Part {
  int split, rank, outputs, first, first_token, begin, end, columns;

  __device__ explicit Part(const Problem& p)
      : split(Cluster::size()), rank(Cluster::rank()), outputs(p.is_gated ? L::rows / 2 : L::rows),
        first(static_cast<int>(blockIdx.x) / split * outputs), first_token(static_cast<int>(blockIdx.y) * L::tokens) {
    const int stages = (p.cols + L::columns - 1) / L::columns;
    begin = stages * rank / split, end = stages * (rank + 1) / split;
    columns = min(end * L::columns, p.cols) - first_column();
  }
  __device__ int first_column() const { return begin * L::columns; }
  __device__ int steps() const { return (columns + box_width - 1) / box_width; }
};

template <int number, int threads>
__device__ void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(threads) : "memory");
}

// The norm's weight and the scales of the block's part, which the consumers copy to shared memory.
template <class L>
struct SmallOperands {
  char* norm_weight; // of whole steps, behind the end 0
  const float* scales;
  int groups, stride; // of the part; between scales of two output features, odd so that no two lanes share a bank

  __device__ SmallOperands(char* memory, const Problem& p, const Part<L>& part) : norm_weight(memory) {
    if (p.norm_weight) memory += part.steps() * box_row_bytes;
    scales = reinterpret_cast<const float*>(memory);
    groups = L::Weight::has_groups ? (part.columns + (1 << p.group_shift) - 1) >> p.group_shift : 1;
    stride = groups | 1;
  }
  __device__ void load(const Problem& p, const Part<L>& part) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (p.norm_weight) {
      const auto* from = static_cast<const BFloat16*>(p.norm_weight) + part.first_column();
      for (int i = thread; i < part.steps() * 8; i += L::consumers) {
        const bool exists = i * 8 < part.columns;
        copy_if<16>(norm_weight + i * 16, exists ? from + i * 8 : from, exists);
      }
    }
    if constexpr (L::Weight::has_scales) load_scales(p, part, thread);
  }

 private:
  __device__ void load_scales(const Problem& p, const Part<L>& part, int thread) const {
    const int first_group = L::Weight::has_groups ? part.first_column() >> p.group_shift : 0;
    char* to = reinterpret_cast<char*>(const_cast<float*>(scales));
    for (int i = thread; i < L::rows * groups; i += L::consumers) {
      const int row = i / groups, group = i % groups, in_part = row % part.outputs,
                output = part.first + in_part + (row < part.outputs ? 0 : p.width);
      const bool exists = part.first + in_part < p.width;
      copy_if<4>(to + (row * stride + group) * 4,
                 p.scales + (exists ? static_cast<std::int64_t>(output) * p.groups + first_group + group : 0), exists);
    }
  }
};

__device__ inline std::uint32_t shared_load_u32(std::uint32_t from) {
  std::uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from));
  return word;
}

// line: of the warp's first row; norm_weight: of the lane's first column of the step.
template <class L>
__device__ void load_step(std::uint32_t line, int step, bool has_norm, std::uint32_t norm_weight, Left& left) {
  L::Weight::left(line + step / (L::steps / L::Weight::lines) * L::line_bytes, step % (L::steps / L::Weight::lines),
                  left);
  if (!has_norm) return;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t weights = shared_load_u32(norm_weight + (i * 2 + half) * 16);
#pragma unroll
      for (int high = 0; high < 2; ++high)
        left[i][half * 2 + high] = multiply_pairs(left[i][half * 2 + high], weights, __nv_bfloat16{});
    }
}

// The sums of a warpgroup. Those of a group of columns are multiplied with its scale once they are complete.
template <class L>
struct Sums {
  hopper::Accumulator<L::tokens> of_group, all{};
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  const int row = warp * 16 + lane / 4;

  __device__ void run(Shared<L>& s, const Problem& p, const Part<L>& part, const SmallOperands<L>& small) {
    const std::uint64_t x = hopper::matrix_descriptor(s.weight(p.weight_stages));
    const std::uint32_t own = L::Weight::first(shared_address(s.weight(0)) + warp * 16 * box_row_bytes, lane),
                        norm_weight = shared_address(small.norm_weight) + lane % 4 * 4;
    const bool has_norm = p.norm_weight != nullptr;
    const int count = part.steps(), group_steps = L::Weight::has_groups ? 1 << (p.group_shift - 6) : count;
    RingPlace of_weight, of_x;
    int step = 0, previous = 0, in_group = 0;
    Left left[2];
    while (step < count) {
      s.weight_full[of_weight.stage].wait(of_weight.parity);
#pragma unroll
      for (int i = 0; i < L::steps; ++i) {
        if (step >= count) break;
        load_step<L>(own + of_weight.stage * L::weight_bytes, i, has_norm, norm_weight + step * box_row_bytes,
                     left[i % 2]);
        s.x_full[of_x.stage].wait(of_x.parity);
        if (step > 0) {
          hopper::wgmma_wait<0>();
          hopper::fence_accumulators(of_group);
          release(s.x_empty[previous]);
          if (L::Weight::has_groups && in_group == group_steps) {
            add_group(small, (step - 1) >> (p.group_shift - 6));
            in_group = 0;
          }
        }
        hopper::wgmma_fence();
        const std::uint64_t right = hopper::advance_descriptor(x, static_cast<unsigned>(of_x.stage * L::x_bytes));
#pragma unroll
        for (int k = 0; k < 4; ++k)
          hopper::wgmma<BFloat16, false>(of_group, left[i % 2][k],
                                         hopper::advance_descriptor(right, static_cast<unsigned>(k * 32)),
                                         k > 0 || in_group > 0);
        hopper::wgmma_commit();
        previous = of_x.stage;
        of_x.advance(p.x_stages);
        ++step, ++in_group;
      }
      release(s.weight_empty[of_weight.stage]);
      of_weight.advance(p.weight_stages);
    }
    hopper::wgmma_wait<0>();
    hopper::fence_accumulators(of_group);
    if constexpr (L::Weight::has_scales) add_group(small, small.groups - 1);
  }

  // [tokens, L::sum_stride]
  __device__ void store(float* sums) const {
#pragma unroll
    for (int i = 0; i < L::tokens / 2; ++i)
      sums[(i / 4 * 8 + lane % 4 * 2 + i % 2) * L::sum_stride + row + i % 4 / 2 * 8] =
          L::Weight::has_scales ? all[i] : of_group[i];
  }

 private:
  __device__ void release(Barrier& empty) const {
    __syncwarp();
    if (lane == 0) empty.arrive();
  }
  __device__ void add_group(const SmallOperands<L>& small, int group) {
    const float low = small.scales[row * small.stride + group], high = small.scales[(row + 8) * small.stride + group];
#pragma unroll
    for (int i = 0; i < L::tokens / 2; ++i) all[i] = fmaf(i % 4 < 2 ? low : high, of_group[i], all[i]);
  }
};

// Of what the cluster's blocks have: the sum of four adjacent outputs.
__device__ inline float4 total(const float* at, int split) {
  if (split == 1) return *reinterpret_cast<const float4*>(at);
  float4 sum{};
  for (int rank = 0; rank < split; ++rank) {
    const float4 each = Cluster::load(at, rank);
    sum.x += each.x, sum.y += each.y, sum.z += each.z, sum.w += each.w;
  }
  return sum;
}

// Adds up the cluster's sums, and writes the outputs.
template <class L>
__device__ void finish(Shared<L>& s, const Problem& p, const Part<L>& part) {
  const float* sums = reinterpret_cast<const float*>(s.weight(0));
  const int quads = part.outputs / 4, tokens = min(L::tokens, p.tokens - part.first_token);
  const auto read4 = [](const void* from, std::int64_t at, float(&to)[4]) {
    read(static_cast<const BFloat16*>(from) + at, to);
  };
  const auto product = [&](int token, int in_block, int column, float factor, float(&values)[4]) {
    const float4 sum = total(sums + token * L::sum_stride + in_block, part.split);
    float bias[4] = {};
    if (p.bias) read4(p.bias, column, bias);
    values[0] = fmaf(sum.x, factor, bias[0]), values[1] = fmaf(sum.y, factor, bias[1]);
    values[2] = fmaf(sum.z, factor, bias[2]), values[3] = fmaf(sum.w, factor, bias[3]);
  };
#pragma unroll 2
  for (int index = part.rank * L::consumers + static_cast<int>(threadIdx.x); index < tokens * quads;
       index += part.split * L::consumers) {
    const int token = index / quads, in_block = index % quads * 4, column = part.first + in_block;
    if (column >= p.width) continue;
    float values[4], residual[4] = {}, factor = 1;
    if (p.residual) read4(p.residual, (part.first_token + token) * p.residual_stride + column, residual);
    if (p.norm_weight) {
      float squares = 0;
      for (int rank = 0; rank < part.split; ++rank)
        squares += part.split == 1 ? s.squares[token] : Cluster::load_float(&s.squares[token], rank);
      factor = rsqrtf(squares / static_cast<float>(p.cols) + p.epsilon);
    }
    product(token, in_block, column, factor, values);
    if (p.is_gated) {
      float up[4];
      product(token, in_block + part.outputs, column + p.width, factor, up);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = values[i] / (1 + __expf(-values[i])) * up[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] += residual[i];
    write(static_cast<BFloat16*>(p.y) + (part.first_token + token) * p.y_stride + column, values);
  }
}

template <class L>
__device__ void load_weight(Shared<L>& s, const Problem& p, const Part<L>& part, int number, int stage) {
  s.weight_full[stage].arrive_and_expect_tx(L::weight_bytes);
#pragma unroll
  for (int line = 0; line < L::Weight::lines; ++line)
    hopper::tma_load_once(s.weight(stage) + line * L::line_bytes, p.weight,
                          ((part.begin + number) * L::Weight::lines + line) * box_row_bytes, part.first, 0, 0,
                          s.weight_full[stage]);
}

// The stages that did not find room at first.
template <class L>
__device__ void produce_weight(Shared<L>& s, const Problem& p, const Part<L>& part) {
  RingPlace place;
  for (int number = p.weight_stages; number < part.end - part.begin; ++number) {
    s.weight_empty[place.stage].wait(place.parity);
    load_weight(s, p, part, number, place.stage);
    place.advance(p.weight_stages);
  }
  wait_for_previous_kernel();
  start_next_kernel(); // whose first lines come behind all of these
}

template <class L>
__device__ void produce_x(Shared<L>& s, const Problem& p, const Part<L>& part) {
  wait_for_previous_kernel();
  RingPlace place;
  for (int step = 0; step < part.steps(); ++step) {
    if (step >= p.x_stages) s.x_empty[place.stage].wait(place.parity ^ 1);
    s.x_full[place.stage].arrive_and_expect_tx(L::x_bytes);
    hopper::tma_load(s.weight(p.weight_stages) + place.stage * L::x_bytes, p.x, part.first_column() + step * box_width,
                     part.first_token, s.x_full[place.stage]);
    place.advance(p.x_stages);
  }
}

// The sums of squares of the tile's tokens, by warps that do nothing else. Eight lanes have a token.
template <class L>
__device__ void add_squares(Shared<L>& s, const Problem& p, const Part<L>& part) {
  constexpr int at_once = square_warps * 4;
  const int thread = static_cast<int>(threadIdx.x) % (square_warps * warp_size), first = thread / 8;
  float squares[L::tokens / at_once] = {};
  RingPlace place;
  for (int step = 0; step < part.steps(); ++step) {
    s.x_full[place.stage].wait(place.parity);
    const char* x = s.weight(p.weight_stages) + place.stage * L::x_bytes + thread * 16;
#pragma unroll
    for (int i = 0; i < L::tokens / at_once; ++i) {
      float values[8];
      read(reinterpret_cast<const BFloat16*>(x + i * at_once * box_row_bytes), values);
#pragma unroll
      for (const float value : values) squares[i] = fmaf(value, value, squares[i]);
    }
    __syncwarp();
    if (thread % warp_size == 0) s.x_empty[place.stage].arrive();
    place.advance(p.x_stages);
  }
#pragma unroll
  for (int i = 0; i < L::tokens / at_once; ++i) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) squares[i] += __shfl_xor_sync(~0u, squares[i], step);
    if (thread % 8 == 0) s.squares[i * at_once + first] = squares[i];
  }
}

template <class L>
__device__ void consume(Shared<L>& s, const Problem& p, const Part<L>& part, const SmallOperands<L>& small) {
  small.load(p, part);
  Sums<L> sums;
  cp_async_wait_all();
  sync_threads<1, L::consumers>();
  sums.run(s, p, part, small);
  wait_for_previous_kernel(); // for the residual, and for whoever reads what y was before
  sync_threads<2, L::consumers + square_warps * warp_size>(); // the rings have been read, and hold sums from now on
  sums.store(reinterpret_cast<float*>(s.weight(0)));
  sync_threads<1, L::consumers>();
  if (part.split > 1) hopper::cluster_sync();
  finish(s, p, part);
}

#endif

template <class L>
__global__ void __launch_bounds__(L::threads, L::blocks) product_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared<L>& s = *reinterpret_cast<Shared<L>*>(memory + (-shared_address(memory) & (alignof(Shared<L>) - 1)));
  const Part<L> part(p);
  // uniform within the warp
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warp_size, 0),
            producer = warp - L::consumers / warp_size;
  if (threadIdx.x == L::consumers) {
    const unsigned warps = L::consumers / warp_size;
    for (Barrier& each : s.weight_full) each.init(1);
    for (Barrier& each : s.weight_empty) each.init(warps);
    for (Barrier& each : s.x_full) each.init(1);
    for (Barrier& each : s.x_empty) each.init(warps + (p.norm_weight ? square_warps : 0));
    Barrier::fence_init();
    for (int i = 0; i < min(part.end - part.begin, p.weight_stages); ++i) load_weight(s, p, part, i, i);
  }
  const SmallOperands<L> small(s.weight(p.weight_stages) + p.x_stages * L::x_bytes, p, part);
  __syncthreads();
  if (producer < 0) {
    hopper::setmaxnreg_inc<L::consumer_registers>();
    consume(s, p, part, small);
  } else {
    hopper::setmaxnreg_dec<L::producer_registers>();
    if (producer == 0 && threadIdx.x % warp_size == 0) produce_weight(s, p, part);
    if (producer == 1 && threadIdx.x % warp_size == 0) produce_x(s, p, part);
    if (producer >= hopper::warpgroup_warps - square_warps) {
      if (p.norm_weight) add_squares(s, p, part);
      sync_threads<2, L::consumers + square_warps * warp_size>();
    }
    __syncwarp();
    if (part.split > 1) hopper::cluster_sync();
  }
  if (part.split > 1) hopper::cluster_sync(); // shared memory stays until it has been read
#endif
}

// What is multiplied, on the host.
struct Operands {
  const void* x;
  std::int64_t x_stride; // of numbers
  const void* weight;
  std::int64_t row_bytes, row_stride; // of a row of the weight, and from one to the next, in bytes
};

template <class L>
void launch(cudaStream_t stream, const Operands& o, Problem p, int split) {
  const auto parts = static_cast<cuuint64_t>(p.is_gated ? 2 : 1), stride = static_cast<cuuint64_t>(o.row_stride),
             width = static_cast<cuuint64_t>(p.width);
  p.weight = TensorMapShape{
      CU_TENSOR_MAP_DATA_TYPE_UINT8,
      4,
      {static_cast<cuuint64_t>(o.row_bytes), width, parts, 1},
      {stride, stride * width, stride * width * parts},
      {box_row_bytes, L::rows / static_cast<cuuint32_t>(parts), static_cast<cuuint32_t>(parts),
       1}}.encode(const_cast<void*>(o.weight));
  p.x = make_tensor_map(sdk::bfloat16, const_cast<void*>(o.x), o.x_stride, p.tokens, p.cols, L::tokens);
  constexpr int own_bytes = sizeof(Shared<L>) + alignof(Shared<L>);
  const int stages = (p.cols + L::columns - 1) / L::columns, blocks = std::min(split, stages),
            most_stages = (stages + blocks - 1) / blocks, steps = most_stages * L::steps,
            groups = L::Weight::has_groups ? steps * box_width >> p.group_shift : 1,
            small_bytes =
                (p.norm_weight ? steps * box_row_bytes : 0) + (L::Weight::has_scales ? 4 * L::rows * (groups | 1) : 0),
            room = (L::blocks == 1 ? 227 << 10 : (228 << 10) / L::blocks - (1 << 10)) - own_bytes - small_bytes;
  p.weight_stages = std::clamp(std::min(most_stages, (room - 4 * L::x_bytes) / L::weight_bytes), 1, most_weight_stages);
  const int weight_bytes = std::max(p.weight_stages * L::weight_bytes, (L::sum_bytes + 1023) / 1024 * 1024);
  p.x_stages = std::clamp((room - weight_bytes) / L::x_bytes, 2, std::min(std::max(steps, 2), most_x_stages));
  const int rings = p.weight_stages * L::weight_bytes + p.x_stages * L::x_bytes;
  const auto kernel = product_kernel<L>;
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
                  "shared memory");
  const int outputs = p.is_gated ? L::rows / 2 : L::rows;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.width + outputs - 1) / outputs * blocks),
                        static_cast<unsigned>((p.tokens + L::tokens - 1) / L::tokens));
  config.blockDim = dim3(L::threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(own_bytes + std::max(rings + small_bytes, L::sum_bytes));
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{may_start_early()};
  config.attrs = attributes, config.numAttrs = 1;
  if (blocks > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  }
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

// A weight in bfloat16. lines: of 128 bytes of an output feature, in a stage. first(): what left() wants of the line of
// the warp's first output feature. left(): the operands of a step of the line.
struct PlainWeight {
  static constexpr int bits = 16, lines = 2;
  static constexpr bool has_scales = false, has_groups = false;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ static std::uint32_t first(std::uint32_t line, int lane) {
    return line + lane % 16 * box_row_bytes + ((lane % 8 ^ lane / 16) << 4);
  }
  __device__ static void left(std::uint32_t line, int, Left& left) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      hopper::Matrix8x8x4 numbers;
      numbers.load(line ^ i << 5);
#pragma unroll
      for (int j = 0; j < 4; ++j) left[i][j] = numbers.at[j];
    }
  }
#endif
};

} // namespace fvlm::plugins::tiled
