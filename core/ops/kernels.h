// The kind `fvlm.kernels/1` on at::Tensor, one class for each operation: see fvlm/kernels.h for what they compute. The
// class sets the query's op.
//
// A call that computes gradients takes `into`, whose defined tensors receive the results; undefined ones are allocated,
// where the call's flags ask for them. With `accumulate`, parameters' gradients have to be given and are added to.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

using KernelsBackend = Backend<fvlm_kernels_v1>;

// A bit of fvlm_kernels_query.options, or none.
constexpr uint32_t option_if(uint32_t option, bool condition) {
  return condition ? option : 0;
}

class Kernel : public Prepared<fvlm_kernels_v1> {
 public:
  // Whether the input gradient's column sums are computed as well: the gradient of the bias before it.
  bool gives_column_sums() const { return query().options & FVLM_WITH_COLUMN_SUMS; }

 protected:
  Kernel(KernelsBackend backend, Query query, int32_t op) : Prepared(std::move(backend), (query.op = op, query)) {}
  at::Tensor like(const at::Tensor& tensor, const at::Tensor& into = {}) const {
    return output(into, tensor.sizes(), tensor.scalar_type());
  }
  // A parameter's gradient: `into`, else new memory; undefined where it is not required.
  at::Tensor gradient(bool is_required, const at::Tensor& into, at::IntArrayRef shape) const;
};

// RMSNorm and LayerNorm, with or without a residual: the query's op and options say which.
class Norm : public Kernel {
 public:
  Norm(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, query.op) {}

  struct Output {
    at::Tensor y;
    at::Tensor sum; // x + residual; undefined without a residual
    std::vector<at::Tensor> saved;
    at::Tensor compensation; // the rounding error of sum (Kahan compensation), with FVLM_COMPENSATED
  };
  // compensation: the rounding error of the residual, or undefined. gate: with FVLM_WITH_GATE.
  Output forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                 const Output& into = {}, const at::Tensor& compensation = {}, const at::Tensor& gate = {}) const;

  struct Gradients {
    at::Tensor x, weight, bias;
    at::Tensor column_sums; // column sums of x; computed where given, which needs FVLM_WITH_COLUMN_SUMS
    at::Tensor gate;        // with FVLM_WITH_GATE
  };
  struct Required {
    bool weight = true, bias = true;
  };
  // s: output.sum, or x without a residual. d_sum: the gradient that sum has from other consumers, or undefined.
  Gradients backward(const at::Tensor& s, const at::Tensor& weight, const Output& output, const at::Tensor& d_y,
                     const at::Tensor& d_sum, Required required, const Gradients& into = {}, bool accumulate = false,
                     const at::Tensor& gate = {}) const;
};

class Rope : public Kernel {
 public:
  Rope(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_ROPE) {}
  // frequencies: with FVLM_WITH_FREQUENCIES.
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions, bool inverse, const at::Tensor& into = {},
                   const at::Tensor& frequencies = {}) const;
};

class SwiGlu : public Kernel {
 public:
  SwiGlu(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_SWIGLU) {}
  at::Tensor forward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& into = {}) const;
  struct Gradients {
    at::Tensor gate, up;
  };
  // y, with FVLM_WITH_OUTPUT: memory for the forward's output, which may be d_y's.
  Gradients backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_y, const Gradients& into = {},
                     const at::Tensor& y = {}) const;
};

class BiasGelu : public Kernel {
 public:
  BiasGelu(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_BIAS_GELU) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& into = {}) const;
  struct Gradients {
    at::Tensor x, bias;
  };
  Gradients backward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& d_y, bool requires_bias,
                     const Gradients& into = {}, bool accumulate = false) const;
};

class LayerScale : public Kernel {
 public:
  LayerScale(KernelsBackend backend, const Query& query)
      : Kernel(std::move(backend), query, FVLM_OP_LAYERSCALE_RESIDUAL) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& residual,
                     const at::Tensor& into = {}) const;
  struct Gradients {
    at::Tensor x, scale;
    at::Tensor column_sums; // as Norm's
  };
  Gradients backward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& d_y, bool requires_scale,
                     const Gradients& into = {}, bool accumulate = false) const;
};

class Linear : public Kernel {
 public:
  Linear(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_LINEAR) {}

