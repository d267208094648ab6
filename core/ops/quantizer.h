// Weight quantization by a selected plugin: see fvlm/quantizer.h. pack() quantizes, unpack() dequantizes.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

class Quantizer : public Prepared<fvlm_quantizer_v1> {
 public:
  Quantizer(Backend<fvlm_quantizer_v1> backend, const Query& query) : Prepared(std::move(backend), query) {}

  using Packed = std::vector<at::Tensor>;
  // importance: float32 [cols], or undefined.
  Packed pack(const at::Tensor& weight, const at::Tensor& importance = {}) const;
  at::Tensor unpack(const Packed& packed, const at::Tensor& into = {}) const;
  // Those of the query's options: see fvlm/quantizer.h.
  struct FusedOperands {
    at::Tensor residual, norm_weight;
  };
  at::Tensor linear(const Packed& packed, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& into = {},
                    const FusedOperands& fused = {}) const;
  at::Tensor linear_gradient(const Packed& packed, const at::Tensor& d_y) const;
  at::Tensor fake_quantize(const at::Tensor& weight) const;
  at::Tensor fake_quantize_gradient(const at::Tensor& weight, const at::Tensor& d_out) const;
};

} // namespace fvlm::ops
