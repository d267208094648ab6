// norm_backward.cu: the backward of rmsnorm and layernorm: d_x, the gradients of weight and bias, and optionally the
// column sums of d_x.
//
// A warp (or, for wide rows, a block) holds a row in registers. A few blocks per multiprocessor iterate over all rows
// and keep the parameter gradients of their rows in registers. The blocks of a cluster of four add these in distributed
// shared memory, each block a slice of the columns, and the last cluster to arrive adds the clusters' partial sums, all
// in one launch. Few rows have a kernel of their own: norm_backward_few_rows.cu.
//
// Measured on an H100, bf16, buffers larger than the L2 (bench/LOG.md, 2026-11-22, sums in one launch): layernorm of
// 16,448 x 384 22.1 us, of 131,584 x 384 114.9 us; rmsnorm with residual of 8,704 x 576 22.6 us, of 16,384 x 2,048 96.7
// us.
#include "common/cuda_columns.cuh"
#include "common/cuda_device.h"
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

constexpr int max_cluster_blocks = 4; // measured in a whole training step: two and eight are slower (bench/LOG.md)

// Columns of a parameter that one block of a cluster adds up.
__device__ int slice_of(int width, int blocks) {
  return ((width + blocks - 1) / blocks + 3) / 4 * 4;
}

// Registers of a thread: the sums, the packs of this row, and either the weight's packs or, if there is room, those of
// the next row. Prefetching the next row gained 5 to 8 % for layernorm and cost rmsnorm 1 to 7 %.
template <class Element, int packs, int sums>
struct Budget {
  static constexpr int sum_registers = packs * pack_size<Element> * sums, row = packs * 12, others = 24;
  static constexpr bool prefetches = sums > 1 && sum_registers + 2 * row + others <= 128;
  static constexpr int all = sum_registers + row + (prefetches ? row : packs * 4) + others;
  static constexpr int blocks = all <= 56 ? 4 : all <= 76 ? 3 : all <= 128 ? 2 : 1; // per multiprocessor
};

template <class Part>
struct BackwardRow {
  typename Part::Values d_y[Part::packs], s[Part::packs], d_sum[Part::packs];
  float rstd, mean;

  __device__ void load(const NormBackward& p, const Part& part, std::int64_t row) {
    using Element = typename Part::Element;
    const int width = part.width;
    part.load(row_at<const Element>(p, p.d_y, row, width), d_y);
    part.load(row_at<const Element>(p, p.s, row, width), s);
    if (p.d_sum.data) part.load(row_at<const Element>(p, p.d_sum, row, width), d_sum);
    rstd = p.rstd[row];
    mean = p.mean ? p.mean[row] : 0.0f;
  }
};

// The parameter gradients alone, for rows that no register kernel takes.
template <class Type, int pack, bool centered>
struct ParameterGradients : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = centered ? 2 : 1;
  struct Column {};
  struct Row {
    Values d_y, s;
    float rstd, mean;
  };
  NormBackward p;
  std::int64_t width;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.d_y.load(row_at<const Type>(p, p.d_y, row, width) + first);
    loaded.s.load(row_at<const Type>(p, p.s, row, width) + first);
    loaded.rstd = p.rstd[row];
    loaded.mean = centered ? p.mean[row] : 0.0f;
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t, std::int64_t, float (&sum)[sums][pack]) const {
    float d_y[pack], s[pack];
    loaded.d_y.widen(d_y);
    loaded.s.widen(s);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      sum[0][i] = fmaf(d_y[i], (s[i] - loaded.mean) * loaded.rstd, sum[0][i]);
      if constexpr (centered) sum[1][i] += d_y[i];
    }
  }
};

