// norm_forward.cu: rmsnorm and layernorm, optionally of x + residual, whose rounded sum is written too, with
// compensation for what rounding loses.
//
// A warp holds a row in registers, or a block if the row is wider; one pass over memory. Measured on an H100, bf16,
// buffers larger than the L2 (bench/LOG.md, 2026-11-22): layernorm of 16,448 x 384 11.8 us, of 131,584 x 384 70.7 us
// (2,873 GB/s); rmsnorm with residual of 16,384 x 2,048 91.8 us (2,926 GB/s, where a plain copy reaches 3,029).
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

// x becomes x + residual + compensation rounded to the element type, which is what backward reads. `compensation`
// becomes what rounding loses.
template <class Element, int count>
__device__ void add_rounded(Pack<Element, count>& x, const Pack<Element, count>& residual,
                            Pack<Element, count>* compensation = nullptr) {
  float sum[count], other[count];
  x.widen(sum);
  residual.widen(other);
#pragma unroll
  for (int i = 0; i < count; ++i) sum[i] += other[i];
  if (compensation) {
    compensation->widen(other);
#pragma unroll
    for (int i = 0; i < count; ++i) sum[i] += other[i];
  }
  x.round(sum);
  if (!compensation) return;
  x.widen(other);
#pragma unroll
  for (int i = 0; i < count; ++i) sum[i] -= other[i];
  compensation->round(sum);
}

// early: the parameters are loaded before the rows arrive. That takes registers which layernorm of many rows does not
// have.
template <class Element, int threads, int packs, bool centered, bool early>
__global__ void __launch_bounds__(block_threads) rows_in_registers(NormForward p, std::int64_t rows, int width) {
  using Part = RowPart<Element, threads, packs>;
  constexpr int size = Part::size;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / threads) + threadIdx.x / threads;
  start_next_kernel(); // the former one has ended
  if (row >= rows) return;
  const Part part{static_cast<int>(threadIdx.x % threads), width};
  typename Part::Values s[packs], residual[packs], compensation[packs]{}, weights[packs], biases[packs];
  part.load(row_at<const Element>(p, p.x, row, width), s);
  if (p.residual.data) part.load(row_at<const Element>(p, p.residual, row, width), residual);
  if (p.compensation.data) part.load(row_at<const Element>(p, p.compensation, row, width), compensation);
  const Element *weight = static_cast<const Element*>(p.weight), *bias = static_cast<const Element*>(p.bias);
  if constexpr (early) part.load(weight, weights);
  if constexpr (early && centered) part.load(bias, biases);
  if (p.residual.data) {
    Element* sum = row_at<Element>(p, p.sum, row, width);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      if (p.sum_compensation.data) {
        add_rounded(s[i], residual[i], &compensation[i]);
        compensation[i].store(row_at<Element>(p, p.sum_compensation, row, width) + part.first(i));
      } else {
        add_rounded(s[i], residual[i]);
      }
      s[i].store(sum + part.first(i));
    }
  }

  const float inverse_width = 1 / static_cast<float>(width);
  GroupSum<threads> sum;
  float mean = 0, squares = 0;
  if constexpr (centered) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (!part.inside(i)) continue;
      float values[size];
      s[i].widen(values);
#pragma unroll
      for (int j = 0; j < size; ++j) total += values[j];
    }
    mean = sum(total) * inverse_width;
  }
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (!part.inside(i)) continue;
    float values[size];
    s[i].widen(values);
#pragma unroll
    for (int j = 0; j < size; ++j) squares = fmaf(values[j] - mean, values[j] - mean, squares);
  }
  const float rstd = rsqrtf(fmaf(sum(squares), inverse_width, p.epsilon));

  Element* y = row_at<Element>(p, p.y, row, width);
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (!part.inside(i)) continue;
    float values[size], w[size];
    s[i].widen(values);
    if constexpr (!early) weights[i].load(weight + part.first(i));
    weights[i].widen(w);
    if constexpr (centered) {
      float b[size];
      if constexpr (!early) biases[i].load(bias + part.first(i));
      biases[i].widen(b);
#pragma unroll
      for (int j = 0; j < size; ++j) values[j] = fmaf((values[j] - mean) * rstd, w[j], b[j]);
    } else {
#pragma unroll
      for (int j = 0; j < size; ++j) values[j] = values[j] * rstd * w[j];
    }
    write(y + part.first(i), values);
  }
  if (part.thread == 0) {
    if (p.rstd) p.rstd[row] = rstd;
    if (centered && p.mean) p.mean[row] = mean;
  }
}

