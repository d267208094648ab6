// streamed_product.cuh: products y = x weight^T of up to 8 rows in bfloat16, which take the time of reading the
// quantized weight once. For Hopper.
//
// A producer thread streams lines of the weight, 128 bytes of each of the block's columns at a time, through a ring in
// shared memory by TMA; the ring's first lines are on their way while the kernel before this one runs. x is brought to
// shared memory as a whole, and normalized once. Eight warps share a chunk, each with a part of its inner dimension.
// The blocks of a cluster split the inner dimension of a tile, and add up in distributed shared memory.
//
// 16 bytes of a weight stand for more than eight numbers, so a lane of ldmatrix gets adjacent numbers where mma.sync
// wants pairs that lie apart. A sum does not depend on the order of its terms: x is read in the same order.
#pragma once

#include "streamed_operands.cuh"

#include <algorithm>

namespace fvlm::plugins::streamed {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// The sums of a warp.
template <class L>
struct Sums {
  static constexpr int products = L::Weight::products;
  float of[L::column_tiles][4] = {};
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;

  // scales: of the lane's first column, from the step's group on; behind it by column_stride those of the next.
  // offsets: what the sums with the lane's two rows of x begin with.
  __device__ void add(const char* weight, const Factors<L>& x, int step, [[maybe_unused]] const float* scales,
                      [[maybe_unused]] int column_stride, [[maybe_unused]] float2 offsets) {
    std::uint32_t right[products][2];
    L::Weight::right(x.pairs, right);
    const int row = lane % 16, piece = step % 4 * 2 + lane / 16;
    const std::uint32_t from =
        shared_address(weight) + (step / 4 * L::columns + row) * box_row_bytes + ((piece ^ row % 8) << 4);
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m) {
      hopper::Matrix8x8x4 codes;
      codes.load(from + m * tile_columns * box_row_bytes);
      std::uint32_t left[products][4];
      L::Weight::left(codes, left);
      if constexpr (L::Weight::has_groups) {
        const float low = scales[m * tile_columns * column_stride],
                    high = scales[(m * tile_columns + 8) * column_stride];
        float of_group[4] = {offsets.x, offsets.y, offsets.x, offsets.y};
#pragma unroll
        for (int i = 0; i < products; ++i) mma_16x8x16<BFloat16>(of_group, left[i], right[i][0], right[i][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) of[m][i] = fmaf(i < 2 ? low : high, of_group[i], of[m][i]);
      } else {
#pragma unroll
        for (int i = 0; i < products; ++i) mma_16x8x16<BFloat16>(of[m], left[i], right[i][0], right[i][1]);
      }
    }
  }

  __device__ void store(float* sums, int rows) const {
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane % 4 * 2 + i % 2;
        if (row < rows)
          sums[(warp * L::rows + row) * L::sum_stride + m * tile_columns + lane / 4 + i / 2 * 8] = of[m][i];
      }
  }
};

// Adds up the warps' sums, then the cluster's, and writes the outputs.
template <class L>
__device__ void finish(Shared<L>& s, const Problem& p, const Part<L>& part, const Extras<L>& extras) {
  float* sums = reinterpret_cast<float*>(s.ring(0));
  const int thread = static_cast<int>(threadIdx.x);
  const auto over_warps = [](const float* at, int count, int stride) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < count; ++w) sum += at[w * stride];
    return sum;
  };
  constexpr int stride = L::rows * L::sum_stride;
  if (part.split > 1) {
    for (int index = thread; index < p.rows * L::columns; index += consumers) {
      float* at = sums + index / L::columns * L::sum_stride + index % L::columns;
      *at = over_warps(at, warps, stride);
    }
    if (L::normed && thread < p.rows) s.squares[0][thread] = over_warps(&s.squares[0][thread], warps, L::rows);
    hopper::cluster_sync();
  }
  const auto total = [&](const float* at, int count, int each) {
    if (part.split == 1) return over_warps(at, count, each);
    float sum = 0;
    for (int rank = 0; rank < part.split; ++rank) sum += Cluster::load_float(at, rank);
    return sum;
  };
  const auto product = [&](int row, int in_block, int column, [[maybe_unused]] float scale) {
    float sum = total(sums + row * L::sum_stride + in_block, warps, stride);
    if constexpr (L::normed)
      sum *= rsqrtf(total(&s.squares[0][row], warps, L::rows) / static_cast<float>(p.inner) + p.epsilon);
    if constexpr (Extras<L>::has_scales) sum *= Extras<L>::reads_scales_early(p) ? scale : p.scales[column];
    return p.bias ? sum + static_cast<float>(static_cast<const BFloat16*>(p.bias)[column]) : sum;
  };
#pragma unroll
  for (int i = 0; i < Extras<L>::count; ++i) {
    const int index = (i * part.split + part.rank) * consumers + thread;
    if (index >= p.rows * part.outputs) break;
    const int row = index / part.outputs, in_block = index % part.outputs, column = part.first + in_block;
    if (column >= p.width) continue;
    const float* scales = extras.scales[Extras<L>::has_scales ? i : 0];
    float value = product(row, in_block, column, scales[0]);
    if (p.is_gated)
      value = value / (1 + __expf(-value)) * product(row, in_block + part.outputs, column + p.width, scales[1]);
    value += extras.residual[i];
    static_cast<BFloat16*>(p.y)[row * p.y_stride + column] = BFloat16(value);
  }
  if (part.split > 1) hopper::cluster_sync(); // shared memory stays until it has been read
}