// sums: 1, rmsnorm's weight; 2, layernorm's weight and bias; 3, also the column sums of d_x.
template <class Element, int threads, int packs, int sums>
__global__ void __launch_bounds__(block_threads, Budget<Element, packs, sums>::blocks)
    rows_in_registers(NormBackward p, std::int64_t rows, int width, GradientSums all_sums) {
  constexpr bool centered = sums > 1;
  using Part = RowPart<Element, threads, packs>;
  constexpr bool prefetches = Budget<Element, packs, sums>::prefetches;
  constexpr int size = Part::size;
  constexpr int rows_in_flight = block_threads / threads;
  const int ranks = Cluster::size(), rank = Cluster::rank(), slice_width = slice_of(width, ranks);
  const Slice slice{rank,
                    static_cast<int>(blockIdx.x) / ranks,
                    static_cast<int>(gridDim.x) / ranks,
                    sums,
                    slice_width,
                    static_cast<std::int64_t>(rank) * slice_width,
                    width};
  if (all_sums.required()) begin_sums(all_sums, slice);
  const Part part{static_cast<int>(threadIdx.x % threads), width};
  const float inverse_width = 1 / static_cast<float>(width);
  const Element* const weight = static_cast<const Element*>(p.weight);
  typename Part::Values held_weight[packs];
  if constexpr (!prefetches) part.load(weight, held_weight);
  const auto read_weight = [&](int i, float(&values)[size]) {
    if constexpr (prefetches)
      read(weight + part.first(i), values);
    else
      held_weight[i].widen(values);
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_in_flight;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_in_flight + threadIdx.x / threads;
  float d_parameter[sums][packs][size] = {};
  GroupSum<threads> sum;
  BackwardRow<Part> now, next;
  if (prefetches && row < rows) next.load(p, part, row);
  for (; row < rows; row += step) {
    if constexpr (prefetches) {
      now = next;
      if (row + step < rows) next.load(p, part, row + step);
    } else {
      now.load(p, part, row);
    }
    float mean_d_x_hat = 0, mean_d_x_hat_x_hat = 0; // sums over the row until they are divided by the width
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      float d[size], values[size], w[size];
      now.d_y[i].widen(d);
      now.s[i].widen(values);
      read_weight(i, w);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float x_hat = (values[j] - now.mean) * now.rstd, d_x_hat = d[j] * w[j];
        mean_d_x_hat_x_hat = fmaf(d_x_hat, x_hat, mean_d_x_hat_x_hat);
        d_parameter[0][i][j] = fmaf(d[j], x_hat, d_parameter[0][i][j]);
        if constexpr (centered) {
          mean_d_x_hat += d_x_hat;
          d_parameter[1][i][j] += d[j];
        }
      }
    }
    mean_d_x_hat_x_hat = sum(mean_d_x_hat_x_hat) * inverse_width;
    if constexpr (centered) mean_d_x_hat = sum(mean_d_x_hat) * inverse_width;
    Element* d_x = row_at<Element>(p, p.d_x, row, width);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      float d[size], values[size], w[size];
      now.d_y[i].widen(d);
      now.s[i].widen(values);
      read_weight(i, w);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float x_hat = (values[j] - now.mean) * now.rstd;
        d[j] = (fmaf(d[j], w[j], -mean_d_x_hat) - x_hat * mean_d_x_hat_x_hat) * now.rstd;
      }
      if (p.d_sum.data) {
        float other[size];
        now.d_sum[i].widen(other);
#pragma unroll
        for (int j = 0; j < size; ++j) d[j] += other[j];
      }
      if constexpr (sums == 3) {
#pragma unroll
        for (int j = 0; j < size; ++j) d_parameter[2][i][j] += d[j];
      }
      write(d_x + part.first(i), d);
    }
  }
  if (!all_sums.required()) return;

  constexpr int columns = threads * packs * size, batch = sums * columns <= 8192 ? sums : 1;
  __shared__ alignas(32) float shared[batch][columns];
  for (int first = 0; first < sums; first += batch) {
    if (first > 0) Cluster::arrive(), Cluster::wait();                 // other blocks may still read the previous sums
    for (int row_group = 0; row_group < rows_in_flight; ++row_group) { // the warps add theirs one after the other
      if (row_group > 0) __syncthreads();
      if (static_cast<int>(threadIdx.x) / threads != row_group) continue;
#pragma unroll
      for (int which = 0; which < sums; ++which) {
        if (which < first || which >= first + batch) continue;
#pragma unroll
        for (int i = 0; i < packs; ++i) {
          if (!part.inside(i)) continue;
          float* total = &shared[which - first][part.first(i)];
          if (row_group > 0) {
            float before[size];
            read(total, before);
#pragma unroll
            for (int j = 0; j < size; ++j) d_parameter[which][i][j] += before[j];
          }
          write(total, d_parameter[which][i]);
        }
      }
    }
    Cluster::arrive();
    Cluster::wait();
    for (int item = static_cast<int>(threadIdx.x) * 4; item < batch * slice_width; item += block_threads * 4) {
      const int which = item / slice_width, column = item - which * slice_width, at = rank * slice_width + column;
      if (at >= width) continue;
      float4 of_rank[max_cluster_blocks]{}, total{};
#pragma unroll
      for (int other = 0; other < max_cluster_blocks; ++other)
        if (other < ranks) of_rank[other] = Cluster::load(&shared[which][at], other);
#pragma unroll
      for (int other = 0; other < max_cluster_blocks; ++other) add(total, of_rank[other]);
      store_partial(all_sums, slice, first + which, column, total);
    }
  }
  Cluster::arrive();
  add_partials(all_sums, slice);
  Cluster::wait(); // keeps shared memory alive while other blocks read it
}

// Any width and alignment: one block per row, element by element.
template <class Element>
__global__ void __launch_bounds__(block_threads) scalar_rows(NormBackward p, std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  const Element *d_y = row_at<const Element>(p, p.d_y, row, width), *s = row_at<const Element>(p, p.s, row, width);
  const Element* weight = static_cast<const Element*>(p.weight);
  const float rstd = p.rstd[row], mean = p.mean ? p.mean[row] : 0.0f;
  float mean_d_x_hat = 0, mean_d_x_hat_x_hat = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
    const float d_x_hat = static_cast<float>(d_y[i]) * static_cast<float>(weight[i]);
    mean_d_x_hat_x_hat = fmaf(d_x_hat, (static_cast<float>(s[i]) - mean) * rstd, mean_d_x_hat_x_hat);
    mean_d_x_hat += d_x_hat;
  }
  GroupSum<block_threads> sum;
  mean_d_x_hat_x_hat = sum(mean_d_x_hat_x_hat) / static_cast<float>(width);
  mean_d_x_hat = p.mean ? sum(mean_d_x_hat) / static_cast<float>(width) : 0.0f;
  const Element* d_sum = p.d_sum.data ? row_at<const Element>(p, p.d_sum, row, width) : nullptr;
  Element* d_x = row_at<Element>(p, p.d_x, row, width);
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
    const float x_hat = (static_cast<float>(s[i]) - mean) * rstd;
    const float d =
        fmaf(static_cast<float>(d_y[i]), static_cast<float>(weight[i]), -mean_d_x_hat) - x_hat * mean_d_x_hat_x_hat;
    d_x[i] = Element(d * rstd + (d_sum ? static_cast<float>(d_sum[i]) : 0.0f));
  }
}

