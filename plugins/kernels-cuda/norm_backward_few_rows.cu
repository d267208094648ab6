// norm_backward_few_rows.cu: the backward of a norm in bfloat16 with at most 2,048 rows. One launch has two kinds of
// blocks: some compute d_x, a row per warp or block; the others, clusters of up to four, sum slices of 16 columns,
// reading d_y and s a second time out of the L2. That is faster than adding up partial sums. Not used if d_x overwrites
// d_y.
//
// Measured on an H200 (bench/LOG.md, 2026-11-23): rmsnorm of 1,088 x 576 in 3.5 us, of 64 rows in 2.06 us.
#include "common/cuda_gradient_sums.cuh"
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

constexpr int columns_of_slice = 16, max_parts = 4; // row parts of a slice, one block each
constexpr int max_rows_of_one_block = 512;          // rows

// Sums over the lanes whose indices differ by `lane_mask`, twice that and so on. In each step a lane passes on half of
// its sums while it has more than one; `first` becomes the index of the one it ends up with.
template <int count>
__device__ float sum_across(float (&sum)[count], int lane_mask, int& first) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int left = count / 2; left > 0; left /= 2, lane_mask *= 2) {
    const bool upper = thread & lane_mask;
    first += upper ? left : 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float mine = upper ? sum[i + left] : sum[i], other = upper ? sum[i] : sum[i + left];
      sum[i] = mine + __shfl_xor_sync(0xffffffffu, other, lane_mask);
    }
  }
  for (; lane_mask < warp_size; lane_mask *= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], lane_mask);
  return sum[0];
}

// The blocks of a cluster take the rows of a slice round-robin; the first block adds up the sums of all.
template <class Element, bool centered>
__device__ void sum_columns(const NormBackward& p, int rows, int width, const GradientSums& sums) {
  constexpr int size = pack_size<Element>, lanes = columns_of_slice / size, groups = block_threads / lanes;
  constexpr int parameters = centered ? 2 : 1, batch = 4, warps = block_threads / warp_size;
  __shared__ float arrived[max_parts * warps][parameters][columns_of_slice];
  const int parts = Cluster::size(), part = Cluster::rank(), thread = static_cast<int>(threadIdx.x);
  if (parts > 1) Cluster::arrive_relaxed();
  const int begin = static_cast<int>(blockIdx.x) / parts * columns_of_slice, lane = thread % lanes * size;
  const int which = thread / columns_of_slice, column = begin + thread % columns_of_slice;
  const bool adds = part == 0 && which < parameters && column < width;
  float before = 0;
  if (adds && sums.accumulate) with_gradient(sums, which, column, [&](auto* at) { before = static_cast<float>(*at); });

  struct Loaded {
    Pack<Element, size> d_y, s;
    float rstd, mean;
  };
  float sum[parameters][size] = {};
  if (begin + lane < width) {
    const int step = parts * groups;
    for (int first = part * groups + thread / lanes; first < rows; first += step * batch) {
      Loaded loaded[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int row = first + i * step;
        if (row >= rows) break;
        loaded[i].d_y.load(row_at<const Element>(p.d_y, row) + begin + lane);
        loaded[i].s.load(row_at<const Element>(p.s, row) + begin + lane);
        loaded[i].rstd = p.rstd[row];
        if constexpr (centered) loaded[i].mean = p.mean[row];
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (first + i * step >= rows) break;
        float d_y[size], s[size];
        loaded[i].d_y.widen(d_y);
        loaded[i].s.widen(s);
#pragma unroll
        for (int j = 0; j < size; ++j) {
          const float centered_value = centered ? s[j] - loaded[i].mean : s[j];
          sum[0][j] = fmaf(d_y[j], centered_value * loaded[i].rstd, sum[0][j]);
          if constexpr (centered) sum[1][j] += d_y[j];
        }
      }
    }
  }

  if (parts > 1) Cluster::wait(); // until the first block has started
#pragma unroll
  for (int i = 0; i < parameters; ++i) {
    int at = lane;
    const float total = sum_across(sum[i], lanes, at);
    if (thread % warp_size < columns_of_slice)
      Cluster::store(&arrived[part * warps + thread / warp_size][i][at], 0, total);
  }
  if (parts > 1) {
    Cluster::arrive();
    if (part > 0) return;
    Cluster::wait();
  } else {
    __syncthreads();
  }
  if (!adds) return;
  float total = 0;
  for (int i = 0; i < parts * warps; ++i) total += arrived[i][which][thread % columns_of_slice];
  with_gradient(sums, which, column, [&](auto* at) { *at = std::remove_pointer_t<decltype(at)>(before + total); });
}

