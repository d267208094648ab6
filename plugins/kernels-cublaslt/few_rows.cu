// few_rows.cu: two kernels. Both have all that a block multiplies under way before the first of it is there, as such a
// product takes as long as its ways to memory, and read early what sums are finished with.
//
// Tiles of 16 or 32 rows go from memory into registers, and the warps of a block share the inner dimension. Boxes of 64
// rows go by way of shared memory, for Hopper's products by four warps; where the inner dimension is long, the blocks
// of a cluster share it.
#include "around.h"
#include "common/cuda_cluster.cuh"
#include "common/cuda_gelu.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "few_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int pack = 8, chunk = 4 * pack; // of the inner dimension: what a thread has, and its warp, at once

// A warp's tile is a block's, between whose warps the sums are shared, each with so many chunks at once.
template <int of_rows, int of_columns, int of_parts, int at_once>
struct Tile {
  static constexpr int rows = of_rows, columns = of_columns, parts = of_parts, ahead = at_once, blocks = 1,
                       threads = warp * parts, groups = rows * columns / 4;
  static constexpr bool sums_rows() { return false; }
  // Of sums in shared memory, so that a warp's writes meet in few banks.
  template <bool across>
  static constexpr int stride = columns + (across ? 4 : 8);
};
template <bool across, class Tile>
constexpr int sum_bytes = (Tile::parts * Tile::rows * Tile::template stride<across> +
                           (Tile::blocks > 1 ? 4 * Tile::groups : 0)) *
                          4;

// A matrix, of which all is 0 that lies behind its ends.
template <class T, bool wide>
struct Operand {
  const T* data;
  std::int64_t stride;
  int rows, columns;

  template <int count>
  __device__ Pack<T, count> load(int row, int first) const {
    Pack<T, count> part{};
    const T* from = data + row * stride + first;
    if constexpr (wide) {
      if (row < rows && first < columns) part.load(from);
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (row < rows && first + i < columns)
          part.bits.at[i / 2] |= static_cast<std::uint32_t>(sdk::bit_cast<std::uint16_t>(from[i])) << 16 * (i % 2);
    }
    return part;
  }
};

// A chunk of the weight's part that a warp multiplies by. Which of the inner dimension a thread has is free, as long as
// both sides agree: eight that lie together, four of them for either half of its packs. Which columns, too.
template <class T, bool across, int widths>
struct Right {
  Pack<T, across ? widths : pack> packs[across ? pack : widths];

  template <bool wide>
  __device__ void load(const Operand<T, wide>& weight, int from, int first_column, int lane) {
    const int share = from + lane % 4 * pack, beside = lane / 4;
#pragma unroll
    for (int i = 0; i < (across ? pack : widths); ++i) {
      if constexpr (across)
        packs[i] = weight.template load<widths>(share + i, first_column + beside * widths);
      else
        packs[i] = weight.template load<pack>(first_column + 8 * i + beside, share);
    }
  }
  // Two numbers of column `w` of the thread, the `i`-th of its four pairs.
  __device__ std::uint32_t pair(int w, int i) const {
    if constexpr (across)
      return __byte_perm(packs[2 * i].bits.at[w / 2], packs[2 * i + 1].bits.at[w / 2], w % 2 ? 0x7632 : 0x5410);
    else
      return packs[w].bits.at[i];
  }
};

struct Problem : FewRows {
  int rows, inner, width, share; // of the inner dimension, for each block of a cluster
};

// What is done with sums: bias and residual are added; they go through gelu; they are multiplied by its derivative;
// what they lose is kept.
enum class Ending { add, gelu, slope, rest };

