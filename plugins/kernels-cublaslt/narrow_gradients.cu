// narrow_gradients.cu: d_x = d_y weight and d_weight (+)= d_y^T x for at most 32 input features, as the second linear
// of a low-rank adapter has them. Both products together cost little more than reading d_y, which this kernel does
// once. For 16-bit operands, where a block may take more than 180 KB of shared memory (compute capability 9.0, 10.0).
//
// A block takes 1,024 columns of d_y and a part of its rows, a warp 128 of these columns, whose weight and whose share
// of d_weight stay in its registers. Each warp loads 16 rows at a time by cp.async, four stages deep, and multiplies
// them from shared memory twice: as they are, and transposed by ldmatrix. The warps' shares of d_x are added up in
// shared memory. A second kernel adds what blocks have of the same d_x and d_weight, in order, so that results are
// deterministic.
#include "common/cuda_copies.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "narrow_gradients.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;
using std::uint32_t;

constexpr int warps = 8, lanes = 32, threads = warps * lanes;
constexpr int warp_columns = 128, block_columns = warps * warp_columns;
constexpr int step_rows = 16, stages = 4, group_steps = 2, group_rows = group_steps * step_rows;
constexpr int pack = 8; // numbers of 16 bytes
constexpr int max_inner = 32;

struct Problem {
  const void *d_y, *weight, *x;
  int64_t d_y_stride, weight_stride, x_stride;
  float* d_x_parts;      // [strip, row, inner of the kernel]
  float* d_weight_parts; // [part, inner of the kernel, columns of all strips]
  int rows, width, inner;
  int strips, parts, groups; // groups of rows
};

template <int inner>
struct alignas(16) WarpStage {
  uint4 d_y[step_rows][warp_columns / pack];
  uint4 x[step_rows][inner / pack];
};

template <int inner>
struct Shared {
  WarpStage<inner> stage[warps][stages];
  float d_x[2][warps][group_rows][inner];
};

// Packs of a row are permuted, so that ldmatrix finds eight rows in different banks.
__device__ inline int place(int row, int of_pack) {
  return of_pack ^ (row & 7);
}

template <class T, int inner>
struct Warp {
  static constexpr int features = inner / 8; // groups of eight input features
  const Problem& p;
  WarpStage<inner> (&stage)[stages];
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int first_column; // of the warp, in d_y

  __device__ void load(int step, int row) const {
    WarpStage<inner>& to = stage[step % stages];
#pragma unroll
    for (int i = lane; i < step_rows * (warp_columns / pack); i += lanes) {
      const int r = i / (warp_columns / pack), each = i % (warp_columns / pack), column = first_column + each * pack;
      const bool exists = row + r < p.rows && column < p.width;
      const T* from = static_cast<const T*>(p.d_y) + (exists ? (row + r) * p.d_y_stride + column : 0);
      cp_async_16_if(shared_address(&to.d_y[r][place(r, each)]), from, exists);
    }
#pragma unroll
    for (int i = lane; i < step_rows * (inner / pack); i += lanes) {
      const int r = i / (inner / pack), feature = i % (inner / pack) * pack;
      const bool exists = row + r < p.rows && feature < p.inner;
      const T* from = static_cast<const T*>(p.x) + (exists ? (row + r) * p.x_stride + feature : 0);
      cp_async_16_if(shared_address(&to.x[r][i % (inner / pack)]), from, exists);
    }
  }

  // The weight of the warp's columns, as the right operand of d_y weight.
  __device__ void load_weight(uint32_t (&to)[warp_columns / 16][features][2]) const {
    const auto number = [&](int column, int feature) -> uint32_t {
      if (column >= p.width || feature >= p.inner) return 0;
      return reinterpret_cast<const unsigned short*>(p.weight)[column * p.weight_stride + feature];
    };
#pragma unroll
    for (int k = 0; k < warp_columns / 16; ++k)
#pragma unroll
      for (int n = 0; n < features; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = first_column + k * 16 + half * 8 + lane % 4 * 2, feature = n * 8 + lane / 4;
          to[k][n][half] = number(column, feature) | number(column + 1, feature) << 16;
        }
  }

