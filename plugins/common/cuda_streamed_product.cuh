// cuda_streamed_product.cuh: products y = x weight^T of up to 32 rows in bfloat16, which take the time of reading the
// weight once, for weights of any number of bits. For Hopper.
//
// A producer thread streams lines of the weight, 128 bytes of each of the block's columns at a time, and the same
// columns of x through a ring in shared memory by TMA; the ring's first weights are on their way while the kernel
// before this one runs. Eight warps share a chunk: those of a column group split its inner dimension. The blocks of a
// cluster split the inner dimension of a tile, and add up in distributed shared memory.
//
// Where 16 bytes of a weight stand for more than eight numbers, a lane of ldmatrix gets adjacent numbers where mma.sync
// wants pairs that lie apart. A sum does not depend on the order of its terms: x is read in the same order.
#pragma once

#include "common/cuda_mma.cuh"
#include "common/cuda_streamed_operands.cuh"

#include <algorithm>

namespace fvlm::plugins::streamed {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// The sums of a warp.
template <class L>
struct Sums {
  static constexpr int products = L::Weight::products;
  float of[L::column_tiles][L::row_tiles][4] = {}, squares[L::row_tiles] = {};
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  const int inner_warp = warp % L::inner_warps, first_column = warp / L::inner_warps * L::column_tiles * tile_columns;

  // scales: of the lane's first column, from the step's group on; behind it by column_stride those of the next.
  // offsets: what the sums with the lane's two rows of x begin with.
  __device__ void add(const char* weight, const Factors<L>& x, int step, [[maybe_unused]] const float* scales,
                      [[maybe_unused]] int column_stride, [[maybe_unused]] float2 offsets) {
    std::uint32_t right[L::row_tiles][products][2];
#pragma unroll
    for (int tile = 0; tile < L::row_tiles; ++tile) L::Weight::right(x.pairs[tile], right[tile]);
    const int row = lane % 16, piece = step % 4 * 2 + lane / 16;
    const std::uint32_t from = shared_address(weight) + (step / 4 * L::columns + first_column + row) * box_row_bytes +
                               ((piece ^ row % 8) << 4);
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m) {
      hopper::Matrix8x8x4 codes;
      codes.load(from + m * tile_columns * box_row_bytes);
      std::uint32_t left[products][4];
      L::Weight::left(codes, left);
      if constexpr (L::Weight::has_groups) {
        const float low = scales[m * tile_columns * column_stride],
                    high = scales[(m * tile_columns + 8) * column_stride];
#pragma unroll
        for (int tile = 0; tile < L::row_tiles; ++tile) {
          float of_group[4] = {offsets.x, offsets.y, offsets.x, offsets.y};
#pragma unroll
          for (int i = 0; i < products; ++i)
            mma_16x8x16<BFloat16>(of_group, left[i], right[tile][i][0], right[tile][i][1]);
#pragma unroll
          for (int i = 0; i < 4; ++i) of[m][tile][i] = fmaf(i < 2 ? low : high, of_group[i], of[m][tile][i]);
        }
      } else {
#pragma unroll
        for (int tile = 0; tile < L::row_tiles; ++tile)
#pragma unroll
          for (int i = 0; i < products; ++i)
            mma_16x8x16<BFloat16>(of[m][tile], left[i], right[tile][i][0], right[tile][i][1]);
      }
    }
  }