// Four columns of a row.
template <class T, bool wide>
__device__ Pack<T, 4> load_four(const Rows& from, int row, int column, int width) {
  const Operand<T, wide> operand{static_cast<const T*>(from.data), from.stride, from.data ? row + 1 : 0, width};
  return operand.template load<4>(row, column);
}
template <class T, bool wide>
__device__ void store_four(const Rows& to, int row, int column, int width, const Pack<T, 4>& four) {
  T* const at = static_cast<T*>(to.data) + row * to.stride + column;
  if constexpr (wide) {
    four.store(at);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < width) at[i] = sdk::bit_cast<T>(static_cast<std::uint16_t>(four.bits.at[i / 2] >> 16 * (i % 2)));
  }
}

// Four sums that a thread finishes, with what they need beside.
template <class T, bool wide, Ending ending>
struct Four {
  int row, column;
  Pack<T, 4> bias, residual, rest, slope;

  __device__ void load(const Problem& p) {
    const auto load = [&](const Rows& from, int its_row) { return load_four<T, wide>(from, its_row, column, p.width); };
    if constexpr (ending != Ending::slope) bias = load({const_cast<void*>(p.bias), 0}, 0);
    if constexpr (ending == Ending::add || ending == Ending::rest) residual = load(p.residual, row);
    if constexpr (ending == Ending::rest) rest = load(p.rest, row);
    if constexpr (ending == Ending::slope) slope = load(p.slope, row);
  }
  __device__ void store(const Problem& p, float (&values)[4]) const {
    float other[4];
    const auto add = [&](const Pack<T, 4>& four) {
      four.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] += other[i];
    };
    const auto store = [&](const Rows& to, const Pack<T, 4>& four) {
      store_four<T, wide>(to, row, column, p.width, four);
    };
    if constexpr (ending != Ending::slope) add(bias);
    if constexpr (ending == Ending::add || ending == Ending::rest) add(residual);
    if constexpr (ending == Ending::rest) add(rest);
    if constexpr (ending == Ending::slope) {
      slope.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= gelu_slope<T>(other[i]);
    }
    Pack<T, 4> rounded;
    rounded.round(values);
    if constexpr (ending == Ending::gelu) {
      if (p.sum.data) store(p.sum, rounded);
      rounded.widen(values);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = gelu<T>(values[i]);
      rounded.round(values);
    }
    store(p.y, rounded);
    if constexpr (ending == Ending::rest) {
      Pack<T, 4> lost;
      rounded.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] -= other[i];
      lost.round(values);
      store(p.y_rest, lost);
    }
  }
};

// Where a part of the sums lies that a warp has left.
template <bool across, class Tile>
__device__ float* place_of(float* parts, int part, int row, int column) {
  return parts + (part * Tile::rows + row) * Tile::template stride<across> + column;
}

template <bool across, class Tile, int widths, class Sums>
__device__ void leave(const Sums& sum_at, float* parts, int part, int first_row, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half + lane / 4;
    if constexpr (across) {
      float* const at = place_of<across, Tile>(parts, part, row, lane % 4 * 2 * widths);
#pragma unroll
      for (int i = 0; i < 2 * widths; i += 4) {
        const auto sum = [&](int of) { return sum_at(of % widths, 2 * half + of / widths); };
        *reinterpret_cast<float4*>(at + i) = {sum(i), sum(i + 1), sum(i + 2), sum(i + 3)};
      }
    } else {
      float* const at = place_of<across, Tile>(parts, part, row, lane % 4 * 2);
#pragma unroll
      for (int w = 0; w < widths; ++w)
        *reinterpret_cast<float2*>(at + 8 * w) = {sum_at(w, 2 * half), sum_at(w, 2 * half + 1)};
    }
  }
}

// What comes behind the products: parts of sums are added up, each block of a cluster finishes a share of them.
template <class T, bool wide, bool across, Ending ending, class Tile>
struct End {
  static constexpr bool may_sum = ending == Ending::slope && Tile::sums_rows();
  static constexpr int blocks = Tile::blocks, each = Tile::groups / blocks,
                       of_thread = (each + Tile::threads - 1) / Tile::threads;
  const Problem& p;
  float4* const shared; // [blocks][each] sums of the cluster's, and then those of this block's parts
  const int first_column, thread = static_cast<int>(threadIdx.x);
  Four<T, wide, ending> fours[of_thread];

