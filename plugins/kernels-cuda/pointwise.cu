// pointwise.cu: SwiGLU, bias + GELU, layer-scale + residual, forward and backward.
#include "columns.cuh"

namespace fvlm::plugins {
namespace {

// Where the result is rounded to 16 bits anyway, exp and division by the fast units will do.
template <class Element>
inline constexpr bool fast = sizeof(Element) == 2;

template <class Element>
__device__ float exponential(float x) {
  return fast<Element> ? __expf(x) : expf(x);
}

template <class Element>
__device__ float sigmoid(float x) {
  const float below = 1 + exponential<Element>(-x);
  return fast<Element> ? __fdividef(1, below) : 1 / below;
}

// The normal distribution's density and its integral up to x.
struct Normal {
  float density, below;
};

template <class Element>
__device__ Normal normal(float x) {
  constexpr float root_half = 0.70710678118654752f, peak = 0.39894228040143268f;
  const float bell = exponential<Element>(-0.5f * x * x);
  float erf;
  if constexpr (fast<Element>) {
    // Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most; its exp(-z^2) is the bell.
    const float t = __fdividef(1, fmaf(0.3275911f * root_half, fabsf(x), 1));
    const float polynomial =
        t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
    erf = copysignf(fmaf(-polynomial, bell, 1), x);
  } else {
    erf = erff(x * root_half);
  }
  return {peak * bell, fmaf(0.5f, erf, 0.5f)};
}

template <class Type, int pack>
struct Operation {
  using Element = Type;
  static constexpr int size = pack;
  using Values = Pack<Element, size>;
};

template <class Type, int pack>
struct SwigluForward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
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
    float gate[pack], up[pack];
    loaded.gate.widen(gate);
    loaded.up.widen(up);
#pragma unroll
    for (int i = 0; i < pack; ++i) up[i] *= gate[i] * sigmoid<Type>(gate[i]);
    write(at<Type>(p.y, row, first), up);
  }
};

template <class Type, int pack>
struct SwigluBackward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
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
    float gate[pack], up[pack], d_y[pack];
    loaded.gate.widen(gate);
    loaded.up.widen(up);
    loaded.d_y.widen(d_y);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float open = sigmoid<Type>(gate[i]), silu = gate[i] * open;
      gate[i] = d_y[i] * up[i] * fmaf(silu, 1 - open, open);
      up[i] = d_y[i] * silu;
    }
    write(at<Type>(p.d_gate, row, first), gate);
    write(at<Type>(p.d_up, row, first), up);
  }
};

template <class Type, int pack>
struct GeluForward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
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
    float x[pack];
    loaded.x.widen(x);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      x[i] += column.bias[i];
      x[i] *= normal<Type>(x[i]).below;
    }
    write(at<Type>(p.y, row, first), x);
  }
};

template <class Type, int pack>
struct GeluBackward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
  static constexpr int sums = 1;
  using Column = typename GeluForward<Type, pack>::Column;
  struct Row {
    Values x, d_y;
  };
  BiasGelu p;

  __device__ Column column(std::int64_t first) const { return GeluForward<Type, pack>{{}, p}.column(first); }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.x.load(at<Type>(p.x, row, first));
    loaded.d_y.load(at<Type>(p.d_y, row, first));
    return loaded;
  }
  __device__ void apply(const Column& column, const Row& loaded, std::int64_t row, std::int64_t first,
                        float (&d_bias)[1][pack]) const {
    float x[pack], d[pack];
    loaded.x.widen(x);
    loaded.d_y.widen(d);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      x[i] += column.bias[i];
      const Normal at_x = normal<Type>(x[i]);
      // far out the density is 0, x may be infinite
      d[i] *= at_x.below + (at_x.density == 0 ? 0.0f : x[i] * at_x.density);
      d_bias[0][i] += d[i];
    }
    write(at<Type>(p.d_x, row, first), d);
  }
};

template <class Type, int pack>
struct LayerscaleForward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
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

template <class Type, int pack>
struct LayerscaleBackward : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
  static constexpr int sums = 1;
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
                        float (&d_scale)[1][pack]) const {
    float x[pack], d[pack];
    loaded.x.widen(x);
    loaded.d_y.widen(d);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      d_scale[0][i] = fmaf(d[i], x[i], d_scale[0][i]);
      d[i] *= column.scale[i];
    }
    write(at<Type>(p.d_x, row, first), d);
  }
};

template <template <class, int> class Function, class Problem>
int launch(const Device& device, const Shape& shape, const Problem& problem, const Parts& parts = {}) {
  int blocks = 0;
  with_packs(shape, [&](auto element, auto size) {
    using Chosen = Function<typename decltype(element)::type, decltype(size)::value>;
    blocks = launch_by_columns(device, shape.rows, shape.width, Chosen{{}, problem}, parts);
  });
  return blocks;
}

} // namespace

void swiglu_forward(const Device& device, const Shape& shape, const Swiglu& swiglu) {
  launch<SwigluForward>(device, shape, swiglu);
}
void swiglu_backward(const Device& device, const Shape& shape, const Swiglu& swiglu) {
  launch<SwigluBackward>(device, shape, swiglu);
}
void bias_gelu_forward(const Device& device, const Shape& shape, const BiasGelu& gelu) {
  launch<GeluForward>(device, shape, gelu);
}
int bias_gelu_backward(const Device& device, const Shape& shape, const BiasGelu& gelu, const Parts& parts) {
  return launch<GeluBackward>(device, shape, gelu, parts);
}
void layerscale_forward(const Device& device, const Shape& shape, const Layerscale& layerscale) {
  launch<LayerscaleForward>(device, shape, layerscale);
}
int layerscale_backward(const Device& device, const Shape& shape, const Layerscale& layerscale, const Parts& parts) {
  return launch<LayerscaleBackward>(device, shape, layerscale, parts);
}

} // namespace fvlm::plugins