  __device__ void store(float* sums, int rows_of_x, [[maybe_unused]] Shared<L>& s) const {
#pragma unroll
    for (int m = 0; m < L::column_tiles; ++m)
#pragma unroll
      for (int tile = 0; tile < L::row_tiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = tile * tile_rows + lane % 4 * 2 + i % 2;
          if (row < rows_of_x)
            sums[(inner_warp * L::rows + row) * L::sum_stride + first_column + m * tile_columns + lane / 4 +
                 i / 2 * 8] = of[m][tile][i];
        }
    if constexpr (L::normed && !L::resident) {
      if (first_column > 0) return;
#pragma unroll
      for (int tile = 0; tile < L::row_tiles; ++tile) {
        float square = squares[tile];
        square += __shfl_xor_sync(~0u, square, 1);
        square += __shfl_xor_sync(~0u, square, 2);
        if (lane % 4 == 0) s.squares[inner_warp][tile * tile_rows + lane / 4] = square;
      }
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
  constexpr int summands = L::inner_warps, stride = L::rows * L::sum_stride,
                squares = L::resident ? warps : L::inner_warps;
  if (part.split > 1) {
    for (int index = thread; index < p.rows * L::columns; index += consumers) {
      float* at = sums + index / L::columns * L::sum_stride + index % L::columns;
      *at = over_warps(at, summands, stride);
    }
    if (L::normed && thread < p.rows) s.squares[0][thread] = over_warps(&s.squares[0][thread], squares, L::rows);
    hopper::cluster_sync();
  }
  const auto total = [&](const float* at, int count, int each) {
    if (part.split == 1) return over_warps(at, count, each);
    float sum = 0;
    for (int rank = 0; rank < part.split; ++rank) sum += Cluster::load_float(at, rank);
    return sum;
  };
  const auto product = [&](int row, int in_block, int column, [[maybe_unused]] float scale) {
    float sum = total(sums + row * L::sum_stride + in_block, summands, stride);
    if constexpr (L::normed)
      sum *= rsqrtf(total(&s.squares[0][row], squares, L::rows) / static_cast<float>(p.inner) + p.epsilon);
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
  const int count = part.count(), at_once = min(count, L::stages);
  if constexpr (!L::resident) {
    wait_for_previous_kernel();
    for (int i = 0; i < at_once; ++i) load_x(s, p, part, i);
  }
  for (int i = at_once; i < count; ++i) {
    s.empty[i % L::stages].wait(static_cast<unsigned>(i / L::stages - 1) & 1);
    load_weight(s, p, part, i);
    if constexpr (!L::resident) load_x(s, p, part, i);
  }
  if (L::resident && p.starts_next_early) {
    wait_for_previous_kernel();
    start_next_kernel();
  }
}

template <class L>
__device__ void consume(Shared<L>& s, const Problem& p, const Part<L>& part, const SmallOperands<L>& small) {
  Sums<L> sums;
  Extras<L> extras;
  if (Extras<L>::reads_scales_early(p)) extras.load_scales(p, part);
  if constexpr (L::resident) {
    ResidentX<L> x(s, p, part, small);
    x.load();
  } else {
    wait_for_previous_kernel(); // for the residual, and for whoever reads what y was before
  }
  // Not before: what the next one reads ahead would be in this one's way.
  if (!L::resident || !p.starts_next_early) start_next_kernel();
  extras.load(p, part);
  const char* own_row = small.x + sums.lane / 4 * small.x_row_bytes;
  for (int i = 0; i < part.count(); ++i) {
    const int stage = i % L::stages;
    s.full[stage].wait(static_cast<unsigned>(i / L::stages) & 1);
#pragma unroll
    for (int j = 0; j < L::steps / L::inner_warps; ++j) {
      const int step = j * L::inner_warps + sums.inner_warp, inner = i * L::chunk + step * L::step_inner;
      Factors<L> x;
      if constexpr (L::resident)
        x.load_resident(own_row + inner * 2, sums.lane / 4 < p.rows);
      else
        x.load(s.ring(stage) + L::weight_bytes, step);
      if constexpr (L::normed && !L::resident) x.norm(small.norm_weight + inner * 2, sums.squares);
      const float* scales = small.scales;
      float2 offsets{};
      if constexpr (L::Weight::has_groups)
        scales += (sums.first_column + sums.lane / 4) * small.column_stride + (inner >> p.group_shift);
      if constexpr (L::keeps_offset)
        offsets = *reinterpret_cast<const float2*>(small.offsets + inner / L::step_inner * L::rows + sums.lane % 4 * 2);
      sums.add(s.ring(stage), x, step, scales, small.column_stride, offsets);
    }
    __syncwarp();
    if (sums.lane == 0) s.empty[stage].arrive();
  }
  sync_consumers(); // the ring has been read, and holds sums from now on
  sums.store(reinterpret_cast<float*>(s.ring(0)), p.rows, s);
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
    if constexpr (!L::resident) prefetch_map(p.x);
  }
  const SmallOperands<L> small(s.ring(0) + p.ring_bytes, p, part);
  __syncthreads();
  if (threadIdx.x < consumers) return consume(s, p, part, small);
  if (is_producer) produce(s, p, part);
  __syncwarp();
  for (int i = 0; i < 2 && part.split > 1; ++i) hopper::cluster_sync(); // as the consumers do
#endif
}

// What is multiplied, on the host.
struct Operands {
  const void* x;
  std::int64_t x_stride; // of numbers
  const void* weight;
  std::int64_t weight_row_bytes;
};

template <class L>
void launch(cudaStream_t stream, const Operands& o, Problem p, int split, bool starts_early) {
  constexpr int line_numbers = 64 * L::words;
  const auto parts = static_cast<cuuint64_t>(p.is_gated ? 2 : 1),
             row_bytes = static_cast<cuuint64_t>(o.weight_row_bytes);
  constexpr bool is_plain = L::words == 1;
  p.weight = TensorMapShape{
      is_plain ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      4,
      {is_plain ? 64u : 128u, static_cast<cuuint64_t>(p.width), parts, static_cast<cuuint64_t>(p.inner / line_numbers)},
      {row_bytes, row_bytes * static_cast<cuuint64_t>(p.width), 128},
      {is_plain ? 64u : 128u, static_cast<cuuint32_t>(L::columns / static_cast<int>(parts)),
       static_cast<cuuint32_t>(parts),
       L::lines}}.encode(const_cast<void*>(o.weight));
  p.x = TensorMapShape{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       3,
                       {64, static_cast<cuuint64_t>(p.rows), static_cast<cuuint64_t>(p.inner / 64)},
                       {static_cast<cuuint64_t>(o.x_stride) * 2, 128},
                       {64, L::rows, L::lines * L::words}}
            .encode(const_cast<void*>(o.x));
  p.resident_x = o.x, p.x_stride = o.x_stride;
  const int outputs = L::columns / static_cast<int>(parts), chunks = (p.inner + L::chunk - 1) / L::chunk,
            most_inner = (chunks + split - 1) / split * L::chunk;
  p.ring_bytes =
      std::max(std::min(L::stages, most_inner / L::chunk) * L::stage_bytes, (L::sum_bytes + 1023) / 1024 * 1024);
  const int x_bytes = L::resident ? p.rows * (2 * most_inner + L::x_pad)
                      : L::normed ? 2 * most_inner
                                  : 0,
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
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (starts_early) attributes[config.numAttrs++] = may_start_early();
  if (split > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(split), 1, 1};
  }
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

// A weight in bfloat16. words: of x for the numbers in a word of the weight; products: of mma.sync in a step. left()
// makes operands of what ldmatrix loads of 16 columns, right() those of x.
struct PlainWeight {
  static constexpr int words = 1, products = 1;
  static constexpr bool has_scales = false, has_groups = false;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ static void left(const hopper::Matrix8x8x4& numbers, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[0][i] = numbers.at[i];
  }
  // Eight numbers of x in the order in which they are read as resident ones.
  __device__ static void order(const std::uint32_t (&x)[4], std::uint32_t (&ordered)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) ordered[i] = x[i];
  }
  __device__ static void right(const std::uint32_t (&x)[2][1], std::uint32_t (&pairs)[1][2]) {
    pairs[0][0] = x[0][0], pairs[0][1] = x[1][0];
  }
#endif
};

} // namespace fvlm::plugins::streamed
