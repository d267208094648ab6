// norm_backward.cu: the gradients of rmsnorm and layernorm. A few blocks a multiprocessor go through all rows, so that
// each sums the parameters' gradients over many rows in its registers. A cluster's blocks add their sums by way of
// shared memory, each a slice of the columns; what is left are the clusters' parts of each slice. Few rows have a way
// of their own: norm_backward_few.cu.
#include "common/cuda_columns.cuh"
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

constexpr int most_of_cluster = 4; // blocks; in a step two and eight are slower (bench/LOG.md)

// How many columns of a parameter are one block's of a cluster to add up.
__device__ int slice_of(int width, int blocks) {
  return ((width + blocks - 1) / blocks + 3) / 4 * 4;
}

// What a thread holds, counted in registers: the sums, this row's packs and either the weight's or, where there is
// room, the next row's. Reading ahead was worth 5 to 8 % to layernorm and cost rmsnorm 1 to 7 %.
template <class Element, int packs, int sums>
struct Budget {
  static constexpr int held = packs * pack_size<Element> * sums, row = packs * 12, others = 24;
  static constexpr bool reads_ahead = sums > 1 && held + 2 * row + others <= 128;
  static constexpr int all = held + row + (reads_ahead ? row : packs * 4) + others;
  static constexpr int blocks = all <= 56 ? 4 : all <= 76 ? 3 : all <= 128 ? 2 : 1; // of a multiprocessor
};

template <class Part>
struct BackwardRow {
  typename Part::Values d_y[Part::packs], s[Part::packs], d_sum[Part::packs];
  float inverse, mean;

  __device__ void load(const NormBackward& p, const Part& part, std::int64_t row) {
    using Element = typename Part::Element;
    part.load(row_at<const Element>(p.d_y, row), d_y);
    part.load(row_at<const Element>(p.s, row), s);
    if (p.d_sum.data) part.load(row_at<const Element>(p.d_sum, row), d_sum);
    inverse = p.inverse[row];
    mean = p.mean ? p.mean[row] : 0.0f;
  }
};

// The parameters' gradients alone.
template <class Type, int pack, bool centered>
struct ParameterGradients : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
  static constexpr int sums = centered ? 2 : 1;
  struct Column {};
  struct Row {
    Values d_y, s;
    float inverse, mean;
  };
  NormBackward p;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.d_y.load(at<Type>(p.d_y, row, first));
    loaded.s.load(at<Type>(p.s, row, first));
    loaded.inverse = p.inverse[row];
    loaded.mean = centered ? p.mean[row] : 0.0f;
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t, std::int64_t, float (&sum)[sums][pack]) const {
    float d_y[pack], s[pack];
    loaded.d_y.widen(d_y);
    loaded.s.widen(s);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      sum[0][i] = fmaf(d_y[i], (s[i] - loaded.mean) * loaded.inverse, sum[0][i]);
      if constexpr (centered) sum[1][i] += d_y[i];
    }
  }
};