  __device__ static int rank() { return blocks > 1 ? static_cast<int>(blockIdx.x) % blocks : 0; }
  __device__ float* parts() const { return reinterpret_cast<float*>(shared + (blocks > 1 ? blocks * each : 0)); }
  template <class Body>
  __device__ void each_own(const Body& body) {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int own = thread + i * Tile::threads;
      if (own < each && fours[i].row < p.rows && fours[i].column < p.width) body(fours[i], own);
    }
  }
  // Reads what it takes beside sums, to have it when they are there.
  __device__ End(const Problem& problem, float4* memory, int first_row, int first)
      : p(problem), shared(memory), first_column(first) {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int group = rank() * each + thread + i * Tile::threads;
      fours[i].row = first_row + group / (Tile::columns / 4);
      fours[i].column = first_column + group % (Tile::columns / 4) * 4;
    }
    each_own([&](auto& four, int) { four.load(p); });
  }
  __device__ float4* place_of_group(int part, int group) const {
    return reinterpret_cast<float4*>(
        place_of<across, Tile>(parts(), part, group / (Tile::columns / 4), group % (Tile::columns / 4) * 4));
  }
  __device__ float4 sum_of_parts(int group) const {
    float4 sum{};
#pragma unroll
    for (int i = 0; i < Tile::parts; ++i) add(sum, *place_of_group(i, group));
    return sum;
  }
  // Of what was finished, which lies where the first parts were; all rows of the product are the tile's.
  __device__ void sum_rows() const {
    __syncthreads();
    const int column = first_column + thread;
    if (thread >= Tile::columns || column >= p.width) return;
    float sum = 0;
#pragma unroll 16
    for (int row = 0; row < Tile::rows; ++row) sum += *place_of<across, Tile>(parts(), 0, row, thread);
    const auto give = [&](auto* to) {
      if (p.sums.accumulate) sum += static_cast<float>(to[column]);
      to[column] = std::remove_pointer_t<decltype(to)>(sum);
    };
    if (p.sums.type.bits == 32)
      give(static_cast<float*>(p.sums.out[0]));
    else
      give(static_cast<T*>(p.sums.out[0]));
  }
  // Behind what warps have left of the parts.
  __device__ void operator()() {
    __syncthreads();
    if constexpr (blocks > 1) {
      Cluster::wait(); // for all to have begun
#pragma unroll
      for (int group = thread; group < Tile::groups; group += Tile::threads)
        Cluster::write(reinterpret_cast<float*>(shared + rank() * each + group % each), group / each,
                       sum_of_parts(group));
      Cluster::arrive();
      Cluster::wait();
    }
    each_own([&](const auto& four, int own) {
      float4 sum{};
      if constexpr (blocks > 1) {
#pragma unroll
        for (int i = 0; i < blocks; ++i) add(sum, shared[i * each + own]);
      } else {
        sum = sum_of_parts(own);
      }
      float values[4] = {sum.x, sum.y, sum.z, sum.w};
      four.store(p, values);
      if constexpr (may_sum) {
        if (p.sums.out[0]) *place_of_group(0, own) = {values[0], values[1], values[2], values[3]};
      }
    });
    if constexpr (may_sum) {
      if (p.sums.out[0]) sum_rows();
    }
  }
};