template <class L>
__device__ void produce(Shared<L>& s, const Problem& p, const Part<L>& part) {
  for (int i = L::stages; i < part.count(); ++i) {
    s.empty[i % L::stages].wait(static_cast<unsigned>(i / L::stages - 1) & 1);
    load_weight(s, p, part, i);
  }
  if (p.starts_next_early) {
    wait_for_previous_kernel();
    start_next_kernel();
  }
}

template <class L>
__device__ void consume(Shared<L>& s, const Problem& p, const Part<L>& part, const SmallOperands<L>& small) {
  Sums<L> sums;
  Extras<L> extras;
  if (Extras<L>::reads_scales_early(p)) extras.load_scales(p, part);
  ResidentX<L> resident(s, p, part, small);
  resident.load();
  // Not before: what the next one reads ahead would be in this one's way.
  if (!p.starts_next_early) start_next_kernel();
  extras.load(p, part);
  const char* own_row = small.x + sums.lane / 4 * small.x_row_bytes;
  for (int i = 0; i < part.count(); ++i) {
    const int stage = i % L::stages;
    s.full[stage].wait(static_cast<unsigned>(i / L::stages) & 1);
#pragma unroll
    for (int j = 0; j < L::steps / warps; ++j) {
      const int step = j * warps + sums.warp, inner = i * L::chunk + step * L::step_inner;
      Factors<L> x;
      x.load(own_row + inner * 2, sums.lane / 4 < p.rows);
      const float* scales = small.scales;
      float2 offsets{};
      if constexpr (L::Weight::has_groups) scales += sums.lane / 4 * small.column_stride + (inner >> p.group_shift);
      if constexpr (L::keeps_offset)
        offsets = *reinterpret_cast<const float2*>(small.offsets + inner / L::step_inner * L::rows + sums.lane % 4 * 2);
      sums.add(s.ring(stage), x, step, scales, small.column_stride, offsets);
    }
    __syncwarp();
    if (sums.lane == 0) s.empty[stage].arrive();
  }
  sync_consumers(); // the ring has been read, and holds sums from now on
  sums.store(reinterpret_cast<float*>(s.ring(0)), p.rows);
  sync_consumers();
  finish(s, p, part, extras);
}

#endif

template <class L>
__global__ void __launch_bounds__(threads, L::blocks) streamed_product_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared<L>& s = *reinterpret_cast<Shared<L>*>(memory + (-shared_address(memory) & (alignof(Shared<L>) - 1)));
  const Part<L> part(p);
  const bool is_producer = threadIdx.x == consumers;
  if (is_producer) {
    for (Barrier& each : s.full) each.init(1);
    for (Barrier& each : s.empty) each.init(warps);
    Barrier::fence_init();
    for (int i = 0; i < min(part.count(), L::stages); ++i) load_weight(s, p, part, i);
  }
  const SmallOperands<L> small(s.ring(0) + p.ring_bytes, p, part);
  __syncthreads();
  if (threadIdx.x < consumers) return consume(s, p, part, small);
  if (is_producer) produce(s, p, part);
  __syncwarp();
  for (int i = 0; i < 2 && part.split > 1; ++i) hopper::cluster_sync(); // as the consumers do
#endif
}

// row_bytes: of a row of the weight.
template <class L>
void launch(cudaStream_t stream, const void* weight, std::int64_t row_bytes, Problem p, int split) {
  const auto parts = static_cast<cuuint64_t>(p.is_gated ? 2 : 1), stride = static_cast<cuuint64_t>(row_bytes),
             width = static_cast<cuuint64_t>(p.width);
  p.weight = TensorMapShape{
      CU_TENSOR_MAP_DATA_TYPE_UINT8,
      4,
      {box_row_bytes, width, parts, static_cast<cuuint64_t>(p.inner / (64 * L::words))},
      {stride, stride * width, box_row_bytes},
      {box_row_bytes, L::columns / static_cast<cuuint32_t>(parts), static_cast<cuuint32_t>(parts),
       L::lines}}.encode(const_cast<void*>(weight));
  const int outputs = L::columns / static_cast<int>(parts), chunks = (p.inner + L::chunk - 1) / L::chunk,
            most_inner = (chunks + split - 1) / split * L::chunk;
  p.ring_bytes =
      std::max(std::min(L::stages, most_inner / L::chunk) * L::stage_bytes, (L::sum_bytes + 1023) / 1024 * 1024);
  const int x_bytes = p.rows * (2 * most_inner + L::x_pad),
            scale_bytes = L::Weight::has_groups ? 4 * L::columns * ((most_inner >> p.group_shift) | 1) : 0,
            offset_bytes = L::keeps_offset ? 4 * L::rows * most_inner / L::step_inner : 0,
            bytes = static_cast<int>(sizeof(Shared<L>) + alignof(Shared<L>)) + p.ring_bytes + x_bytes + offset_bytes +
                    scale_bytes;
  const auto kernel = streamed_product_kernel<L>;
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
                  "shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.width + outputs - 1) / outputs * split));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{may_start_early()};
  config.attrs = attributes, config.numAttrs = 1;
  if (split > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(split), 1, 1};
  }
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

} // namespace fvlm::plugins::streamed