template <class Element>
void launch_scalar(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums) {
  if (shape.rows > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows exceed the grid", static_cast<long long>(shape.rows));
  // Parameter gradients come first, since d_x may overwrite d_y.
  const bool of_parameters = sums.out[0] || sums.out[1];
  if (of_parameters && norm.mean)
    launch_column_kernel(device, shape.rows, shape.width, ParameterGradients<Element, 1, true>{{}, norm, shape.width},
                         sums);
  else if (of_parameters)
    launch_column_kernel(device, shape.rows, shape.width, ParameterGradients<Element, 1, false>{{}, norm, shape.width},
                         sums);
  scalar_rows<Element><<<static_cast<unsigned>(shape.rows), block_threads, 0, device.stream>>>(norm, shape.width);
}

// Column sums of d_x in a second launch. For few rows that is faster than clusters.
void sum_d_x(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums) {
  GradientSums alone = sums;
  alone.out[0] = sums.out[2], alone.out[1] = alone.out[2] = nullptr;
  with_packs(shape, [&](auto element, auto size) {
    launch_column_kernel(device, shape.rows, shape.width,
                         ColumnSums<typename decltype(element)::type, size()>{{}, norm.d_x}, alone);
  });
}

// With as many blocks as the rows need, up to what is resident at once.
template <class Element, int threads, int packs, int all_sums>
void launch_in_registers(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums) {
  const auto kernel = rows_in_registers<Element, threads, packs, all_sums>;
  constexpr int rows_in_flight = block_threads / threads, of_multiprocessor = Budget<Element, packs, all_sums>::blocks;
  const std::int64_t needed = (shape.rows + rows_in_flight - 1) / rows_in_flight;
  std::int64_t blocks = std::min<std::int64_t>(needed, device.multiprocessors * of_multiprocessor);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {max_cluster_blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(block_threads);
  config.stream = device.stream;
  config.attrs = &cluster;
  if (sums.required() && device.has_clusters) {
    config.numAttrs = 1;
    if (needed <= max_cluster_blocks) { // a single cluster, which leaves no partial sums
      unsigned& size = cluster.val.clusterDim.x;
      size = 1;
      while (size < needed) size *= 2;
      blocks = size;
    } else {
      config.gridDim = dim3(max_cluster_blocks);
      static const int resident = [&] { // of the first device used; the devices of a process are assumed to be alike
        int clusters = 0;
        sdk::check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
        return std::max(1, clusters);
      }();
      blocks =
          std::min<std::int64_t>((blocks + max_cluster_blocks - 1) / max_cluster_blocks, resident) * max_cluster_blocks;
    }
  }
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, norm, shape.rows, static_cast<int>(shape.width), sums), "launch");
}

} // namespace

bool norms_use_clusters(fvlm_device device) {
  int has = 0;
  sdk::check_cuda(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device.id), "cudaDevAttrClusterLaunch");
  return has != 0 && is_compiled_for_hopper(rows_in_registers<BFloat16, warp_size, 2, 1>);
}

std::int64_t max_norm_parts(std::int64_t rows, const Device& device) {
  const std::int64_t blocks = max_summing_blocks(device.multiprocessors);
  return std::min(rows, device.has_clusters ? blocks / max_cluster_blocks : blocks);
}

void norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums) {
  if (shape.rows == 0) return;
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    bool summed = !sums.out[2];
    const auto by_rows = [&](auto threads, auto packs) {
      constexpr bool has_room = sizeof(Element) == 2 && threads() == warp_size;
      if constexpr (has_room) {
        if (norm.mean && !summed && shape.rows > max_few_rows) {
          launch_in_registers<Element, threads(), packs(), 3>(device, shape, norm, sums);
          summed = true;
          return;
        }
      }
      if (norm.mean)
        launch_in_registers<Element, threads(), packs(), 2>(device, shape, norm, sums);
      else
        launch_in_registers<Element, threads(), packs(), 1>(device, shape, norm, sums);
    };
    const bool done = norm_backward_few_rows(device, shape, norm, sums) ||
                      (shape.vectorized && with_row_parts<Element>(shape.width, false, by_rows));
    if (!done) launch_scalar<Element>(device, shape, norm, sums);
    if (!summed) sum_d_x(device, shape, norm, sums);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