template <class T, bool wide, bool across, Ending ending, class Tile>
__global__ void __launch_bounds__(Tile::threads) product_of_tiles(const __grid_constant__ Problem p) {
  constexpr int heights = Tile::rows / 16, widths = Tile::columns / 8;
  extern __shared__ float4 shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp, own = thread / warp;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::rows,
            first_column = static_cast<int>(blockIdx.y) * Tile::columns;
  End<T, wide, across, ending, Tile> end(p, shared, first_row, first_column);
  const Operand<T, wide> left{static_cast<const T*>(p.x.data), p.x.stride, p.rows, p.inner};
  const Operand<T, wide> right{static_cast<const T*>(p.weight.data), p.weight.stride, across ? p.inner : p.width,
                               across ? p.width : p.inner};
  float sums[heights][widths][4] = {};
  for (int from = own * chunk; from < p.inner; from += Tile::parts * Tile::ahead * chunk) {
    Pack<T, pack> x[Tile::ahead][heights][2];
    Right<T, across, widths> weight[Tile::ahead];
#pragma unroll
    for (int a = 0; a < Tile::ahead; ++a) {
      const int at = from + a * Tile::parts * chunk;
      weight[a].load(right, at, first_column, lane);
#pragma unroll
      for (int h = 0; h < heights; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x[a][h][i] = left.template load<pack>(first_row + 16 * h + 8 * i + lane / 4, at + lane % 4 * pack);
    }
#pragma unroll
    for (int a = 0; a < Tile::ahead; ++a)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
#pragma unroll
        for (int w = 0; w < widths; ++w) {
          const std::uint32_t b0 = weight[a].pair(w, i), b1 = weight[a].pair(w, i + 1);
#pragma unroll
          for (int h = 0; h < heights; ++h)
            multiply_add<T>(
                sums[h][w],
                {x[a][h][0].bits.at[i], x[a][h][1].bits.at[i], x[a][h][0].bits.at[i + 1], x[a][h][1].bits.at[i + 1]},
                b0, b1);
        }
  }
#pragma unroll
  for (int h = 0; h < heights; ++h)
    leave<across, Tile, widths>([&](int w, int i) { return sums[h][w][i]; }, end.parts(), own, 16 * h, lane);
  end();
}

constexpr int slice = hopper::box_width; // of the inner dimension, that a group multiplies at once

// Four warps of a group multiply 64 rows by `columns` columns; groups share what is summed.
template <int of_columns, int of_cluster>
struct BoxTile {
  static constexpr int rows = 64, columns = of_columns, parts = 2, threads = hopper::group_threads * parts,
                       groups = rows * columns / 4, blocks = of_cluster;
  static constexpr bool sums_rows() { return blocks == 1; }
  template <bool>
  static constexpr int stride = columns + 8;
  static constexpr int left_bytes = rows * hopper::box_row_bytes;
  template <bool across>
  static constexpr int right_bytes = (across ? slice : columns) * hopper::box_row_bytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Rows of a box, by the threads of a group; `packs` of each.
template <int rows, int packs, class T>
__device__ void copy_box(char* to, const Operand<T, true>& from, int first_row, int first_column) {
  constexpr int at_once = hopper::group_threads / packs;
  const int thread = static_cast<int>(threadIdx.x) % hopper::group_threads, row = thread / packs, own = thread % packs,
            column = first_column + own * pack;
  const unsigned at = shared_address(to) + row * hopper::box_row_bytes + ((own ^ row % 8) << 4);
  const T* source = from.data + (first_row + row) * from.stride + column;
#pragma unroll
  for (int i = 0; i < rows; i += at_once) {
    const bool inside = first_row + row + i < from.rows && column < from.columns;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + i * hopper::box_row_bytes),
                 "l"(inside ? source + i * from.stride : from.data), "r"(inside ? 16 : 0)
                 : "memory");
  }
}
#endif