  struct Output {
    at::Tensor y;
    at::Tensor pre_activation; // with FVLM_WITH_GELU or FVLM_WITH_SWIGLU and FVLM_WITH_BACKWARD, else undefined
    at::Tensor compensation;   // the rounding error of y (Kahan compensation), with FVLM_COMPENSATED
  };
  // residual: with FVLM_WITH_RESIDUAL. compensation: the rounding error of the residual, or undefined. norm_weight:
  // with FVLM_WITH_NORM.
  Output forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Output& into = {},
                 const at::Tensor& residual = {}, const at::Tensor& compensation = {},
                 const at::Tensor& norm_weight = {}) const;

  // pre_activation: where x is gelu(pre_activation), or its SwiGLU with FVLM_SWIGLU_INPUT, the gradient is that of
  // pre_activation. column_sums: as Norm's, and added to with `accumulate`. x: with FVLM_WITH_OUTPUT, memory for x.
  at::Tensor input_gradient(const at::Tensor& d_y, const at::Tensor& weight, const at::Tensor& pre_activation = {},
                            const at::Tensor& into = {}, const at::Tensor& column_sums = {}, bool accumulate = false,
                            const at::Tensor& x = {}) const;

  struct Gradients {
    at::Tensor weight, bias;
  };
  Gradients weight_gradient(const at::Tensor& d_y, const at::Tensor& x, bool requires_bias, const Gradients& into = {},
                            bool accumulate = false) const;
  // Both at once, with FVLM_BOTH_GRADIENTS; with FVLM_WITH_FP8 an undefined d_x is not computed.
  void both_gradients(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& d_weight,
                      const at::Tensor& d_x, bool accumulate) const;
};

// LayerScale folded into the linears before it. Each tensor holds those of several linears, in a leading dimension.
class FoldRowScale : public Kernel {
 public:
  FoldRowScale(KernelsBackend backend, const Query& query)
      : Kernel(std::move(backend), query, FVLM_OP_FOLD_ROW_SCALE) {}

  struct Linears {
    at::Tensor weight, bias;
  };
  struct Parameters {
    at::Tensor scale;
    Linears linears;
  };
  Linears forward(const Parameters& parameters) const;
  // Computes the gradients whose memory is given. `d_scaled` may be undefined where no given gradient depends on it.
  void backward(const Parameters& parameters, const Linears& d_scaled, const Parameters& into, bool accumulate) const;
};

// Segments of a packed buffer; the last three of those that continue others, else undefined.
struct SegmentStates {
  at::Tensor cu_seqlens, slots, starts, states;
};

class ShortConvolution : public Kernel {
 public:
  ShortConvolution(KernelsBackend backend, const Query& query)
      : Kernel(std::move(backend), query, FVLM_OP_SHORT_CONVOLUTION) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const SegmentStates& segments) const;
  struct Gradients {
    at::Tensor x, weight, bias;
  };
  Gradients backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& cu_seqlens, const at::Tensor& d_y, bool requires_weight, bool requires_bias,
                     const Gradients& into = {}, bool accumulate = false) const;
};

class GatedDeltaRule : public Kernel {
 public:
  GatedDeltaRule(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_DELTA_RULE) {}
  struct Operands {
    at::Tensor qkv, gates, log_decay, step_bias;
  };
  struct Output {
    at::Tensor y;
    std::vector<at::Tensor> saved;
  };
  Output forward(const Operands& of, const SegmentStates& segments) const;
  // Gradients of the first two are computed in any case.
  Operands backward(const Operands& of, const at::Tensor& cu_seqlens, const Output& output, const at::Tensor& d_y,
                    bool requires_log_decay, bool requires_step_bias, const Operands& into = {},
                    bool accumulate = false) const;
};

// A mixture of experts of few rows, without a gradient.
class FewRowsExperts : public Kernel {
 public:
  FewRowsExperts(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_EXPERTS) {}
  struct Operands {
    at::Tensor x, logits, bias, gate_up, down;        // bias: with FVLM_WITH_BIAS
    at::Tensor gate_up_scales = {}, down_scales = {}; // of codes, with FVLM_INT8_WEIGHTS or FVLM_INT4_WEIGHTS
  };
  at::Tensor forward(const Operands& of) const;
};

} // namespace fvlm::ops
