// pointwise_kernels.cpp: SwiGLU, GeGLU, bias + GELU, LayerScale + residual, and the sum of partial parameter gradients.
#include "common/microkernel.h"
#include "common/vector_math.h"
#include "gelu.h"
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

template <class Element, class Form>
void swiglu_forward_rows(const SwigluProblem& p, Form form, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const Element *gate = row_of<const Element>(p.gate, r), *up = row_of<const Element>(p.up, r);
    Element* y = row_of<Element>(p.y, r);
    for (int64_t c = 0; c < p.width; c += lanes) {
      const Vector g = load_at(gate, c, p.width);
      store_at(y, c, p.width, g * form.factor(g) * load_at(up, c, p.width));
    }
  }
}

template <class Element, class Form>
void swiglu_backward_rows(const SwigluProblem& p, Form form, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const Element *gate = row_of<const Element>(p.gate, r), *up = row_of<const Element>(p.up, r),
                  *d_y = row_of<const Element>(p.d_y, r);
    Element *d_gate = row_of<Element>(p.d_gate, r), *d_up = row_of<Element>(p.d_up, r);
    for (int64_t c = 0; c < p.width; c += lanes) {
      const Vector g = load_at(gate, c, p.width), u = load_at(up, c, p.width), d = load_at(d_y, c, p.width);
      store_at(d_up, c, p.width, d * g * form.factor(g));
      store_at(d_gate, c, p.width, d * u * form.derivative(g));
    }
  }
}

template <class Element, class Form>
void gelu_forward_rows(const GeluProblem& p, Form gelu, int64_t first, int64_t last) {
  const auto* bias = static_cast<const Element*>(p.bias);
  for (int64_t r = first; r < last; ++r) {
    const Element* x = row_of<const Element>(p.x, r);
    Element* y = row_of<Element>(p.y, r);
    for (int64_t c = 0; c < p.width; c += lanes) {
      Vector v = load_at(x, c, p.width);
      if (bias) v += load_at(bias, c, p.width);
      store_at(y, c, p.width, v * gelu.factor(v));
    }
  }
}

template <class Element, class Form>
void gelu_backward_rows(const GeluProblem& p, Form gelu, int64_t first, int64_t last, float* d_bias) {
  const auto* bias = static_cast<const Element*>(p.bias);
  clear(d_bias, p.width);
  for (int64_t r = first; r < last; ++r) {
    const Element *x = row_of<const Element>(p.x, r), *d_y = row_of<const Element>(p.d_y, r);
    Element* d_x = row_of<Element>(p.d_x, r);
    for (int64_t c = 0; c < p.width; c += lanes) {
      Vector v = load_at(x, c, p.width);
      if (bias) v += load_at(bias, c, p.width);
      const Vector d = load_at(d_y, c, p.width) * gelu.derivative(v);
      store_at(d_x, c, p.width, d);
      if (d_bias) store_at(d_bias, c, p.width, d + load_at(d_bias, c, p.width));
    }
  }
}

template <class Element>
void layerscale_forward_rows(const LayerscaleProblem& p, int64_t first, int64_t last) {
  const auto* scale = static_cast<const Element*>(p.scale);
  for (int64_t r = first; r < last; ++r) {
    const Element *x = row_of<const Element>(p.x, r), *residual = row_of<const Element>(p.residual, r);
    Element* y = row_of<Element>(p.y, r);
    for (int64_t c = 0; c < p.width; c += lanes)
      store_at(y, c, p.width, fma(load_at(x, c, p.width), load_at(scale, c, p.width), load_at(residual, c, p.width)));
  }
}

