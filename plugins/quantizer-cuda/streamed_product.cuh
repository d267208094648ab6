// streamed_product.cuh: products y = x weight^T of up to 8 rows in bfloat16, which take the time of reading the
// quantized weight once. For Hopper.
//
// A producer thread streams lines of the weight, 128 bytes of each of the block's columns at a time, through a ring in
// shared memory by TMA; the ring's first lines are on their way while the kernel before this one runs, a few at a time,
// so that what is needed now does not queue behind them. x is brought to shared memory as a whole, and normalized once.
// Eight warps share a chunk, each with a part of its inner dimension or of its columns.
//
// Products are of integers, so that codes need little or no conversion: a number of x is an integer of three digits,
// whose unit the row's largest number decides, and digits are rows of mma.sync. A number less than 1/2^14 of the
// largest keeps fewer bits than bfloat16 has; what it loses is less than what the largest lost when it was rounded to
// bfloat16.
#pragma once

#include "streamed_operands.cuh"

#include <algorithm>

namespace fvlm::plugins::streamed {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// The sums of a warp.
template <class L>
struct Sums {
  using Sum = std::conditional_t<L::has_groups, float, std::int32_t>;
  Sum of[L::column_tiles][L::row_tiles][4] = {};
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  const int first_step = warp / L::column_warps, // the others follow by step_warps
      column = warp % L::column_warps * L::column_tiles * tile_columns;

  __device__ void add(const char* weight, const Factors<L>& x, int step) {
    const int row = column + lane % 16;
    const std::uint32_t from = shared_address(weight) + (step / L::steps_of_line * L::columns + row) * box_row_bytes;
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m) {
      // Of a group as bits of a float32, 1.5 * 2^23 and the sum, which is less than 2^22.
      [[maybe_unused]] std::int32_t of_group[L::row_tiles][4];
#pragma unroll
      for (int t = 0; t < L::row_tiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) of_group[t][i] = 0x4b400000;
#pragma unroll
      for (int n = 0; n < L::loads; ++n) {
        const int piece = (step % L::steps_of_line * L::loads + n) * 2 + lane / 16;
        hopper::Matrix8x8x4 codes;
        codes.load(from + m * tile_columns * box_row_bytes + ((piece ^ row % 8) << 4));
        if constexpr (L::has_groups) {
          std::uint32_t even[4], odd[4];
          widen(codes.at, even, odd);
#pragma unroll
          for (int t = 0; t < L::row_tiles; ++t) {
            mma_16x8x32(of_group[t], even, x.pairs[t][n][0][0], x.pairs[t][n][0][1]);
            mma_16x8x32(of_group[t], odd, x.pairs[t][n][1][0], x.pairs[t][n][1][1]);
          }
        } else {
#pragma unroll
          for (int t = 0; t < L::row_tiles; ++t)
            mma_16x8x32(of[m][t], codes.at, x.pairs[t][n][0][0], x.pairs[t][n][0][1]);
        }
      }
      if constexpr (L::has_groups)
#pragma unroll
        for (int t = 0; t < L::row_tiles; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            of[m][t][i] = fmaf(x.scales[m][i / 2], __int_as_float(of_group[t][i]) - 12582912.0f, of[m][t][i]);
    }
  }
  // Codes of even and of odd columns as bytes: 16 (code - 8) is the four bits, the highest flipped, before four zeros.
  static __device__ void widen(const std::uint32_t (&codes)[4], std::uint32_t (&even)[4], std::uint32_t (&odd)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      even[i] = ((codes[i] << 4) ^ 0x80808080u) & 0xf0f0f0f0u;
      odd[i] = (codes[i] ^ 0x80808080u) & 0xf0f0f0f0u;
    }
  }

  // Adds up the digits. Even lanes of four have the two lower ones.
  __device__ void store(float* sums, const float* units, int rows) const {
    const bool has_low = lane % 2 == 0;
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m)
#pragma unroll
      for (int t = 0; t < L::row_tiles; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto first = static_cast<float>(of[m][t][2 * i]), second = static_cast<float>(of[m][t][2 * i + 1]);
          float sum = has_low ? fmaf(256, second, first) : 65536 * first;
          sum += __shfl_xor_sync(~0u, sum, 1);
          const int row = t * tile_rows + lane % 4 / 2;
          if (has_low && row < rows)
            sums[(first_step * L::rows + row) * L::sum_stride + column + m * tile_columns + lane / 4 + i * 8] =
                sum * units[row];
        }
  }
};