template <class T, bool across, Ending ending, class Tile>
__global__ void __launch_bounds__(Tile::threads) product_of_boxes(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace hopper;
  extern __shared__ __align__(8 * box_row_bytes) char memory[];
  constexpr int left_bytes = Tile::left_bytes, right_bytes = Tile::template right_bytes<across>;
  const int most = p.share / slice;
  char *const left = memory, *const right = left + most * left_bytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int own = __shfl_sync(0xffffffffu, thread / group_threads, 0); // one for the warp
  const int first_row = static_cast<int>(blockIdx.x) / Tile::blocks * Tile::rows,
            first_column = static_cast<int>(blockIdx.y) * Tile::columns;
  if (Tile::blocks > 1) Cluster::arrive();
  const int begin = End<T, true, false, ending, Tile>::rank() * p.share, behind_last = min(p.inner, begin + p.share);
  const Operand<T, true> x{static_cast<const T*>(p.x.data), p.x.stride, p.rows, behind_last};
  const Operand<T, true> weight{static_cast<const T*>(p.weight.data), p.weight.stride, across ? behind_last : p.width,
                                across ? p.width : behind_last};
#pragma unroll 1
  for (int i = own, from = begin + own * slice; from < behind_last; i += Tile::parts, from += Tile::parts * slice) {
    if constexpr (across)
      copy_box<slice, Tile::columns / pack>(right + i * right_bytes, weight, from, first_column);
    else
      copy_box<Tile::columns, slice / pack>(right + i * right_bytes, weight, first_column, from);
    copy_box<Tile::rows, slice / pack>(left + i * left_bytes, x, first_row, from);
  }
  End<T, true, false, ending, Tile> end(p, reinterpret_cast<float4*>(right + most * right_bytes), first_row,
                                        first_column);
  asm volatile("cp.async.wait_all;" ::: "memory");
  before_copies();
  asm volatile("bar.sync %0, %1;" ::"r"(own + 1), "n"(group_threads) : "memory");
  ProductOf<Tile::columns> sum = {};
  before_products();
#pragma unroll 1
  for (int i = own, from = begin + own * slice; from < behind_last; i += Tile::parts, from += Tile::parts * slice) {
    const std::uint64_t its_left = operand(left + i * left_bytes), its_right = operand(right + i * right_bytes);
#pragma unroll
    for (int step = 0; step < slice / 16; ++step)
      multiply<T, across>(sum, behind(its_left, step * 32),
                          behind(its_right, step * (across ? 16 * box_row_bytes : 32)), true);
  }
  end_products();
  wait_for_products<0>();
  settled(sum);
  leave<false, Tile, Tile::columns / 8>([&](int w, int i) { return sum[4 * w + i]; }, end.parts(), own,
                                        thread / warp % group_warps * 16, thread % warp);
  end();
#else
  (void)p;
#endif
}

int parts_of(std::int64_t size, int part) {
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
  config.gridDim = dim3(static_cast<unsigned>(parts_of(p.rows, Tile::rows) * Tile::blocks),
                        static_cast<unsigned>(parts_of(p.width, Tile::columns)));
  config.blockDim = dim3(Tile::threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = device.stream;
  config.attrs = &cluster;
  config.numAttrs = Tile::blocks > 1 ? 1 : 0;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "a product of few rows");
}

template <class T, bool wide, bool across, Ending ending, class Tile>
void launch_tiles(const Device& device, const Problem& p) {
  launch<Tile>(device, product_of_tiles<T, wide, across, ending, Tile>, p, sum_bytes<across, Tile>);
}

template <class T, bool across, Ending ending, class Tile>
void launch_boxes(const Device& device, Problem p) {
  const int slices = parts_of(parts_of(p.inner, slice), Tile::blocks);
  p.share = slices * slice;
  launch<Tile>(device, product_of_boxes<T, across, ending, Tile>, p,
               slices * (Tile::left_bytes + Tile::template right_bytes<across>)+sum_bytes<false, Tile>);
}

using Small = Tile<16, 16, 6, 2>;
using Large = Tile<32, 16, 8, 1>;
using Narrow = BoxTile<16, 1>;
using Wide = BoxTile<32, 1>;
using Shared = BoxTile<32, 4>;

// What was the fastest of those that keep every multiprocessor busy at most once (bench/LOG.md), for operands that are
// read 16 bytes at a time.
enum class Way { small, large, narrow, wide, shared };