  // Multiplies 16 rows: `d_x` gets their share of d_x, `d_weight` (transposed: [inner, columns]) is added to.
  __device__ void multiply(int step, const uint32_t (&weight)[warp_columns / 16][features][2],
                           float (&d_x)[features][4], float (&d_weight)[inner / 16][warp_columns / 8][4]) const {
    const WarpStage<inner>& from = stage[step % stages];
    const int row = lane % 8 + lane / 8 % 2 * 8, right = lane / 16; // of the 8 x 8 matrix that the lane's address is of
    uint32_t x[inner / 16][4];
#pragma unroll
    for (int m = 0; m < inner / 16; ++m)
      load_matrices<true>(x[m], shared_address(&from.x[lane % 8 + lane / 16 * 8][m * 2 + lane / 8 % 2]));
#pragma unroll
    for (int k = 0; k < warp_columns / 16; ++k) {
      const uint4* const at = &from.d_y[row][place(row, 2 * k + right)];
      uint32_t plain[4], transposed[4];
      load_matrices<false>(plain, shared_address(at));
      load_matrices<true>(transposed, shared_address(at));
#pragma unroll
      for (int n = 0; n < features; ++n) mma_16x8x16<T>(d_x[n], plain, weight[k][n][0], weight[k][n][1]);
#pragma unroll
      for (int m = 0; m < inner / 16; ++m) {
        mma_16x8x16<T>(d_weight[m][2 * k], x[m], transposed[0], transposed[1]);
        mma_16x8x16<T>(d_weight[m][2 * k + 1], x[m], transposed[2], transposed[3]);
      }
    }
  }
};

template <class T, int inner>
__global__ void __launch_bounds__(threads, 1) narrow_gradients_kernel(const Problem p) {
  extern __shared__ __align__(16) char memory[];
  Shared<inner>& s = *reinterpret_cast<Shared<inner>*>(memory);
  const int strip = static_cast<int>(blockIdx.x) % p.strips, part = static_cast<int>(blockIdx.x) / p.strips,
            warp_index = static_cast<int>(threadIdx.x) / lanes;
  const Warp<T, inner> warp{p, s.stage[warp_index], static_cast<int>(threadIdx.x) % lanes,
                            strip * block_columns + warp_index * warp_columns};
  const int begin = static_cast<int>(static_cast<int64_t>(p.groups) * part / p.parts),
            end = static_cast<int>(static_cast<int64_t>(p.groups) * (part + 1) / p.parts),
            steps = (end - begin) * group_steps, first_row = begin * group_rows;
  constexpr int features = inner / 8;
  uint32_t weight[warp_columns / 16][features][2];
  float d_weight[inner / 16][warp_columns / 8][4] = {};
  const auto load = [&](int step) {
    if (step < steps) warp.load(step, first_row + step * step_rows);
    cp_async_commit();
  };
  for (int step = 0; step < stages - 1; ++step) load(step);
  warp.load_weight(weight);
  const int lane = warp.lane;
  for (int group = begin; group < end; ++group) {
    const int buffer = (group - begin) % 2;
#pragma unroll
    for (int half = 0; half < group_steps; ++half) {
      const int step = (group - begin) * group_steps + half;
      cp_async_wait<stages - 2>();
      __syncwarp(); // all lanes' copies of this step are there, and all have read the stage that is loaded next
      load(step + stages - 1);
      float d_x[features][4] = {};
      warp.multiply(step, weight, d_x, d_weight);
#pragma unroll
      for (int n = 0; n < features; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* const to = &s.d_x[buffer][warp_index][half * step_rows + i * 8 + lane / 4][n * 8 + lane % 4 * 2];
          *reinterpret_cast<float2*>(to) = make_float2(d_x[n][2 * i], d_x[n][2 * i + 1]);
        }
    }
    // The other buffer is written in the next group, when all threads have added up this one's predecessor.
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < group_rows * inner; i += threads) {
      float sum = 0;
#pragma unroll
      for (int each = 0; each < warps; ++each) sum += s.d_x[buffer][each][i / inner][i % inner];
      const int row = group * group_rows + i / inner;
      if (row < p.rows) p.d_x_parts[(static_cast<int64_t>(strip) * p.rows + row) * inner + i % inner] = sum;
    }
  }
  const int64_t columns = static_cast<int64_t>(p.strips) * block_columns;
#pragma unroll
  for (int m = 0; m < inner / 16; ++m)
#pragma unroll
    for (int n = 0; n < warp_columns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int feature = m * 16 + i * 8 + lane / 4, column = warp.first_column + n * 8 + lane % 4 * 2;
        float* const to = p.d_weight_parts + (static_cast<int64_t>(part) * inner + feature) * columns + column;
        *reinterpret_cast<float2*>(to) = make_float2(d_weight[m][n][2 * i], d_weight[m][n][2 * i + 1]);
      }
}

// Adds up `count` numbers that are `distance` apart.
__device__ inline float sum_of(const float* first, int count, int64_t distance) {
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum += __ldcg(first + i * distance);
  return sum;
}

struct Outputs {
  void *d_x, *d_weight;
  int64_t d_x_stride;
  bool accumulate;
  int of_d_x; // blocks that write d_x; the others write d_weight
};

