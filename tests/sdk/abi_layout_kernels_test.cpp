// abi_layout_kernels_test.cpp: abi_layout_test.cpp, for the kind kernels.
#include "abi_layout.h"

namespace {

SIZE(fvlm_kernels_query, 128);
FIELD(fvlm_kernels_query, struct_size, 0, uint32_t);
FIELD(fvlm_kernels_query, op, 4, int32_t);
FIELD(fvlm_kernels_query, device, 8, fvlm_device);
FIELD(fvlm_kernels_query, dtype, 16, fvlm_dtype);
FIELD(fvlm_kernels_query, gradient_dtype, 20, fvlm_dtype);
FIELD(fvlm_kernels_query, options, 24, uint32_t);
FIELD(fvlm_kernels_query, rows, 32, int64_t);
FIELD(fvlm_kernels_query, width, 40, int64_t);
FIELD(fvlm_kernels_query, inner, 48, int64_t);
FIELD(fvlm_kernels_query, heads, 56, int32_t);
FIELD(fvlm_kernels_query, head_dim, 60, int32_t);
FIELD(fvlm_kernels_query, rotary_dim, 64, int32_t);
FIELD(fvlm_kernels_query, epsilon, 68, float);
FIELD(fvlm_kernels_query, rope_theta, 72, float);
FIELD(fvlm_kernels_query, pairs, 80, int64_t);
FIELD(fvlm_kernels_query, segments, 88, int64_t);
FIELD(fvlm_kernels_query, max_seqlen, 96, int32_t);
FIELD(fvlm_kernels_query, taps, 100, int32_t);
FIELD(fvlm_kernels_query, key_heads, 104, int32_t);
FIELD(fvlm_kernels_query, key_dim, 108, int32_t);
FIELD(fvlm_kernels_query, experts, 112, int32_t);
FIELD(fvlm_kernels_query, chosen, 116, int32_t);
FIELD(fvlm_kernels_query, router_scale, 120, float);

SIZE(fvlm_norm_forward, 112);
FIELD(fvlm_norm_forward, struct_size, 0, uint32_t);
FIELD(fvlm_norm_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_norm_forward, residual, 16, const fvlm_tensor*);
FIELD(fvlm_norm_forward, weight, 24, const fvlm_tensor*);
FIELD(fvlm_norm_forward, bias, 32, const fvlm_tensor*);
FIELD(fvlm_norm_forward, y, 40, fvlm_tensor*);
FIELD(fvlm_norm_forward, sum, 48, fvlm_tensor*);
FIELD(fvlm_norm_forward, saved, 56, fvlm_tensor* [4]);
FIELD(fvlm_norm_forward, rest, 88, const fvlm_tensor*);
FIELD(fvlm_norm_forward, sum_rest, 96, fvlm_tensor*);
FIELD(fvlm_norm_forward, gate, 104, const fvlm_tensor*);

SIZE(fvlm_norm_backward, 120);
FIELD(fvlm_norm_backward, struct_size, 0, uint32_t);
FIELD(fvlm_norm_backward, accumulate, 4, int32_t);
FIELD(fvlm_norm_backward, d_y, 8, const fvlm_tensor*);
FIELD(fvlm_norm_backward, d_sum, 16, const fvlm_tensor*);
FIELD(fvlm_norm_backward, s, 24, const fvlm_tensor*);
FIELD(fvlm_norm_backward, weight, 32, const fvlm_tensor*);
FIELD(fvlm_norm_backward, saved, 40, const fvlm_tensor* [4]);
FIELD(fvlm_norm_backward, d_x, 72, fvlm_tensor*);
FIELD(fvlm_norm_backward, d_weight, 80, fvlm_tensor*);
FIELD(fvlm_norm_backward, d_bias, 88, fvlm_tensor*);
FIELD(fvlm_norm_backward, d_x_sums, 96, fvlm_tensor*);
FIELD(fvlm_norm_backward, gate, 104, const fvlm_tensor*);
FIELD(fvlm_norm_backward, d_gate, 112, fvlm_tensor*);

SIZE(fvlm_rope_apply, 40);
FIELD(fvlm_rope_apply, struct_size, 0, uint32_t);
FIELD(fvlm_rope_apply, inverse, 4, int32_t);
FIELD(fvlm_rope_apply, x, 8, const fvlm_tensor*);
FIELD(fvlm_rope_apply, positions, 16, const fvlm_tensor*);
FIELD(fvlm_rope_apply, out, 24, fvlm_tensor*);
FIELD(fvlm_rope_apply, frequencies, 32, const fvlm_tensor*);

SIZE(fvlm_swiglu_forward, 32);
FIELD(fvlm_swiglu_forward, struct_size, 0, uint32_t);
FIELD(fvlm_swiglu_forward, gate, 8, const fvlm_tensor*);
FIELD(fvlm_swiglu_forward, up, 16, const fvlm_tensor*);
FIELD(fvlm_swiglu_forward, y, 24, fvlm_tensor*);

SIZE(fvlm_swiglu_backward, 56);
FIELD(fvlm_swiglu_backward, struct_size, 0, uint32_t);
FIELD(fvlm_swiglu_backward, gate, 8, const fvlm_tensor*);
FIELD(fvlm_swiglu_backward, up, 16, const fvlm_tensor*);
FIELD(fvlm_swiglu_backward, d_y, 24, const fvlm_tensor*);
FIELD(fvlm_swiglu_backward, d_gate, 32, fvlm_tensor*);
FIELD(fvlm_swiglu_backward, d_up, 40, fvlm_tensor*);

SIZE(fvlm_bias_gelu_forward, 32);
FIELD(fvlm_bias_gelu_forward, struct_size, 0, uint32_t);
FIELD(fvlm_bias_gelu_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_bias_gelu_forward, bias, 16, const fvlm_tensor*);
FIELD(fvlm_bias_gelu_forward, y, 24, fvlm_tensor*);

SIZE(fvlm_bias_gelu_backward, 48);
FIELD(fvlm_bias_gelu_backward, struct_size, 0, uint32_t);
FIELD(fvlm_bias_gelu_backward, accumulate, 4, int32_t);
FIELD(fvlm_bias_gelu_backward, x, 8, const fvlm_tensor*);
FIELD(fvlm_bias_gelu_backward, bias, 16, const fvlm_tensor*);
FIELD(fvlm_bias_gelu_backward, d_y, 24, const fvlm_tensor*);
FIELD(fvlm_bias_gelu_backward, d_x, 32, fvlm_tensor*);
FIELD(fvlm_bias_gelu_backward, d_bias, 40, fvlm_tensor*);

SIZE(fvlm_layerscale_forward, 40);
FIELD(fvlm_layerscale_forward, struct_size, 0, uint32_t);
FIELD(fvlm_layerscale_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_layerscale_forward, scale, 16, const fvlm_tensor*);
FIELD(fvlm_layerscale_forward, residual, 24, const fvlm_tensor*);
FIELD(fvlm_layerscale_forward, y, 32, fvlm_tensor*);

SIZE(fvlm_layerscale_backward, 56);
FIELD(fvlm_layerscale_backward, struct_size, 0, uint32_t);
FIELD(fvlm_layerscale_backward, accumulate, 4, int32_t);
FIELD(fvlm_layerscale_backward, x, 8, const fvlm_tensor*);
FIELD(fvlm_layerscale_backward, scale, 16, const fvlm_tensor*);
FIELD(fvlm_layerscale_backward, d_y, 24, const fvlm_tensor*);
FIELD(fvlm_layerscale_backward, d_x, 32, fvlm_tensor*);
FIELD(fvlm_layerscale_backward, d_scale, 40, fvlm_tensor*);
FIELD(fvlm_layerscale_backward, d_x_sums, 48, fvlm_tensor*);

SIZE(fvlm_linear_forward, 80);
FIELD(fvlm_linear_forward, struct_size, 0, uint32_t);
FIELD(fvlm_linear_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_linear_forward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_linear_forward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_linear_forward, y, 32, fvlm_tensor*);
FIELD(fvlm_linear_forward, pre_activation, 40, fvlm_tensor*);
FIELD(fvlm_linear_forward, residual, 48, const fvlm_tensor*);
FIELD(fvlm_linear_forward, rest, 56, const fvlm_tensor*);
FIELD(fvlm_linear_forward, y_rest, 64, fvlm_tensor*);

SIZE(fvlm_linear_input_gradient, 64);
FIELD(fvlm_linear_input_gradient, struct_size, 0, uint32_t);
FIELD(fvlm_linear_input_gradient, d_y, 8, const fvlm_tensor*);
FIELD(fvlm_linear_input_gradient, weight, 16, const fvlm_tensor*);
FIELD(fvlm_linear_input_gradient, pre_activation, 24, const fvlm_tensor*);
FIELD(fvlm_linear_input_gradient, d_x, 32, fvlm_tensor*);
FIELD(fvlm_linear_input_gradient, accumulate, 40, int32_t);
FIELD(fvlm_linear_input_gradient, d_x_sums, 48, fvlm_tensor*);

SIZE(fvlm_linear_weight_gradient, 56);
FIELD(fvlm_linear_weight_gradient, struct_size, 0, uint32_t);
FIELD(fvlm_linear_weight_gradient, accumulate, 4, int32_t);
FIELD(fvlm_linear_weight_gradient, d_y, 8, const fvlm_tensor*);
FIELD(fvlm_linear_weight_gradient, x, 16, const fvlm_tensor*);
FIELD(fvlm_linear_weight_gradient, d_weight, 24, fvlm_tensor*);
FIELD(fvlm_linear_weight_gradient, d_bias, 32, fvlm_tensor*);

SIZE(fvlm_scaled_rows_forward, 48);
FIELD(fvlm_scaled_rows_forward, struct_size, 0, uint32_t);
FIELD(fvlm_scaled_rows_forward, scale, 8, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_forward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_forward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_forward, scaled_weight, 32, fvlm_tensor*);
FIELD(fvlm_scaled_rows_forward, scaled_bias, 40, fvlm_tensor*);

SIZE(fvlm_scaled_rows_backward, 72);
FIELD(fvlm_scaled_rows_backward, struct_size, 0, uint32_t);
FIELD(fvlm_scaled_rows_backward, accumulate, 4, int32_t);
FIELD(fvlm_scaled_rows_backward, scale, 8, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, d_scaled_weight, 32, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, d_scaled_bias, 40, const fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, d_scale, 48, fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, d_weight, 56, fvlm_tensor*);
FIELD(fvlm_scaled_rows_backward, d_bias, 64, fvlm_tensor*);

SIZE(fvlm_convolution_forward, 72);
FIELD(fvlm_convolution_forward, struct_size, 0, uint32_t);
FIELD(fvlm_convolution_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, cu_seqlens, 32, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, slots, 40, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, starts, 48, const fvlm_tensor*);
FIELD(fvlm_convolution_forward, states, 56, fvlm_tensor*);
FIELD(fvlm_convolution_forward, y, 64, fvlm_tensor*);

SIZE(fvlm_convolution_backward, 72);
FIELD(fvlm_convolution_backward, struct_size, 0, uint32_t);
FIELD(fvlm_convolution_backward, accumulate, 4, int32_t);
FIELD(fvlm_convolution_backward, x, 8, const fvlm_tensor*);
FIELD(fvlm_convolution_backward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_convolution_backward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_convolution_backward, cu_seqlens, 32, const fvlm_tensor*);
FIELD(fvlm_convolution_backward, d_y, 40, const fvlm_tensor*);
FIELD(fvlm_convolution_backward, d_x, 48, fvlm_tensor*);
FIELD(fvlm_convolution_backward, d_weight, 56, fvlm_tensor*);
FIELD(fvlm_convolution_backward, d_bias, 64, fvlm_tensor*);

SIZE(fvlm_delta_rule_forward, 112);
FIELD(fvlm_delta_rule_forward, struct_size, 0, uint32_t);
FIELD(fvlm_delta_rule_forward, qkv, 8, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, gates, 16, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, log_decay, 24, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, step_bias, 32, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, cu_seqlens, 40, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, slots, 48, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, starts, 56, const fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, states, 64, fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, y, 72, fvlm_tensor*);
FIELD(fvlm_delta_rule_forward, saved, 80, fvlm_tensor* [4]);

SIZE(fvlm_delta_rule_backward, 120);
FIELD(fvlm_delta_rule_backward, struct_size, 0, uint32_t);
FIELD(fvlm_delta_rule_backward, accumulate, 4, int32_t);
FIELD(fvlm_delta_rule_backward, qkv, 8, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, gates, 16, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, log_decay, 24, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, step_bias, 32, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, cu_seqlens, 40, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, d_y, 48, const fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, saved, 56, const fvlm_tensor* [4]);
FIELD(fvlm_delta_rule_backward, d_qkv, 88, fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, d_gates, 96, fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, d_log_decay, 104, fvlm_tensor*);
FIELD(fvlm_delta_rule_backward, d_step_bias, 112, fvlm_tensor*);

SIZE(fvlm_experts_forward, 72);
FIELD(fvlm_experts_forward, struct_size, 0, uint32_t);
FIELD(fvlm_experts_forward, x, 8, const fvlm_tensor*);
FIELD(fvlm_experts_forward, logits, 16, const fvlm_tensor*);
FIELD(fvlm_experts_forward, bias, 24, const fvlm_tensor*);
FIELD(fvlm_experts_forward, gate_up, 32, const fvlm_tensor*);
FIELD(fvlm_experts_forward, down, 40, const fvlm_tensor*);
FIELD(fvlm_experts_forward, y, 48, fvlm_tensor*);
FIELD(fvlm_experts_forward, gate_up_scales, 56, const fvlm_tensor*);
FIELD(fvlm_experts_forward, down_scales, 64, const fvlm_tensor*);

SIZE(fvlm_kernels_v1, 216);
FIELD(fvlm_kernels_v1, base, 0, fvlm_table);
FIELD(fvlm_kernels_v1, supports, 24, void (*)(const fvlm_kernels_query*, fvlm_support*));
FIELD(fvlm_kernels_v1, requirements, 32,
      fvlm_status (*)(fvlm_instance*, const fvlm_kernels_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_kernels_v1, prepare, 40, fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*));
FIELD(fvlm_kernels_v1, rmsnorm_forward, 48,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_norm_forward*));
FIELD(fvlm_kernels_v1, rmsnorm_backward, 56,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_norm_backward*));
FIELD(fvlm_kernels_v1, layernorm_forward, 64,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_norm_forward*));
FIELD(fvlm_kernels_v1, layernorm_backward, 72,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_norm_backward*));
FIELD(fvlm_kernels_v1, rope, 80,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_rope_apply*));
FIELD(fvlm_kernels_v1, swiglu_forward, 88,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_swiglu_forward*));
FIELD(fvlm_kernels_v1, swiglu_backward, 96,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_swiglu_backward*));
FIELD(fvlm_kernels_v1, bias_gelu_forward, 104,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_bias_gelu_forward*));
FIELD(fvlm_kernels_v1, bias_gelu_backward, 112,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_bias_gelu_backward*));
FIELD(fvlm_kernels_v1, layerscale_forward, 120,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_layerscale_forward*));
FIELD(fvlm_kernels_v1, layerscale_backward, 128,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_layerscale_backward*));
FIELD(fvlm_kernels_v1, linear_forward, 136,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_linear_forward*));
FIELD(fvlm_kernels_v1, linear_input_gradient, 144,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_linear_input_gradient*));
FIELD(fvlm_kernels_v1, linear_weight_gradient, 152,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_linear_weight_gradient*));
FIELD(fvlm_kernels_v1, scaled_rows_forward, 160,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_scaled_rows_forward*));
FIELD(fvlm_kernels_v1, scaled_rows_backward, 168,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_scaled_rows_backward*));
FIELD(fvlm_kernels_v1, short_convolution_forward, 176,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_convolution_forward*));
FIELD(fvlm_kernels_v1, short_convolution_backward, 184,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_convolution_backward*));
FIELD(fvlm_kernels_v1, delta_rule_forward, 192,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_delta_rule_forward*));
FIELD(fvlm_kernels_v1, delta_rule_backward, 200,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_delta_rule_backward*));
FIELD(fvlm_kernels_v1, experts_forward, 208,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_experts_forward*));

} // namespace
