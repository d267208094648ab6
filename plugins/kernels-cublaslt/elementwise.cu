// elementwise.cu: the elementwise work around cuBLASLt products, as column operations (common/cuda_columns.cuh), at
// memory speed.
#include "common/cuda_columns.cuh"
#include "common/cuda_gelu.cuh"
#include "elementwise.h"

namespace fvlm::plugins {
namespace {

template <class Type, int pack, class Form>
struct BiasGeluRows : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 0;
  struct Column {
    float bias[pack];
  };
  struct Row {
    Values sum;
  };
  BiasGelu p;

  __device__ Column column(std::int64_t first) const {
    Column column{};
    if (p.bias) read(static_cast<const Type*>(p.bias) + first, column.bias);
    return column;
  }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.sum.load(at<Type>(p.sum, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, Row loaded, std::int64_t row, std::int64_t first,
                        float (&)[1][pack]) const {
    float x[pack];
    loaded.sum.widen(x);
    if (p.bias) {
#pragma unroll
      for (int i = 0; i < pack; ++i) x[i] += column.bias[i];
      if (p.writes_back) {
        loaded.sum.round(x);
        loaded.sum.store(at<Type>(p.sum, row, first));
        loaded.sum.widen(x); // gelu of the rounded sum
      }
    }
    if (p.gelu) {
      const Form form = kernel_form<Form>(p.form);
#pragma unroll
      for (int i = 0; i < pack; ++i) x[i] = form.template value<Type>(x[i]);
    }
    write(at<Type>(p.y, row, first), x);
  }
};

template <class Type, int pack>
using ExactBiasGeluRows = BiasGeluRows<Type, pack, ExactGelu>;
template <class Type, int pack>
using SigmoidBiasGeluRows = BiasGeluRows<Type, pack, SigmoidGelu>;

// sum_count: number of column sums, 0 or 1.
template <class Type, int pack, int sum_count, class Form>
struct GeluGradientRows : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = sum_count, rows_in_flight = sum_count == 0 ? 4 : 2;
  struct Column {};
  struct Row {
    Values x, d;
  };
  GeluGradient p;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    loaded.d.load(at<Type>(p.d, row, first));
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&sum)[1][pack]) const {
    const Form form = kernel_form<Form>(p.form);
    float x[pack], d[pack];
    loaded.x.widen(x);
    loaded.d.widen(d);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      d[i] *= form.template derivative<Type>(x[i]);
      if constexpr (sum_count == 1) sum[0][i] += d[i];
    }
    write(at<Type>(p.d, row, first), d);
  }
};
template <class Type, int pack>
using ExactGradient = GeluGradientRows<Type, pack, 0, ExactGelu>;
template <class Type, int pack>
using ExactGradientSummed = GeluGradientRows<Type, pack, 1, ExactGelu>;
template <class Type, int pack>
using SigmoidGradient = GeluGradientRows<Type, pack, 0, SigmoidGelu>;
template <class Type, int pack>
using SigmoidGradientSummed = GeluGradientRows<Type, pack, 1, SigmoidGelu>;

template <class Element>
__global__ void fill_kernel(Element* numbers, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = sdk::item_index(); i < count; i += step) {
    std::uint32_t hash = static_cast<std::uint32_t>(i) * 2654435761u;
    hash ^= hash >> 15;
    numbers[i] = Element(static_cast<float>(hash & 0xffff) / 32768 - 1);
  }
}

__global__ void delay_kernel(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) __nanosleep(1000);
}

} // namespace

void add_bias_gelu(const Device& device, const Shape& shape, const BiasGelu& add_bias_gelu) {
  add_bias_gelu.form.exact ? launch_columns<ExactBiasGeluRows>(device, shape, add_bias_gelu)
                           : launch_columns<SigmoidBiasGeluRows>(device, shape, add_bias_gelu);
}
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient) {
  gradient.form.exact ? launch_columns<ExactGradient>(device, shape, gradient)
                      : launch_columns<SigmoidGradient>(device, shape, gradient);
}
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient, const GradientSums& sums) {
  gradient.form.exact ? launch_columns<ExactGradientSummed>(device, shape, gradient, sums)
                      : launch_columns<SigmoidGradientSummed>(device, shape, gradient, sums);
}
void column_sums(const Device& device, const Shape& shape, const Rows& rows, const GradientSums& sums) {
  launch_columns<ColumnSums>(device, shape, rows, sums);
}

void fill_random(cudaStream_t stream, fvlm_dtype dtype, void* data, std::int64_t count) {
  sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    fill_kernel<<<512, 256, 0, stream>>>(static_cast<typename decltype(element)::type*>(data), count);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

void delay_stream(cudaStream_t stream, double seconds) {
  delay_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(seconds * 1e9));
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
