// gemm_skinny.cu: matrix products of few rows (skinny GEMM) in 16 bits, with bias, residual, GELU, its derivative or
// compensation in the epilogue. Such a product is limited by latency, so both kernels issue all loads of a block before
// the first result is needed, the epilogue's operands included. mma_kernel: tiles of 16 x 16 or 32 x 16; the warps of a
// block split the inner dimension and load directly into mma.sync fragments. wgmma_kernel (Hopper): tiles of 64 rows by
// 16 or 32 columns; two warpgroups split the inner dimension, with operands in swizzled shared memory by cp.async; for
// a long inner dimension the four blocks of a cluster split it, too, and add their sums in distributed shared memory.
#include "common/cuda_cluster.cuh"
#include "common/cuda_copies.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "elementwise.h"
#include "gemm_few_rows.h"
#include "gemm_skinny_epilogue.cuh"

namespace fvlm::plugins {
namespace {

constexpr int pack = 8, chunk = 4 * pack; // of the inner dimension: per thread, and per warp

// The warps of a block split the inner dimension of one tile; each has `of_chunks` chunks in flight.
template <int of_rows, int of_columns, int of_parts, int of_chunks>
struct MmaTile {
  static constexpr int rows = of_rows, columns = of_columns, parts = of_parts, k_chunks = of_chunks, blocks = 1,
                       threads = warp_size * parts, groups = rows * columns / 4;
  static constexpr bool finishes_all_rows() { return false; }
  // Row stride of partial sums in shared memory, chosen against bank conflicts.
  template <bool weight_transposed>
  static constexpr int stride = columns + (weight_transposed ? 4 : 8);
};
template <bool weight_transposed, class Tile>
constexpr int sum_bytes = (Tile::parts * Tile::rows * Tile::template stride<weight_transposed> +
                           (Tile::blocks > 1 ? 4 * Tile::groups : 0)) *
                          4;

// The part of the weight that a warp multiplies in one chunk. The order of the inner dimension within a chunk is free
// as long as both operands agree: a thread takes eight consecutive elements, four for each half of its fragments. The
// order of columns is free too.
template <class T, bool weight_transposed, int widths>
struct WeightFragment {
  Pack<T, weight_transposed ? widths : pack> packs[weight_transposed ? pack : widths];

