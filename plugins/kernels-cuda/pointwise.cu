// pointwise.cu: SwiGLU, GeGLU, bias + GELU and layer-scale + residual, forward and backward, as column operations
// (common/cuda_columns.cuh): a thread keeps one pack of columns, so bias, scale and column sums stay in registers.
//
// Measured on an H100, bf16, buffers larger than the L2 (bench/LOG.md, 2026-11-22): SwiGLU of 16,384 x 8,192 275.3 us
// forward (2,925 GB/s) and 460.5 us backward (2,915 GB/s); bias + GELU of 131,584 x 1,536 268.4 us forward (3,012
// GB/s).
#include "common/cuda_columns.cuh"
#include "common/cuda_gelu.cuh"
#include "launches.h"

namespace fvlm::plugins {
namespace {

// The gate's activation in SwiGLU; in GeGLU it is a SigmoidGelu.
struct Silu {
  template <class Element>
  __device__ float value(float x) const {
    return x * sigmoid<Element>(x);
  }
  template <class Element>
  __device__ float derivative(float x) const {
    const float open = sigmoid<Element>(x);
    return fmaf(x * open, 1 - open, open);
  }
};

template <class Type, int pack, class Form>
struct GatedForward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 0;
  struct Column {};
  struct Row {
    Values gate, up;
  };
  Swiglu p;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.gate.load(at<Type>(p.gate, row, first));
    loaded.up.load(at<Type>(p.up, row, first));
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&)[1][pack]) const {
    const Form form = kernel_form<Form>(p.form);
    float gate[pack], up[pack];
    loaded.gate.widen(gate);
    loaded.up.widen(up);
#pragma unroll
    for (int i = 0; i < pack; ++i) up[i] *= form.template value<Type>(gate[i]);
    write(at<Type>(p.y, row, first), up);
  }
};

// gives_y: also writes the output of the forward.
template <class Type, int pack, class Form, bool gives_y>
struct GatedBackward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 0;
  struct Column {};
  struct Row {
    Values gate, up, d_y;
  };
  Swiglu p;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.gate.load(at<Type>(p.gate, row, first));
    loaded.up.load(at<Type>(p.up, row, first));
    loaded.d_y.load(at<Type>(p.d_y, row, first));
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&)[1][pack]) const {
    const Form form = kernel_form<Form>(p.form);
    float gate[pack], up[pack], d_y[pack];
    loaded.gate.widen(gate);
    loaded.up.widen(up);
    loaded.d_y.widen(d_y);
    if constexpr (gives_y) {
      float y[pack];
#pragma unroll
      for (int i = 0; i < pack; ++i) y[i] = up[i] * form.template value<Type>(gate[i]);
      write(at<Type>(p.y, row, first), y);
    }
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float active = form.template value<Type>(gate[i]);
      gate[i] = d_y[i] * up[i] * form.template derivative<Type>(gate[i]);
      up[i] = d_y[i] * active;
    }
    write(at<Type>(p.d_gate, row, first), gate);
    write(at<Type>(p.d_up, row, first), up);
  }
};

template <class Type, int pack>
using SwigluForward = GatedForward<Type, pack, Silu>;
template <class Type, int pack>
using GegluForward = GatedForward<Type, pack, SigmoidGelu>;
template <class Type, int pack>
using SwigluBackward = GatedBackward<Type, pack, Silu, false>;
template <class Type, int pack>
using GegluBackward = GatedBackward<Type, pack, SigmoidGelu, false>;
template <class Type, int pack>
using SwigluBackwardWithOutput = GatedBackward<Type, pack, Silu, true>;
template <class Type, int pack>
using GegluBackwardWithOutput = GatedBackward<Type, pack, SigmoidGelu, true>;

template <class Type, int pack, class Form>
struct GeluForward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 0;
  struct Column {
    float bias[pack];
  };
  struct Row {
    Values x;
  };
  BiasGelu p;

  __device__ Column column(std::int64_t first) const {
    Column column{};
    if (p.bias) read(static_cast<const Type*>(p.bias) + first, column.bias);
    return column;
  }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&)[1][pack]) const {
    const Form form = kernel_form<Form>(p.form);
    float x[pack];
    loaded.x.widen(x);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] = form.template value<Type>(x[i] + column.bias[i]);
    write(at<Type>(p.y, row, first), x);
  }
};