template <class L>
__device__ void produce(Shared<L>& s, const Problem& p, const Part<L>& part) {
  for (int i = min(p.on_their_way, L::stages); i < part.count; ++i) {
    if (const int last = i - p.on_their_way; last >= 0)
      s.full[last % L::stages].wait(static_cast<unsigned>(last / L::stages) & 1);
    if (i >= L::stages) s.empty[i % L::stages].wait(static_cast<unsigned>(i / L::stages - 1) & 1);
    load_weight(s, p, part, i);
  }
  if (!p.starts_next_early) return;
  wait_for_previous_kernel(); // so that the next one may read ahead what kernels before that one have written
  start_next_kernel();
}

template <class L>
__device__ void consume(Shared<L>& s, const Problem& p, const Part<L>& part, const SmallOperands<L>& small) {
  constexpr int outputs = (L::rows * L::columns + consumers - 1) / consumers, steps = L::steps / L::step_warps;
  auto* all_sums = reinterpret_cast<float*>(s.ring(0));
  Output<L> output[outputs];
#pragma unroll
  for (int i = 0; i < outputs; ++i) output[i].place(p, part, all_sums, i * consumers + static_cast<int>(threadIdx.x));
  Sums<L> sums;
  ResidentX<L>(s, p, part, small).load();
#pragma unroll
  for (Output<L>& each : output) each.load();
  // Not before: what the next one reads ahead would be in this one's way.
  if (!p.starts_next_early) start_next_kernel();
  for (int i = 0; i < part.count; ++i) {
    const int stage = i % L::stages;
    Factors<L> x[steps];
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      const int step = j * L::step_warps + sums.first_step;
      x[j].load(small, p, i * L::chunk + step * L::step_inner, sums.column);
    }
    s.full[stage].wait(static_cast<unsigned>(i / L::stages) & 1);
#pragma unroll
    for (int j = 0; j < steps; ++j) sums.add(s.ring(stage), x[j], j * L::step_warps + sums.first_step);
    __syncwarp();
    if (sums.lane == 0) s.empty[stage].arrive();
  }
  sync_consumers(); // the ring has been read, and holds sums from now on
  sums.store(all_sums, s.units, p.rows);
  sync_consumers();
#pragma unroll
  for (int i = 0; i < outputs; ++i) output[i].store(p.is_gated);
}

#endif

template <class L>
__global__ void __launch_bounds__(threads, 2) streamed_product_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared<L>& s = *reinterpret_cast<Shared<L>*>(memory + (-shared_address(memory) & (alignof(Shared<L>) - 1)));
  const Part<L> part(p);
  const bool is_producer = threadIdx.x == consumers;
  if (is_producer) {
    for (Barrier& each : s.full) each.init(1);
    for (Barrier& each : s.empty) each.init(warps);
    for (std::uint32_t& each : s.largest) each = 0;
    Barrier::fence_init();
    for (int i = 0; i < min(part.count, min(p.on_their_way, L::stages)); ++i) load_weight(s, p, part, i);
  }
  const SmallOperands<L> small(s.ring(0) + p.ring_bytes, p, part);
  __syncthreads();
  if (threadIdx.x < consumers) return consume(s, p, part, small);
  if (is_producer) produce(s, p, part);
#endif
}

// row_bytes: of a row of the weight.
template <class L>
void launch(cudaStream_t stream, const void* weight, std::int64_t row_bytes, Problem p) {
  const auto parts = static_cast<cuuint64_t>(p.is_gated ? 2 : 1), stride = static_cast<cuuint64_t>(row_bytes),
             width = static_cast<cuuint64_t>(p.width);
  p.weight = TensorMapShape{
      CU_TENSOR_MAP_DATA_TYPE_UINT8,
      4,
      {box_row_bytes, width, parts, static_cast<cuuint64_t>(p.inner / L::line_inner)},
      {stride, stride * width, box_row_bytes},
      {box_row_bytes, L::columns / static_cast<cuuint32_t>(parts), static_cast<cuuint32_t>(parts),
       L::lines}}.encode(const_cast<void*>(weight));
  const int outputs = L::columns / static_cast<int>(parts), chunks = (p.inner + L::chunk - 1) / L::chunk,
            inner = chunks * L::chunk;
  p.ring_bytes = std::max(std::min(L::stages, chunks) * L::stage_bytes, (L::sum_bytes + 1023) / 1024 * 1024);
  const int x_bytes = p.rows * digits * (inner + L::x_pad),
            scale_bytes = L::has_groups ? 4 * L::columns * (inner / group | 1) : 0,
            bytes = static_cast<int>(sizeof(Shared<L>) + alignof(Shared<L>)) + p.ring_bytes + x_bytes + scale_bytes;
  const auto kernel = streamed_product_kernel<L>;
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
                  "shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.width + outputs - 1) / outputs));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = may_start_early();
  config.attrs = &attribute, config.numAttrs = 1;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

} // namespace fvlm::plugins::streamed
