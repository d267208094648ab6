// norm_backward.cu: the gradients of rmsnorm and layernorm. A few blocks a multiprocessor go through all rows, so that
// each sums the parameters' gradients over many rows in its registers; sum_parts() adds up the blocks' sums.
#include "common/cuda_columns.cuh"
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

// What a thread holds, counted in registers: the sums, this row's packs and either the weight's or, where there is
// room, the next row's. Reading ahead was worth 5 to 8 % to layernorm and cost rmsnorm 1 to 7 %.
template <class Element, int packs, bool centered>
struct Budget {
  static constexpr int sums = packs * pack_size<Element> * (centered ? 2 : 1), row = packs * 12, others = 24;
  static constexpr bool reads_ahead = centered && sums + 2 * row + others <= 128;
  static constexpr int all = sums + row + (reads_ahead ? row : packs * 4) + others;
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

template <class Element, int threads, int packs, bool centered>
__global__ void __launch_bounds__(block_threads, Budget<Element, packs, centered>::blocks)
    rows_in_registers(NormBackward p, std::int64_t rows, int width, Parts parts) {
  using Part = RowPart<Element, threads, packs>;
  constexpr bool reads_ahead = Budget<Element, packs, centered>::reads_ahead;
  constexpr int size = Part::size, sums = centered ? 2 : 1;
  constexpr int rows_at_once = block_threads / threads;
  let_sum_parts_start();
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
      write(d_x + part.first(i), d);
    }
  }
  if (!parts.data) return;

  float* out = parts.data + static_cast<std::int64_t>(blockIdx.x) * sums * width;
  if constexpr (threads == block_threads) {
#pragma unroll
    for (int which = 0; which < sums; ++which)
#pragma unroll
      for (int i = 0; i < packs; ++i)
        if (part.inside(i)) write(out + which * width + part.first(i), d_parameter[which][i]);
  } else {
    // One warp's sums after the other's are added in shared memory, in the order of the warps.
    __shared__ float shared[sums][warp * packs * size];
    for (int turn = 0; turn < rows_at_once; ++turn) {
      if (static_cast<int>(threadIdx.x) / warp == turn) {
#pragma unroll
        for (int which = 0; which < sums; ++which)
#pragma unroll
          for (int i = 0; i < packs; ++i)
#pragma unroll
            for (int j = 0; j < size; ++j) {
              float& total = shared[which][(i * size + j) * warp + part.thread];
              total = turn == 0 ? d_parameter[which][i][j] : total + d_parameter[which][i][j];
            }
      }
      __syncthreads();
    }
    for (int column = static_cast<int>(threadIdx.x); column < width; column += block_threads) {
      const int pack = column / size, thread = pack % warp, i = pack / warp;
#pragma unroll
      for (int which = 0; which < sums; ++which)
        out[which * width + column] = shared[which][(i * size + column % size) * warp + thread];
    }
  }
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

// Any width and any alignment: the parameters' gradients alone.
template <class Type, bool centered>
struct ParameterGradients {
  using Element = Type;
  static constexpr int size = 1, sums = centered ? 2 : 1, rows_at_once = 2;
  struct Column {};
  struct Row {
    Element d_y, s;
  };
  NormBackward p;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    return {*at<const Element>(p.d_y, row, first), *at<const Element>(p.s, row, first)};
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t row, std::int64_t, float (&sum)[sums][1]) const {
    const float d_y = static_cast<float>(loaded.d_y), mean = centered ? p.mean[row] : 0.0f;
    sum[0][0] = fmaf(d_y, (static_cast<float>(loaded.s) - mean) * p.inverse[row], sum[0][0]);
    if constexpr (centered) sum[1][0] += d_y;
  }
};

template <class Element>
int by_elements(const Device& device, const Shape& shape, const NormBackward& norm, const Parts& parts) {
  if (shape.rows > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows", static_cast<long long>(shape.rows));
  int blocks = 0;
  // First the sums, since d_x may lie in the memory of d_y.
  if (parts.data && norm.mean)
    blocks = launch_by_columns(device, shape.rows, shape.width, ParameterGradients<Element, true>{norm}, parts);
  else if (parts.data)
    blocks = launch_by_columns(device, shape.rows, shape.width, ParameterGradients<Element, false>{norm}, parts);
  rows_by_elements<Element><<<static_cast<unsigned>(shape.rows), block_threads, 0, device.stream>>>(norm, shape.width);
  return blocks;
}

} // namespace

int most_parts(std::int64_t rows, int multiprocessors) {
  return static_cast<int>(std::clamp<std::int64_t>(rows, 1, 4 * static_cast<std::int64_t>(multiprocessors)));
}

int norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const Parts& parts) {
  if (shape.rows == 0) return 0;
  int blocks = 0;
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const bool done =
        shape.wide && with_row_parts<Element>(shape.width, [&](auto threads, auto packs) {
          constexpr int rows_at_once = block_threads / threads();
          const auto enqueue = [&](auto centered) {
            const std::int64_t most = device.multiprocessors * Budget<Element, packs(), centered()>::blocks;
            blocks = static_cast<int>(std::min(most, (shape.rows + rows_at_once - 1) / rows_at_once));
            if (parts.data) blocks = std::min(blocks, parts.most);
            rows_in_registers<Element, threads(), packs(), centered()>
                <<<blocks, block_threads, 0, device.stream>>>(norm, shape.rows, static_cast<int>(shape.width), parts);
          };
          if (norm.mean)
            enqueue(std::true_type{});
          else
            enqueue(std::false_type{});
        });
    if (!done) blocks = by_elements<Element>(device, shape, norm, parts);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
  return blocks;
}

} // namespace fvlm::plugins