  template <bool vectorized>
  __device__ void load(const Operand<T, vectorized>& weight, int from, int first_column, int lane) {
    const int share = from + lane % 4 * pack, column_lane = lane / 4;
#pragma unroll
    for (int i = 0; i < (weight_transposed ? pack : widths); ++i) {
      if constexpr (weight_transposed)
        packs[i] = weight.template load<widths>(share + i, first_column + column_lane * widths);
      else
        packs[i] = weight.template load<pack>(first_column + 8 * i + column_lane, share);
    }
  }
  // Pair number `i` (of four) of the thread's column `w`, as a B register.
  __device__ std::uint32_t pair(int w, int i) const {
    if constexpr (weight_transposed)
      return __byte_perm(packs[2 * i].bits.at[w / 2], packs[2 * i + 1].bits.at[w / 2], w % 2 ? 0x7632 : 0x5410);
    else
      return packs[w].bits.at[i];
  }
};

template <class T, bool vectorized, bool weight_transposed, Epilogue epilogue, class Tile>
__global__ void __launch_bounds__(Tile::threads) mma_kernel(const __grid_constant__ Problem p) {
  constexpr int heights = Tile::rows / 16, widths = Tile::columns / 8;
  extern __shared__ float4 shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_size, own = thread / warp_size;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::rows,
            first_column = static_cast<int>(blockIdx.y) * Tile::columns;
  RunEpilogue<T, vectorized, weight_transposed, epilogue, Tile> run_epilogue(p, shared, first_row, first_column);
  const Operand<T, vectorized> left{static_cast<const T*>(p.x.data), p.x.stride, p.rows, p.inner};
  const Operand<T, vectorized> right{static_cast<const T*>(p.weight.data), p.weight.stride,
                                     weight_transposed ? p.inner : p.width, weight_transposed ? p.width : p.inner};
  float sums[heights][widths][4] = {};
  for (int from = own * chunk; from < p.inner; from += Tile::parts * Tile::k_chunks * chunk) {
    Pack<T, pack> x[Tile::k_chunks][heights][2];
    WeightFragment<T, weight_transposed, widths> weight[Tile::k_chunks];
#pragma unroll
    for (int a = 0; a < Tile::k_chunks; ++a) {
      const int at = from + a * Tile::parts * chunk;
      weight[a].load(right, at, first_column, lane);
#pragma unroll
      for (int h = 0; h < heights; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x[a][h][i] = left.template load<pack>(first_row + 16 * h + 8 * i + lane / 4, at + lane % 4 * pack);
    }
#pragma unroll
    for (int a = 0; a < Tile::k_chunks; ++a)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
#pragma unroll
        for (int w = 0; w < widths; ++w) {
          const std::uint32_t b0 = weight[a].pair(w, i), b1 = weight[a].pair(w, i + 1);
#pragma unroll
          for (int h = 0; h < heights; ++h)
            mma_16x8x16<T>(
                sums[h][w],
                {x[a][h][0].bits.at[i], x[a][h][1].bits.at[i], x[a][h][0].bits.at[i + 1], x[a][h][1].bits.at[i + 1]},
                b0, b1);
        }
  }
#pragma unroll
  for (int h = 0; h < heights; ++h)
    store_partial<weight_transposed, Tile, widths>([&](int w, int i) { return sums[h][w][i]; }, run_epilogue.parts(),
                                                   own, 16 * h, lane);
  run_epilogue();
}

constexpr int k_slice = hopper::box_width; // of the inner dimension, that a warpgroup multiplies per step

// A warpgroup computes 64 rows by `columns` columns; the warpgroups of a block split the inner dimension.
template <int of_columns, int of_cluster>
struct WgmmaTile {
  static constexpr int rows = 64, columns = of_columns, parts = 2, threads = hopper::warpgroup_threads * parts,
                       groups = rows * columns / 4, blocks = of_cluster;
  static constexpr bool finishes_all_rows() { return blocks == 1; }
  template <bool>
  static constexpr int stride = columns + 8;
  static constexpr int left_bytes = rows * hopper::box_row_bytes;
  template <bool weight_transposed>
  static constexpr int right_bytes = (weight_transposed ? k_slice : columns) * hopper::box_row_bytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Copies rows of a box by cp.async, by the threads of a warpgroup; `packs` packs per row.
template <int rows, int packs, class T>
__device__ void copy_to_swizzled_box(char* to, const Operand<T, true>& from, int first_row, int first_column) {
  constexpr int k_chunks = hopper::warpgroup_threads / packs;
  const int thread = static_cast<int>(threadIdx.x) % hopper::warpgroup_threads, row = thread / packs,
            own = thread % packs, column = first_column + own * pack;
  const unsigned at = shared_address(to) + row * hopper::box_row_bytes + ((own ^ row % 8) << 4);
  const T* source = from.data + (first_row + row) * from.stride + column;
#pragma unroll
  for (int i = 0; i < rows; i += k_chunks) {
    const bool inside = first_row + row + i < from.rows && column < from.columns;
    cp_async_16_if(at + i * hopper::box_row_bytes, inside ? source + i * from.stride : from.data, inside);
  }
}
#endif

template <class T, bool weight_transposed, Epilogue epilogue, class Tile>
__global__ void __launch_bounds__(Tile::threads) wgmma_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace hopper;
  extern __shared__ __align__(8 * box_row_bytes) char memory[];
  constexpr int left_bytes = Tile::left_bytes, right_bytes = Tile::template right_bytes<weight_transposed>;
  const int slices = p.share / k_slice;
  char *const left = memory, *const right = left + slices * left_bytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int own = __shfl_sync(0xffffffffu, thread / warpgroup_threads, 0); // uniform within the warp
  const int first_row = static_cast<int>(blockIdx.x) / Tile::blocks * Tile::rows,
            first_column = static_cast<int>(blockIdx.y) * Tile::columns;
  if (Tile::blocks > 1) Cluster::arrive();
  const int begin = RunEpilogue<T, true, false, epilogue, Tile>::rank() * p.share,
            behind_last = min(p.inner, begin + p.share);
  const Operand<T, true> x{static_cast<const T*>(p.x.data), p.x.stride, p.rows, behind_last};
  const Operand<T, true> weight{static_cast<const T*>(p.weight.data), p.weight.stride,
                                weight_transposed ? behind_last : p.width, weight_transposed ? p.width : behind_last};
#pragma unroll 1
  for (int i = own, from = begin + own * k_slice; from < behind_last; i += Tile::parts, from += Tile::parts * k_slice) {
    if constexpr (weight_transposed)
      copy_to_swizzled_box<k_slice, Tile::columns / pack>(right + i * right_bytes, weight, from, first_column);
    else
      copy_to_swizzled_box<Tile::columns, k_slice / pack>(right + i * right_bytes, weight, first_column, from);
    copy_to_swizzled_box<Tile::rows, k_slice / pack>(left + i * left_bytes, x, first_row, from);
  }
  RunEpilogue<T, true, false, epilogue, Tile> run_epilogue(p, reinterpret_cast<float4*>(right + slices * right_bytes),
                                                           first_row, first_column);
  cp_async_wait_all();
  fence_proxy_async();
  asm volatile("bar.sync %0, %1;" ::"r"(own + 1), "n"(warpgroup_threads) : "memory");
  Accumulator<Tile::columns> sum = {};
  wgmma_fence();
#pragma unroll 1
  for (int i = own, from = begin + own * k_slice; from < behind_last; i += Tile::parts, from += Tile::parts * k_slice) {
    const std::uint64_t a_descriptor = matrix_descriptor(left + i * left_bytes),
                        b_descriptor = matrix_descriptor(right + i * right_bytes);
#pragma unroll
    for (int step = 0; step < k_slice / 16; ++step)
      wgmma<T, weight_transposed>(
          sum, advance_descriptor(a_descriptor, step * 32),
          advance_descriptor(b_descriptor, step * (weight_transposed ? 16 * box_row_bytes : 32)), true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(sum);
  store_partial<false, Tile, Tile::columns / 8>([&](int w, int i) { return sum[4 * w + i]; }, run_epilogue.parts(), own,
                                                thread / warp_size % warpgroup_warps * 16, thread % warp_size);
  run_epilogue();
#else
  (void)p;
#endif
}

int ceil_divide(std::int64_t size, int part) {
  return static_cast<int>((size + part - 1) / part);
}

template <class Tile>
void launch(const Device& device, void (*kernel)(Problem), const Problem& p, int bytes) {
  if (bytes > 48 << 10)
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Tile::blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_divide(p.rows, Tile::rows) * Tile::blocks),
                        static_cast<unsigned>(ceil_divide(p.width, Tile::columns)));
  config.blockDim = dim3(Tile::threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = device.stream;
  config.attrs = &cluster;
  config.numAttrs = Tile::blocks > 1 ? 1 : 0;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

template <class T, bool vectorized, bool weight_transposed, Epilogue epilogue, class Tile>
void launch_mma(const Device& device, const Problem& p) {
  launch<Tile>(device, mma_kernel<T, vectorized, weight_transposed, epilogue, Tile>, p,
               sum_bytes<weight_transposed, Tile>);
}

template <class T, bool weight_transposed, Epilogue epilogue, class Tile>
void launch_wgmma(const Device& device, Problem p) {
  const int slices = ceil_divide(ceil_divide(p.inner, k_slice), Tile::blocks);
  p.share = slices * k_slice;
  launch<Tile>(device, wgmma_kernel<T, weight_transposed, epilogue, Tile>, p,
               slices * (Tile::left_bytes + Tile::template right_bytes<weight_transposed>)+sum_bytes<false, Tile>);
}

using Mma16x16 = MmaTile<16, 16, 6, 2>;
using Mma32x16 = MmaTile<32, 16, 8, 1>;
using Wgmma64x16 = WgmmaTile<16, 1>;
using Wgmma64x32 = WgmmaTile<32, 1>;
using Wgmma64x32Cluster = WgmmaTile<32, 4>;

// The fastest choice among those that fit into one wave, as measured (bench/LOG.md), for operands that can be read 16
// bytes at a time.
enum class TileChoice { mma_16x16, mma_32x16, wgmma_64x16, wgmma_64x32, wgmma_64x32_cluster };

template <class Tile>
bool fits_one_wave(int multiprocessors, const SkinnyGemmShape& shape) {
  return std::int64_t{ceil_divide(shape.rows, Tile::rows)} * ceil_divide(shape.width, Tile::columns) * Tile::blocks <=
         multiprocessors;
}

TileChoice choose_tile(int multiprocessors, const SkinnyGemmShape& shape) {
  constexpr int short_inner = 6 * k_slice, long_inner = 12 * k_slice, longest_inner = 4 * long_inner;
  if (shape.inner <= short_inner && fits_one_wave<Mma16x16>(multiprocessors, shape)) return TileChoice::mma_16x16;
  if (shape.inner <= long_inner && fits_one_wave<Wgmma64x16>(multiprocessors, shape)) return TileChoice::wgmma_64x16;
  if (shape.inner <= long_inner && fits_one_wave<Wgmma64x32>(multiprocessors, shape)) return TileChoice::wgmma_64x32;
  if (shape.inner <= longest_inner && fits_one_wave<Wgmma64x32Cluster>(multiprocessors, shape))
    return TileChoice::wgmma_64x32_cluster;
  return TileChoice::mma_32x16;
}

// Whether a block finishes all rows of its columns, so that it can compute column sums.
bool finishes_all_rows(int multiprocessors, const SkinnyGemmShape& shape) {
  const TileChoice choice = choose_tile(multiprocessors, shape);
  return shape.rows <= Wgmma64x16::rows && (choice == TileChoice::wgmma_64x16 || choice == TileChoice::wgmma_64x32);
}

bool all_aligned(const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  bool vectorized =
      shape.inner % pack == 0 && shape.width % pack == 0 && reinterpret_cast<std::uintptr_t>(o.bias) % 16 == 0;
  for (const Rows& each : {o.x, o.weight, o.y, o.residual, o.compensation, o.y_compensation, o.sum, o.gelu_input})
    vectorized = vectorized && reinterpret_cast<std::uintptr_t>(each.data) % 16 == 0 && each.stride % pack == 0;
  return vectorized;
}

template <class T, bool weight_transposed, Epilogue epilogue>
void launch_choice(const Device& device, const Problem& p, TileChoice choice, bool vectorized) {
  if constexpr (epilogue == Epilogue::compensated) {
    if (!vectorized) return launch_mma<T, false, weight_transposed, epilogue, Mma16x16>(device, p);
    if (choice == TileChoice::mma_32x16) return launch_mma<T, true, weight_transposed, epilogue, Mma32x16>(device, p);
  }
  switch (choice) {
  case TileChoice::mma_16x16:
    return launch_mma<T, true, weight_transposed, epilogue, Mma16x16>(device, p);
  case TileChoice::wgmma_64x16:
    return launch_wgmma<T, weight_transposed, epilogue, Wgmma64x16>(device, p);
  case TileChoice::wgmma_64x32:
    return launch_wgmma<T, weight_transposed, epilogue, Wgmma64x32>(device, p);
  case TileChoice::wgmma_64x32_cluster:
    return launch_wgmma<T, weight_transposed, epilogue, Wgmma64x32Cluster>(device, p);
  case TileChoice::mma_32x16:
    break;
  }
}

bool has_tiles(const Device& device, const SkinnyGemmShape& shape) {
  return device.has_clusters && sdk::is_one_of<BFloat16, Half>(shape.dtype) && shape.inner % pack == 0 &&
         shape.width % pack == 0 && choose_tile(device.multiprocessors, shape) != TileChoice::mma_32x16;
}

} // namespace

bool skinny_gemm_supports(const Device& device, const SkinnyGemmShape& shape) {
  return few_rows_are_skinny(shape) || has_tiles(device, shape);
}

bool skinny_gemm_takes(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  const bool fits = !o.gelu_input.data || finishes_all_rows(device.multiprocessors, shape);
  return all_aligned(shape, o) && (few_rows_takes(shape, o) || (fits && has_tiles(device, shape)));
}

void skinny_gemm(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  const bool vectorized = all_aligned(shape, o);
  if (vectorized && few_rows_takes(shape, o)) return few_rows_gemm(device, shape, few_rows_of(o));
  const TileChoice choice = device.has_clusters ? choose_tile(device.multiprocessors, shape) : TileChoice::mma_32x16;
  const Problem p{o, static_cast<int>(shape.rows), static_cast<int>(shape.inner), static_cast<int>(shape.width), 0};
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (shape.weight_transposed && o.gelu_input.data)
      launch_choice<T, true, Epilogue::gelu_derivative>(device, p, choice, vectorized);
    else if (shape.weight_transposed)
      launch_choice<T, true, Epilogue::bias_residual>(device, p, choice, vectorized);
    else if (o.gelu)
      launch_choice<T, false, Epilogue::gelu>(device, p, choice, vectorized);
    else if (o.y_compensation.data)
      launch_choice<T, false, Epilogue::compensated>(device, p, choice, vectorized);
    else
      launch_choice<T, false, Epilogue::bias_residual>(device, p, choice, vectorized);
  });
  if (o.sums.required() && !o.gelu_input.data)
    column_sums(device, {shape.dtype, shape.rows, shape.width, vectorized}, o.y, o.sums);
}

} // namespace fvlm::plugins
