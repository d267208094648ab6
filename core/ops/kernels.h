// The small operations through chosen tables, a class each: see fvlm/kernels.h. The query's op is set by the class.
//
// Every gradient call takes `into`, whose defined tensors receive the results, and says by its `Wanted` which
// parameters train. With `accumulate` the parameters' gradients are given and added to.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

using KernelsBackend = Backend<fvlm_kernels_v1>;

class Kernel : public Prepared<fvlm_kernels_v1> {
 public:
  bool gives_sums() const { return query().options & FVLM_WITH_SUMS; } // of input gradients

 protected:
  Kernel(KernelsBackend backend, Query query, int32_t op) : Prepared(std::move(backend), (query.op = op, query)) {}
  at::Tensor like(const at::Tensor& tensor, const at::Tensor& into = {}) const {
    return output(into, tensor.sizes(), tensor.scalar_type());
  }
  // A parameter's gradient: `into`, or a new one where it is wanted.
  at::Tensor gradient(bool wanted, const at::Tensor& into, at::IntArrayRef shape) const;
};

// RMSNorm and LayerNorm, with or without a residual, as the query's op and options say.
class Norm : public Kernel {
 public:
  Norm(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, query.op) {}

  struct Output {
    at::Tensor y;
    at::Tensor sum; // x + residual; undefined without a residual
    std::vector<at::Tensor> saved;
    at::Tensor rest; // what sum loses by rounding, with FVLM_WITH_REST
  };
  // rest: what residual lost, or undefined.
  Output forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                 const Output& into = {}, const at::Tensor& rest = {}) const;

  struct Gradients {
    at::Tensor x, weight, bias;
    at::Tensor sums; // of x over rows; given where it is wanted, which FVLM_WITH_SUMS allows
  };
  struct Wanted {
    bool weight = true, bias = true;
  };
  // s: output.sum, or x without a residual. d_sum: what reaches s by other ways, or undefined.
  Gradients backward(const at::Tensor& s, const at::Tensor& weight, const Output& output, const at::Tensor& d_y,
                     const at::Tensor& d_sum, Wanted wanted, const Gradients& into = {}, bool accumulate = false) const;
};

class Rope : public Kernel {
 public:
  Rope(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_ROPE) {}
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions, bool inverse, const at::Tensor& into = {}) const;
};

class SwiGlu : public Kernel {
 public:
  SwiGlu(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_SWIGLU) {}
  at::Tensor forward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& into = {}) const;
  struct Gradients {
    at::Tensor gate, up;
  };
  Gradients backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_y,
                     const Gradients& into = {}) const;
};

class BiasGelu : public Kernel {
 public:
  BiasGelu(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_BIAS_GELU) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& into = {}) const;
  struct Gradients {
    at::Tensor x, bias;
  };
  Gradients backward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& d_y, bool wants_bias,
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
    at::Tensor sums; // as Norm's
  };
  Gradients backward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& d_y, bool wants_scale,
                     const Gradients& into = {}, bool accumulate = false) const;
};

class Linear : public Kernel {
 public:
  Linear(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_LINEAR) {}

  struct Output {
    at::Tensor y;
    at::Tensor pre_activation; // with FVLM_WITH_GELU and FVLM_WITH_BACKWARD, else undefined
    at::Tensor rest;           // what y loses by rounding, with FVLM_WITH_REST
  };
  // residual: with FVLM_WITH_RESIDUAL. rest: what it lost, or undefined.
  Output forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Output& into = {},
                 const at::Tensor& residual = {}, const at::Tensor& rest = {}) const;

  // pre_activation: of the linear that made x by gelu, or undefined. sums: as Norm's, added to with `accumulate`.
  at::Tensor input_gradient(const at::Tensor& d_y, const at::Tensor& weight, const at::Tensor& pre_activation = {},
                            const at::Tensor& into = {}, const at::Tensor& sums = {}, bool accumulate = false) const;

  struct Gradients {
    at::Tensor weight, bias;
  };
  Gradients weight_gradient(const at::Tensor& d_y, const at::Tensor& x, bool wants_bias, const Gradients& into = {},
                            bool accumulate = false) const;
};

// Linears whose output is scaled, as ones that need not be: each tensor holds those of several, one behind the other.
class ScaledRows : public Kernel {
 public:
  ScaledRows(KernelsBackend backend, const Query& query) : Kernel(std::move(backend), query, FVLM_OP_SCALED_ROWS) {}

  struct Linears {
    at::Tensor weight, bias;
  };
  struct Parameters {
    at::Tensor scale;
    Linears linears;
  };
  Linears forward(const Parameters& parameters) const;
  // Into those that are given. What came to `scaled` may be undefined where nothing that is wanted follows from it.
  void backward(const Parameters& parameters, const Linears& scaled, const Parameters& into, bool accumulate) const;
};

} // namespace fvlm::ops