template <class Type, int pack, class Form>
struct GeluBackward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 1, rows_in_flight = 2;
  using Column = typename GeluForward<Type, pack, Form>::Column;
  struct Row {
    Values x, d_y;
  };
  BiasGelu p;

  __device__ Column column(std::int64_t first) const { return GeluForward<Type, pack, Form>{{}, p}.column(first); }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    loaded.d_y.load(at<Type>(p.d_y, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&d_bias)[1][pack]) const {
    const Form form = kernel_form<Form>(p.form);
    float x[pack], d[pack];
    loaded.x.widen(x);
    loaded.d_y.widen(d);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      d[i] *= form.template derivative<Type>(x[i] + column.bias[i]);
      d_bias[0][i] += d[i];
    }
    write(at<Type>(p.d_x, row, first), d);
  }
};

template <class Type, int pack>
using ExactGeluForward = GeluForward<Type, pack, ExactGelu>;
template <class Type, int pack>
using SigmoidGeluForward = GeluForward<Type, pack, SigmoidGelu>;
template <class Type, int pack>
using ExactGeluBackward = GeluBackward<Type, pack, ExactGelu>;
template <class Type, int pack>
using SigmoidGeluBackward = GeluBackward<Type, pack, SigmoidGelu>;

template <class Type, int pack>
struct LayerscaleForward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 0;
  struct Column {
    float scale[pack];
  };
  struct Row {
    Values x, residual;
  };
  Layerscale p;

  __device__ Column column(std::int64_t first) const {
    Column column;
    read(static_cast<const Type*>(p.scale) + first, column.scale);
    return column;
  }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    loaded.residual.load(at<Type>(p.residual, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&)[1][pack]) const {
    float x[pack], y[pack];
    loaded.x.widen(x);
    loaded.residual.widen(y);
#pragma unroll
    for (int i = 0; i < pack; ++i) y[i] = fmaf(column.scale[i], x[i], y[i]);
    write(at<Type>(p.y, row, first), y);
  }
};

// sum_count: 1, the gradient of the scale; 2, also the column sums of d_x.
template <class Type, int pack, int sum_count>
struct LayerscaleBackward : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = sum_count, rows_in_flight = 2;
  using Column = typename LayerscaleForward<Type, pack>::Column;
  struct Row {
    Values x, d_y;
  };
  Layerscale p;

  __device__ Column column(std::int64_t first) const { return LayerscaleForward<Type, pack>{{}, p}.column(first); }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    loaded.d_y.load(at<Type>(p.d_y, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&sum)[sums][pack]) const {
    float x[pack], d[pack];
    loaded.x.widen(x);
    loaded.d_y.widen(d);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      sum[0][i] = fmaf(d[i], x[i], sum[0][i]);
      d[i] *= column.scale[i];
      if constexpr (sum_count == 2) sum[1][i] += d[i];
    }
    write(at<Type>(p.d_x, row, first), d);
  }
};

template <class Type, int pack>
using LayerscaleBackwardAlone = LayerscaleBackward<Type, pack, 1>;
template <class Type, int pack>
using LayerscaleBackwardSummed = LayerscaleBackward<Type, pack, 2>;

} // namespace

void swiglu_forward(const Device& device, const Shape& shape, const Swiglu& swiglu) {
  swiglu.is_geglu ? launch_columns<GegluForward>(device, shape, swiglu)
                  : launch_columns<SwigluForward>(device, shape, swiglu);
}
void swiglu_backward(const Device& device, const Shape& shape, const Swiglu& swiglu) {
  if (swiglu.y.data)
    swiglu.is_geglu ? launch_columns<GegluBackwardWithOutput>(device, shape, swiglu)
                    : launch_columns<SwigluBackwardWithOutput>(device, shape, swiglu);
  else
    swiglu.is_geglu ? launch_columns<GegluBackward>(device, shape, swiglu)
                    : launch_columns<SwigluBackward>(device, shape, swiglu);
}
void bias_gelu_forward(const Device& device, const Shape& shape, const BiasGelu& gelu) {
  gelu.form.exact ? launch_columns<ExactGeluForward>(device, shape, gelu)
                  : launch_columns<SigmoidGeluForward>(device, shape, gelu);
}
void bias_gelu_backward(const Device& device, const Shape& shape, const BiasGelu& gelu, const GradientSums& sums) {
  gelu.form.exact ? launch_columns<ExactGeluBackward>(device, shape, gelu, sums)
                  : launch_columns<SigmoidGeluBackward>(device, shape, gelu, sums);
}
void layerscale_forward(const Device& device, const Shape& shape, const Layerscale& layerscale) {
  launch_columns<LayerscaleForward>(device, shape, layerscale);
}
void layerscale_backward(const Device& device, const Shape& shape, const Layerscale& layerscale,
                         const GradientSums& sums) {
  if (sums.out[1])
    launch_columns<LayerscaleBackwardSummed>(device, shape, layerscale, sums);
  else
    launch_columns<LayerscaleBackwardAlone>(device, shape, layerscale, sums);
}

} // namespace fvlm::plugins