// sums: 1, rmsnorm's weight; 2, layernorm's weight and bias; 3, and d_x.
template <class Element, int threads, int packs, int sums>
__global__ void __launch_bounds__(block_threads, Budget<Element, packs, sums>::blocks)
    rows_in_registers(NormBackward p, std::int64_t rows, int width, Sums all_sums) {
  constexpr bool centered = sums > 1;
  using Part = RowPart<Element, threads, packs>;
  constexpr bool reads_ahead = Budget<Element, packs, sums>::reads_ahead;
  constexpr int size = Part::size;
  constexpr int rows_at_once = block_threads / threads;
  const int ranks = Cluster::blocks(), rank = Cluster::rank(), slice_width = slice_of(width, ranks);
  const Slice slice{rank,
                    static_cast<int>(blockIdx.x) / ranks,
                    static_cast<int>(gridDim.x) / ranks,
                    sums,
                    slice_width,
                    static_cast<std::int64_t>(rank) * slice_width,
                    width};
  if (all_sums.wanted()) begin_sums(all_sums, slice);
  const Part part{static_cast<int>(threadIdx.x % threads), width};
  const float inverse_width = 1 / static_cast<float>(width);
  const Element* const weight = static_cast<const Element*>(p.weight);
  typename Part::Values held_weight[packs];
  if constexpr (!reads_ahead) part.load(weight, held_weight);
  const auto read_weight = [&](int i, float(&values)[size]) {
    if constexpr (reads_ahead)
      read(weight + part.first(i), values);
    else
      held_weight[i].widen(values);
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_at_once;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_at_once + threadIdx.x / threads;
  float d_parameter[sums][packs][size] = {};
  GroupSum<threads> sum;
  BackwardRow<Part> now, next;
  if (reads_ahead && row < rows) next.load(p, part, row);
  for (; row < rows; row += step) {
    if constexpr (reads_ahead) {
      now = next;
      if (row + step < rows) next.load(p, part, row + step);
    } else {
      now.load(p, part, row);
    }
    float plain = 0, along = 0; // sums of d_y weight, and of the same times the normalised row
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      float d[size], values[size], w[size];
      now.d_y[i].widen(d);
      now.s[i].widen(values);
      read_weight(i, w);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float normal = (values[j] - now.mean) * now.inverse, through = d[j] * w[j];
        along = fmaf(through, normal, along);
        d_parameter[0][i][j] = fmaf(d[j], normal, d_parameter[0][i][j]);
        if constexpr (centered) {
          plain += through;
          d_parameter[1][i][j] += d[j];
        }
      }
    }
    along = sum(along) * inverse_width;
    if constexpr (centered) plain = sum(plain) * inverse_width;
    Element* d_x = row_at<Element>(p.d_x, row);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      float d[size], values[size], w[size];
      now.d_y[i].widen(d);
      now.s[i].widen(values);
      read_weight(i, w);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float normal = (values[j] - now.mean) * now.inverse;
        d[j] = (fmaf(d[j], w[j], -plain) - normal * along) * now.inverse;
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
  if (!all_sums.wanted()) return;

  constexpr int columns = threads * packs * size, at_once = sums * columns <= 8192 ? sums : 1;
  __shared__ alignas(32) float shared[at_once][columns];
  for (int first = 0; first < sums; first += at_once) {
    if (first > 0) Cluster::arrive(), Cluster::wait(); // others may still read the sums before
    for (int turn = 0; turn < rows_at_once; ++turn) {  // the warps in their order
      if (turn > 0) __syncthreads();
      if (static_cast<int>(threadIdx.x) / threads != turn) continue;
#pragma unroll
      for (int which = 0; which < sums; ++which) {
        if (which < first || which >= first + at_once) continue;
#pragma unroll
        for (int i = 0; i < packs; ++i) {
          if (!part.inside(i)) continue;
          float* total = &shared[which - first][part.first(i)];
          if (turn > 0) {
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
    for (int item = static_cast<int>(threadIdx.x) * 4; item < at_once * slice_width; item += block_threads * 4) {
      const int which = item / slice_width, column = item - which * slice_width, at = rank * slice_width + column;
      if (at >= width) continue;
      float4 of_rank[most_of_cluster]{}, total{};
#pragma unroll
      for (int other = 0; other < most_of_cluster; ++other)
        if (other < ranks) of_rank[other] = Cluster::read(&shared[which][at], other);
#pragma unroll
      for (int other = 0; other < most_of_cluster; ++other) add(total, of_rank[other]);
      put(all_sums, slice, first + which, column, total);
    }
  }
  Cluster::arrive();
  finish_sums(all_sums, slice);
  Cluster::wait(); // shared memory stays while others read it
}

// Any width and any alignment: a block a row, element by element.
template <class Element>
__global__ void __launch_bounds__(block_threads) rows_by_elements(NormBackward p, std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  const Element *d_y = row_at<const Element>(p.d_y, row), *s = row_at<const Element>(p.s, row);
  const Element* weight = static_cast<const Element*>(p.weight);
  const float inverse = p.inverse[row], mean = p.mean ? p.mean[row] : 0.0f;
  float plain = 0, along = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
    const float through = static_cast<float>(d_y[i]) * static_cast<float>(weight[i]);
    along = fmaf(through, (static_cast<float>(s[i]) - mean) * inverse, along);
    plain += through;
  }
  GroupSum<block_threads> sum;
  along = sum(along) / static_cast<float>(width);
  plain = p.mean ? sum(plain) / static_cast<float>(width) : 0.0f;
  const Element* d_sum = p.d_sum.data ? row_at<const Element>(p.d_sum, row) : nullptr;
  Element* d_x = row_at<Element>(p.d_x, row);
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
    const float normal = (static_cast<float>(s[i]) - mean) * inverse;
    const float d = fmaf(static_cast<float>(d_y[i]), static_cast<float>(weight[i]), -plain) - normal * along;
    d_x[i] = Element(d * inverse + (d_sum ? static_cast<float>(d_sum[i]) : 0.0f));
  }
}

template <class Element>
void by_elements(const Device& device, const Shape& shape, const NormBackward& norm, const Sums& sums) {
  if (shape.rows > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows", static_cast<long long>(shape.rows));
  // First the parameters' sums, since d_x may lie in the memory of d_y.
  const bool of_parameters = sums.out[0] || sums.out[1];
  if (of_parameters && norm.mean)
    launch_by_columns(device, shape.rows, shape.width, ParameterGradients<Element, 1, true>{{}, norm}, sums);
  else if (of_parameters)
    launch_by_columns(device, shape.rows, shape.width, ParameterGradients<Element, 1, false>{{}, norm}, sums);
  rows_by_elements<Element><<<static_cast<unsigned>(shape.rows), block_threads, 0, device.stream>>>(norm, shape.width);
}

// By a kernel of their own, behind the other: of few rows sooner than by clusters.
void sum_d_x(const Device& device, const Shape& shape, const NormBackward& norm, const Sums& sums) {
  Sums alone = sums;
  alone.out[0] = sums.out[2], alone.out[1] = alone.out[2] = nullptr;
  with_packs(shape, [&](auto element, auto size) {
    launch_by_columns(device, shape.rows, shape.width,
                      ColumnSums<typename decltype(element)::type, size()>{{}, norm.d_x}, alone);
  });
}

// With as many blocks as there are rows for and as can be under way at once.
template <class Element, int threads, int packs, int all_sums>
void in_registers(const Device& device, const Shape& shape, const NormBackward& norm, const Sums& sums) {
  const auto kernel = rows_in_registers<Element, threads, packs, all_sums>;
  constexpr int rows_at_once = block_threads / threads, of_multiprocessor = Budget<Element, packs, all_sums>::blocks;
  const std::int64_t needed = (shape.rows + rows_at_once - 1) / rows_at_once;
  std::int64_t blocks = std::min<std::int64_t>(needed, device.multiprocessors * of_multiprocessor);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {most_of_cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(block_threads);
  config.stream = device.stream;
  config.attrs = &cluster;
  if (sums.wanted() && device.has_clusters) {
    config.numAttrs = 1;
    if (needed <= most_of_cluster) { // one that leaves no parts to add up
      unsigned& size = cluster.val.clusterDim.x;
      size = 1;
      while (size < needed) size *= 2;
      blocks = size;
    } else {
      config.gridDim = dim3(most_of_cluster);
      static const int resident = [&] { // of the first device that is used: those of a process are alike
        int clusters = 0;
        sdk::check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
        return std::max(1, clusters);
      }();
      blocks = std::min<std::int64_t>((blocks + most_of_cluster - 1) / most_of_cluster, resident) * most_of_cluster;
    }
  }
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, norm, shape.rows, static_cast<int>(shape.width), sums), "launch");
}

} // namespace

bool norms_have_clusters(fvlm_device device) {
  int has = 0;
  sdk::check_cuda(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device.id), "whether there are clusters");
  cudaFuncAttributes code{};
  sdk::check_cuda(cudaFuncGetAttributes(&code, rows_in_registers<BFloat16, warp, 2, 1>), "what a kernel is made for");
  return has != 0 && code.ptxVersion >= 90; // older code, translated for this device, takes each block for a cluster
}

std::int64_t norm_parts(std::int64_t rows, const Device& device) {
  const std::int64_t blocks = most_summing_blocks(device.multiprocessors);
  return std::min(rows, device.has_clusters ? blocks / most_of_cluster : blocks);
}

void norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const Sums& sums) {
  if (shape.rows == 0) return;
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    bool summed = !sums.out[2];
    const auto by_rows = [&](auto threads, auto packs) {
      constexpr bool has_room = sizeof(Element) == 2 && threads() == warp;
      if constexpr (has_room) {
        if (norm.mean && !summed && shape.rows > most_of_few) {
          in_registers<Element, threads(), packs(), 3>(device, shape, norm, sums);
          summed = true;
          return;
        }
      }
      if (norm.mean)
        in_registers<Element, threads(), packs(), 2>(device, shape, norm, sums);
      else
        in_registers<Element, threads(), packs(), 1>(device, shape, norm, sums);
    };
    const bool done = norm_backward_of_few(device, shape, norm, sums) ||
                      (shape.wide && with_row_parts<Element>(shape.width, false, by_rows));
    if (!done) by_elements<Element>(device, shape, norm, sums);
    if (!summed) sum_d_x(device, shape, norm, sums);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