template <class T, class Gradient>
__global__ void __launch_bounds__(threads) sum_parts_kernel(const Problem p, const Outputs out, int inner) {
  const int64_t columns = static_cast<int64_t>(p.strips) * block_columns;
  if (static_cast<int>(blockIdx.x) < out.of_d_x) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x, row = index / inner;
    const int feature = static_cast<int>(index % inner);
    if (row >= p.rows || feature >= p.inner) return;
    static_cast<T*>(out.d_x)[row * out.d_x_stride + feature] =
        T(sum_of(p.d_x_parts + index, p.strips, static_cast<int64_t>(p.rows) * inner));
    return;
  }
  const int64_t index = (static_cast<int64_t>(blockIdx.x) - out.of_d_x) * threads + threadIdx.x,
                column = index % columns, feature = index / columns;
  if (column >= p.width || feature >= p.inner) return;
  const float sum = sum_of(p.d_weight_parts + feature * columns + column, p.parts, inner * columns);
  Gradient& element = static_cast<Gradient*>(out.d_weight)[column * p.inner + feature];
  element = Gradient(out.accumulate ? static_cast<float>(element) + sum : sum);
}

int64_t ceil_divide(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit;
}

int inner_of(const NarrowGradientsShape& shape) { // of the kernel
  return shape.inner <= 16 ? 16 : max_inner;
}

Problem problem_of(int multiprocessors, const NarrowGradientsShape& shape) {
  Problem p{};
  p.rows = static_cast<int>(shape.rows), p.width = static_cast<int>(shape.width);
  p.inner = static_cast<int>(shape.inner);
  p.strips = static_cast<int>(ceil_divide(shape.width, block_columns));
  p.groups = static_cast<int>(ceil_divide(shape.rows, group_rows));
  p.parts = std::clamp(multiprocessors / p.strips, 1, std::max(p.groups, 1));
  return p;
}

template <class T, int inner>
void launch(const Device& device, const Problem& p) {
  const auto kernel = narrow_gradients_kernel<T, inner>;
  constexpr int bytes = sizeof(Shared<inner>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  kernel<<<static_cast<unsigned>(p.strips * p.parts), threads, bytes, device.stream>>>(p);
  check_cuda(cudaGetLastError(), "launch");
}

} // namespace

bool narrow_gradients_support(const NarrowGradientsShape& shape, int shared_memory) {
  const std::size_t needed = inner_of(shape) == 16 ? sizeof(Shared<16>) : sizeof(Shared<max_inner>);
  return is_one_of<BFloat16, Half>(shape.dtype) && shape.inner <= max_inner && shape.inner % pack == 0 &&
         shape.width % pack == 0 && needed <= static_cast<std::size_t>(shared_memory);
}

bool narrow_gradients_take(const NarrowGradients& o) {
  const auto aligned = [](const Rows& rows) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.stride % pack == 0;
  };
  return aligned(o.d_y) && aligned(o.x);
}

int64_t narrow_gradients_workspace(int multiprocessors, const NarrowGradientsShape& shape) {
  const Problem p = problem_of(multiprocessors, shape);
  const int64_t of_d_x = int64_t{p.strips} * p.rows, of_d_weight = int64_t{p.parts} * p.strips * block_columns;
  return (of_d_x + of_d_weight) * inner_of(shape) * static_cast<int64_t>(sizeof(float));
}

void narrow_gradients(const Device& device, const NarrowGradientsShape& shape, const NarrowGradients& o,
                      void* workspace) {
  Problem p = problem_of(device.multiprocessors, shape);
  const int inner = inner_of(shape);
  p.d_y = o.d_y.data, p.weight = o.weight.data, p.x = o.x.data;
  p.d_y_stride = o.d_y.stride, p.weight_stride = o.weight.stride, p.x_stride = o.x.stride;
  p.d_weight_parts = static_cast<float*>(workspace);
  p.d_x_parts = p.d_weight_parts + int64_t{p.parts} * inner * p.strips * block_columns;
  dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    inner == 16 ? launch<T, 16>(device, p) : launch<T, max_inner>(device, p);
    dispatch<float, BFloat16, Half>(shape.gradient_dtype, [&](auto gradient) {
      const int64_t of_d_x = ceil_divide(shape.rows * inner, threads),
                    of_d_weight = int64_t{p.strips} * block_columns * inner / threads;
      const Outputs out{o.d_x.data, o.d_weight, o.d_x.stride, o.accumulate, static_cast<int>(of_d_x)};
      sum_parts_kernel<T, typename decltype(gradient)::type>
          <<<static_cast<unsigned>(of_d_x + of_d_weight), threads, 0, device.stream>>>(p, out, inner);
      check_cuda(cudaGetLastError(), "launch");
    });
  });
}

} // namespace fvlm::plugins