template <class Tile>
bool fills_once(int multiprocessors, const FewRowsShape& shape) {
  return std::int64_t{parts_of(shape.rows, Tile::rows)} * parts_of(shape.width, Tile::columns) * Tile::blocks <=
         multiprocessors;
}

Way way_of(int multiprocessors, const FewRowsShape& shape) {
  constexpr int short_inner = 6 * slice, long_inner = 12 * slice, longest_inner = 4 * long_inner;
  if (shape.inner <= short_inner && fills_once<Small>(multiprocessors, shape)) return Way::small;
  if (shape.inner <= long_inner && fills_once<Narrow>(multiprocessors, shape)) return Way::narrow;
  if (shape.inner <= long_inner && fills_once<Wide>(multiprocessors, shape)) return Way::wide;
  if (shape.inner <= longest_inner && fills_once<Shared>(multiprocessors, shape)) return Way::shared;
  return Way::large;
}

// Whether a block finishes all rows of its columns, so that it can sum them, too.
bool sums_rows(int multiprocessors, const FewRowsShape& shape) {
  const Way way = way_of(multiprocessors, shape);
  return shape.rows <= Narrow::rows && (way == Way::narrow || way == Way::wide);
}

bool are_wide(const FewRowsShape& shape, const FewRows& o) {
  bool wide = shape.inner % pack == 0 && shape.width % pack == 0 && reinterpret_cast<std::uintptr_t>(o.bias) % 16 == 0;
  for (const Rows& each : {o.x, o.weight, o.y, o.residual, o.rest, o.y_rest, o.sum, o.slope})
    wide = wide && reinterpret_cast<std::uintptr_t>(each.data) % 16 == 0 && each.stride % pack == 0;
  return wide;
}

template <class T, bool across, Ending ending>
void product(const Device& device, const Problem& p, Way way, bool wide) {
  if constexpr (ending == Ending::rest) {
    if (!wide) return launch_tiles<T, false, across, ending, Small>(device, p);
    if (way == Way::large) return launch_tiles<T, true, across, ending, Large>(device, p);
  }
  switch (way) {
  case Way::small:
    return launch_tiles<T, true, across, ending, Small>(device, p);
  case Way::narrow:
    return launch_boxes<T, across, ending, Narrow>(device, p);
  case Way::wide:
    return launch_boxes<T, across, ending, Wide>(device, p);
  case Way::shared:
    return launch_boxes<T, across, ending, Shared>(device, p);
  case Way::large:
    break;
  }
}

} // namespace

bool fits_few_rows(const Device& device, const FewRowsShape& shape) {
  return device.has_clusters && sdk::is_one_of<BFloat16, Half>(shape.dtype) && shape.inner % pack == 0 &&
         shape.width % pack == 0 && way_of(device.multiprocessors, shape) != Way::large;
}

bool takes_few_rows(const Device& device, const FewRowsShape& shape, const FewRows& o) {
  return are_wide(shape, o) && (!o.slope.data || sums_rows(device.multiprocessors, shape));
}

void few_rows(const Device& device, const FewRowsShape& shape, const FewRows& o) {
  const Way way = device.has_clusters ? way_of(device.multiprocessors, shape) : Way::large;
  const bool wide = are_wide(shape, o);
  const Problem p{o, static_cast<int>(shape.rows), static_cast<int>(shape.inner), static_cast<int>(shape.width), 0};
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (shape.across && o.slope.data)
      product<T, true, Ending::slope>(device, p, way, wide);
    else if (shape.across)
      product<T, true, Ending::add>(device, p, way, wide);
    else if (o.gelu)
      product<T, false, Ending::gelu>(device, p, way, wide);
    else if (o.y_rest.data)
      product<T, false, Ending::rest>(device, p, way, wide);
    else
      product<T, false, Ending::add>(device, p, way, wide);
  });
  if (o.sums.wanted() && !o.slope.data) column_sums(device, {shape.dtype, shape.rows, shape.width, wide}, o.y, o.sums);
}

} // namespace fvlm::plugins