template <class Element, int threads, int packs, bool centered>
__device__ void write_row(const NormBackward& p, int row, int width) {
  using Part = RowPart<Element, threads, packs>;
  constexpr int size = Part::size;
  const Part part{static_cast<int>(threadIdx.x % threads), width};
  typename Part::Values d_y[packs], s[packs], d_sum[packs], weight[packs];
  part.load(row_at<const Element>(p.d_y, row), d_y);
  part.load(row_at<const Element>(p.s, row), s);
  if (p.d_sum.data) part.load(row_at<const Element>(p.d_sum, row), d_sum);
  part.load(static_cast<const Element*>(p.weight), weight);
  const float rstd = p.rstd[row], mean = centered ? p.mean[row] : 0;

  const float inverse_width = 1 / static_cast<float>(width);
  float x_hat[packs][size], d_x_hat[packs][size];
  float mean_d_x_hat = 0, mean_d_x_hat_x_hat = 0; // sums over the row until they are divided by the width
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (!part.inside(i)) continue;
    float w[size];
    d_y[i].widen(d_x_hat[i]);
    s[i].widen(x_hat[i]);
    weight[i].widen(w);
#pragma unroll
    for (int j = 0; j < size; ++j) {
      x_hat[i][j] = (centered ? x_hat[i][j] - mean : x_hat[i][j]) * rstd;
      d_x_hat[i][j] *= w[j];
      mean_d_x_hat_x_hat = fmaf(d_x_hat[i][j], x_hat[i][j], mean_d_x_hat_x_hat);
      if constexpr (centered) mean_d_x_hat += d_x_hat[i][j];
    }
  }
  GroupSum<threads> sum;
  mean_d_x_hat_x_hat = sum(mean_d_x_hat_x_hat) * inverse_width;
  if constexpr (centered) mean_d_x_hat = sum(mean_d_x_hat) * inverse_width;
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (!part.inside(i)) continue;
    float other[size] = {};
    if (p.d_sum.data) d_sum[i].widen(other);
#pragma unroll
    for (int j = 0; j < size; ++j) other[j] += (d_x_hat[i][j] - mean_d_x_hat - x_hat[i][j] * mean_d_x_hat_x_hat) * rstd;
    write(row_at<Element>(p.d_x, row) + part.first(i), other);
  }
}

// The blocks that sum columns come first, as they take longer.
template <class Element, int threads, int packs, bool centered>
__global__ void __launch_bounds__(block_threads)
    few_rows_kernel(NormBackward p, int rows, int width, int summing_blocks, GradientSums sums) {
  const int block = static_cast<int>(blockIdx.x) - summing_blocks;
  if (block < 0) {
    sum_columns<Element, centered>(p, rows, width, sums);
    return;
  }
  const int row = block * (block_threads / threads) + static_cast<int>(threadIdx.x) / threads;
  if (row < rows) write_row<Element, threads, packs, centered>(p, row, width);
}

} // namespace

bool norm_backward_few_rows(const Device& device, const Shape& shape, const NormBackward& norm,
                            const GradientSums& sums) {
  using Element = BFloat16;
  static_assert(has_few_rows_kernels<Element>);
  if (!(shape.dtype == sdk::bfloat16) || !shape.vectorized || !sums.required() || shape.rows > max_few_rows ||
      norm.heads > 1 || norm.d_x.data == norm.d_y.data)
    return false;
  return with_row_parts<Element>(shape.width, false, [&](auto threads, auto packs) {
    const int rows = static_cast<int>(shape.rows), width = static_cast<int>(shape.width);
    const int parts = device.has_clusters && rows > max_rows_of_one_block ? max_parts : 1;
    const auto blocks_for = [](int count, int each) { return (count + each - 1) / each; };
    const int summing = blocks_for(width, columns_of_slice) * parts;
    const int writing = blocks_for(blocks_for(rows, block_threads / threads), parts) * parts;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(summing + writing));
    config.blockDim = dim3(block_threads);
    config.stream = device.stream;
    config.attrs = &cluster;
    config.numAttrs = parts > 1 ? 1 : 0;
    const auto kernel = norm.mean ? few_rows_kernel<Element, threads(), packs(), true>
                                  : few_rows_kernel<Element, threads(), packs(), false>;
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, norm, rows, width, summing, sums), "launch");
  });
}

} // namespace fvlm::plugins