template <class Element>
void layerscale_backward_rows(const LayerscaleProblem& p, int64_t first, int64_t last, float* d_scale) {
  const auto* scale = static_cast<const Element*>(p.scale);
  clear(d_scale, p.width);
  for (int64_t r = first; r < last; ++r) {
    const Element *x = row_of<const Element>(p.x, r), *d_y = row_of<const Element>(p.d_y, r);
    Element* d_x = row_of<Element>(p.d_x, r);
    for (int64_t c = 0; c < p.width; c += lanes) {
      const Vector d = load_at(d_y, c, p.width);
      if (d_scale) store_at(d_scale, c, p.width, fma(d, load_at(x, c, p.width), load_at(d_scale, c, p.width)));
      store_at(d_x, c, p.width, d * load_at(scale, c, p.width));
    }
  }
}

template <class Element>
void sum_partial_gradients(const SumProblem& p) {
  auto* out = static_cast<Element*>(p.out);
  for (int64_t c = 0; c < p.width; c += lanes) {
    Vector total = load_at(p.part, c, p.width);
    for (int64_t i = 1; i < p.parts; ++i) total += load_at(p.part + i * p.part_row, c, p.width);
    if (p.accumulate) total += load_at(out, c, p.width);
    store_at(out, c, p.width, total);
  }
}

void sum_parts(const SumProblem& p) {
  p.is_bfloat16 ? sum_partial_gradients<Bfloat>(p) : sum_partial_gradients<float>(p);
}

} // namespace

void swiglu_forward(const SwigluProblem& p, int64_t first, int64_t last) {
  const auto rows = [&](auto form) {
    p.is_bfloat16 ? swiglu_forward_rows<Bfloat>(p, form, first, last)
                  : swiglu_forward_rows<float>(p, form, first, last);
  };
  p.is_geglu ? rows(SigmoidGelu{p.linear, p.cubic}) : rows(Silu{});
}

void swiglu_backward(const SwigluProblem& p, int64_t first, int64_t last) {
  const auto rows = [&](auto form) {
    p.is_bfloat16 ? swiglu_backward_rows<Bfloat>(p, form, first, last)
                  : swiglu_backward_rows<float>(p, form, first, last);
  };
  p.is_geglu ? rows(SigmoidGelu{p.linear, p.cubic}) : rows(Silu{});
}

void gelu_forward(const GeluProblem& p, int64_t first, int64_t last) {
  const auto rows = [&](auto form) {
    p.is_bfloat16 ? gelu_forward_rows<Bfloat>(p, form, first, last) : gelu_forward_rows<float>(p, form, first, last);
  };
  p.is_exact ? rows(ExactGelu{}) : rows(SigmoidGelu{p.linear, p.cubic});
}

void gelu_backward(const GeluProblem& p, int64_t first, int64_t last, float* d_bias) {
  const auto rows = [&](auto form) {
    p.is_bfloat16 ? gelu_backward_rows<Bfloat>(p, form, first, last, d_bias)
                  : gelu_backward_rows<float>(p, form, first, last, d_bias);
  };
  p.is_exact ? rows(ExactGelu{}) : rows(SigmoidGelu{p.linear, p.cubic});
}

void layerscale_forward(const LayerscaleProblem& p, int64_t first, int64_t last) {
  p.is_bfloat16 ? layerscale_forward_rows<Bfloat>(p, first, last) : layerscale_forward_rows<float>(p, first, last);
}

void layerscale_backward(const LayerscaleProblem& p, int64_t first, int64_t last, float* d_scale) {
  p.is_bfloat16 ? layerscale_backward_rows<Bfloat>(p, first, last, d_scale)
                : layerscale_backward_rows<float>(p, first, last, d_scale);
}

const RowKernels& row_kernels() {
  static constexpr RowKernels kernels{&norm_forward,
                                      &norm_backward,
                                      &swiglu_forward,
                                      &swiglu_backward,
                                      &gelu_forward,
                                      &gelu_backward,
                                      &layerscale_forward,
                                      &layerscale_backward,
                                      &rope,
                                      &linear_few_rows,
                                      &linear_widen,
                                      &linear_pack,
                                      &linear_many_rows,
                                      &linear_input_gradient,
                                      &linear_weight_gradient,
                                      &sum_parts,
                                      lanes,
                                      tile_columns};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