// Any width and alignment: one block per row, element by element.
template <class Element>
__global__ void __launch_bounds__(block_threads) scalar_rows(NormForward p, std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  const Element* x = row_at<const Element>(p, p.x, row, width);
  const Element* s = x;
  if (p.residual.data) {
    const Element* residual = row_at<const Element>(p, p.residual, row, width);
    Element* sum = row_at<Element>(p, p.sum, row, width);
    const Element* compensation = row_at<const Element>(p, p.compensation, row, width);
    Element* sum_compensation = row_at<Element>(p, p.sum_compensation, row, width);
    for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
      const float exact = static_cast<float>(x[i]) + static_cast<float>(residual[i]) +
                          (p.compensation.data ? static_cast<float>(compensation[i]) : 0.0f);
      const Element rounded(exact);
      sum[i] = rounded;
      if (p.sum_compensation.data) sum_compensation[i] = Element(exact - static_cast<float>(rounded));
    }
    s = sum; // every thread reads back only what it wrote
  }
  GroupSum<block_threads> sum;
  float mean = 0, squares = 0;
  if (p.bias) {
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += block_threads) total += static_cast<float>(s[i]);
    mean = sum(total) / static_cast<float>(width);
  }
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads) {
    const float centered_value = static_cast<float>(s[i]) - mean;
    squares = fmaf(centered_value, centered_value, squares);
  }
  const float rstd = rsqrtf(sum(squares) / static_cast<float>(width) + p.epsilon);
  const Element *weight = static_cast<const Element*>(p.weight), *bias = static_cast<const Element*>(p.bias);
  Element* y = row_at<Element>(p, p.y, row, width);
  for (std::int64_t i = threadIdx.x; i < width; i += block_threads)
    y[i] = Element(fmaf((static_cast<float>(s[i]) - mean) * rstd, static_cast<float>(weight[i]),
                        bias ? static_cast<float>(bias[i]) : 0.0f));
  if (threadIdx.x == 0) {
    if (p.rstd) p.rstd[row] = rstd;
    if (p.mean) p.mean[row] = mean;
  }
}

unsigned blocks_for(std::int64_t rows, int rows_of_this_block) {
  const std::int64_t blocks = (rows + rows_of_this_block - 1) / rows_of_this_block;
  if (blocks > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows exceed the grid", static_cast<long long>(rows));
  return static_cast<unsigned>(blocks);
}

} // namespace

void norm_forward(const Device& device, const Shape& shape, const NormForward& norm) {
  if (shape.rows == 0) return;
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const auto by_rows = [&](auto threads, auto packs) {
      const int rows_of_this_block = rows_of_block(shape.rows, block_threads / threads, 2 * device.multiprocessors);
      const unsigned blocks = blocks_for(shape.rows, rows_of_this_block), size = rows_of_this_block * threads();
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, size, 0, device.stream>>>(norm, shape.rows, static_cast<int>(shape.width));
      };
      if (!norm.bias)
        launch(rows_in_registers<Element, threads(), packs(), false, true>);
      else if (has_few_rows_kernels<Element> && shape.rows <= max_few_rows)
        launch(rows_in_registers<Element, threads(), packs(), true, has_few_rows_kernels<Element>>);
      else
        launch(rows_in_registers<Element, threads(), packs(), true, false>);
    };
    const bool done =
        shape.vectorized && with_row_parts<Element>(shape.width, shape.rows <= 2 * device.multiprocessors, by_rows);
    if (!done) scalar_rows<Element><<<blocks_for(shape.rows, 1), block_threads, 0, device.stream>>>(norm, shape.width);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
