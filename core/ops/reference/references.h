// The references as classes of the SDK's C++ side, as any plugin's; one source file for each. Unlike a plugin they
// allocate through ATen and expect call.stream to be ATen's current stream. None synchronizes with a device.
#pragma once
#include <fvlm/fvlm.hpp>

// The SDK's classes have hidden visibility, so derived classes have to.
#pragma GCC visibility push(hidden)
namespace fvlm::ops::reference {

// Throws where LibTorch does not compute on the device.
struct OnDevice {
  explicit OnDevice(const fvlm_instance_config& config);
};

struct Attention : sdk::Attention, OnDevice {
  using OnDevice::OnDevice;
  static constexpr uint32_t features =
      FVLM_ATTENTION_APPENDS | FVLM_ATTENTION_PARTIAL | FVLM_ATTENTION_WINDOWS | FVLM_ATTENTION_PARTIAL_WINDOWS;
  static sdk::Support supports(const Query& query);
  void requirements(const Query& query, sdk::Requirements& wanted) const;
  void forward(const fvlm_call& call, const Query& query, const Forward& arguments);
  void backward(const fvlm_call& call, const Query& query, const Backward& arguments);
  static sdk::Support supports_paged(const PagedQuery& query);
  void forward_paged(const fvlm_call& call, const PagedQuery& query, const Paged& arguments);
};

struct Loss : sdk::Loss, OnDevice {
  using OnDevice::OnDevice;
  static constexpr uint32_t features = FVLM_LOSS_SOFTCAP;
  static sdk::Support supports(const Query& query);
  void requirements(const Query& query, sdk::Requirements& wanted) const;
  void forward(const fvlm_call& call, const Query& query, const Forward& arguments);
  void backward(const fvlm_call& call, const Query& query, const Backward& arguments);
  void fused(const fvlm_call& call, const Query& query, const Fused& arguments);
};

struct Kernels : sdk::Kernels, OnDevice {
  using OnDevice::OnDevice;
  static sdk::Support supports(const Query& query);
  void requirements(const Query& query, sdk::Requirements& wanted) const;
  void rmsnorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& arguments);
  void rmsnorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& arguments);
  void layernorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& arguments);
  void layernorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& arguments);
  void rope(const fvlm_call& call, const Query& query, const fvlm_rope_apply& arguments);
  void swiglu_forward(const fvlm_call& call, const Query& query, const fvlm_swiglu_forward& arguments);
  void swiglu_backward(const fvlm_call& call, const Query& query, const fvlm_swiglu_backward& arguments);
  void bias_gelu_forward(const fvlm_call& call, const Query& query, const fvlm_bias_gelu_forward& arguments);
  void bias_gelu_backward(const fvlm_call& call, const Query& query, const fvlm_bias_gelu_backward& arguments);
  void layerscale_forward(const fvlm_call& call, const Query& query, const fvlm_layerscale_forward& arguments);
  void layerscale_backward(const fvlm_call& call, const Query& query, const fvlm_layerscale_backward& arguments);
  void linear_forward(const fvlm_call& call, const Query& query, const fvlm_linear_forward& arguments);
  void linear_input_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_input_gradient& arguments);
  void linear_weight_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_weight_gradient& arguments);
  void scaled_rows_forward(const fvlm_call& call, const Query& query, const fvlm_scaled_rows_forward& arguments);
  void scaled_rows_backward(const fvlm_call& call, const Query& query, const fvlm_scaled_rows_backward& arguments);
  void short_convolution_forward(const fvlm_call& call, const Query& query, const fvlm_convolution_forward& arguments);
  void short_convolution_backward(const fvlm_call& call, const Query& query,
                                  const fvlm_convolution_backward& arguments);
  void delta_rule_forward(const fvlm_call& call, const Query& query, const fvlm_delta_rule_forward& arguments);
  void delta_rule_backward(const fvlm_call& call, const Query& query, const fvlm_delta_rule_backward& arguments);
  void experts_forward(const fvlm_call& call, const Query& query, const fvlm_experts_forward& arguments);
};

struct AdamW : sdk::Optimizer, OnDevice {
  using OnDevice::OnDevice;
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 1e3},
                                                            {"beta1", 0.9, 0, 1},
                                                            {"beta2", 0.999, 0, 1},
                                                            {"eps", 1e-8, 0, 1e3},
                                                            {"weight_decay", 1e-2, 0, 1e3}};
  static sdk::Support supports(const Query& query);
  static sdk::States states(const Query& query);
  void step(const fvlm_call& call, const Query& query, const Step& arguments);
};

struct Muon : sdk::Optimizer, OnDevice {
  using OnDevice::OnDevice;
  static constexpr const char* algorithm = "muon";
  static constexpr fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 1e3},
                                                            {"momentum", 0.95, 0, 1},
                                                            {"nesterov", 1, 0, 1},
                                                            {"weight_decay", 0.1, 0, 1e3},
                                                            {"eps", 1e-7, 0, 1e3}};
  static sdk::Support supports(const Query& query);
  static sdk::States states(const Query& query);
  void step(const fvlm_call& call, const Query& query, const Step& arguments);
};

struct Packer : sdk::Packer {
  static sdk::Support supports(const Query& query);
  void pack(const Query& query, const Pack& arguments);
};

// `activations`: in 8 bits, too.
template <int width, bool activations = false>
struct IntegerQuantizer : sdk::Quantizer, OnDevice {
  using OnDevice::OnDevice;
  static constexpr const char* scheme = activations ? "w8a8" : width == 8 ? "int8" : "int4";
  static constexpr int bits = width;
  static constexpr uint32_t features = FVLM_QUANTIZED_RESIDUAL | FVLM_QUANTIZED_NORM | FVLM_QUANTIZED_SWIGLU;
  static sdk::Support supports(const Query& query);
  void requirements(const Query& query, sdk::Requirements& wanted) const;
  void pack(const fvlm_call& call, const Query& query, const Pack& arguments);
  void unpack(const fvlm_call& call, const Query& query, const Unpack& arguments);
  void linear(const fvlm_call& call, const Query& query, const Linear& arguments);
  void linear_gradient(const fvlm_call& call, const Query& query, const LinearGradient& arguments);
  void fake_quantize_forward(const fvlm_call& call, const Query& query, const FakeForward& arguments);
  void fake_quantize_backward(const fvlm_call& call, const Query& query, const FakeBackward& arguments);
};
using Int8 = IntegerQuantizer<8>;
using Int4 = IntegerQuantizer<4>;
using W8A8 = IntegerQuantizer<8, true>;

} // namespace fvlm::ops::reference
#pragma GCC visibility pop
