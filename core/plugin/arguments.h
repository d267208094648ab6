// Reflection for the argument structs of the ABI: their tensors, by name. Whether a call may write a tensor follows
// from the member's type (`fvlm_tensor*` or `const fvlm_tensor*`), so it is not listed here.
#pragma once
#include <fvlm/fvlm.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>

namespace fvlm {
namespace detail {

template <class Member>
struct Field {
  const char* name;
  Member member;
};
template <class Member>
constexpr Field<Member> field(const char* name, Member member) {
  return {name, member};
}

constexpr auto fields_of(const fvlm_attention_forward*) {
  using A = fvlm_attention_forward;
  return std::make_tuple(field("q", &A::q), field("k", &A::k), field("v", &A::v),
                         field("cu_seqlens_q", &A::cu_seqlens_q), field("cu_seqlens_kv", &A::cu_seqlens_kv),
                         field("positions_q", &A::positions_q), field("positions_kv", &A::positions_kv),
                         field("out", &A::out), field("saved", &A::saved));
}
constexpr auto fields_of(const fvlm_attention_backward*) {
  using A = fvlm_attention_backward;
  return std::make_tuple(field("q", &A::q), field("k", &A::k), field("v", &A::v), field("out", &A::out),
                         field("d_out", &A::d_out), field("cu_seqlens_q", &A::cu_seqlens_q),
                         field("cu_seqlens_kv", &A::cu_seqlens_kv), field("positions_q", &A::positions_q),
                         field("positions_kv", &A::positions_kv), field("saved", &A::saved), field("d_q", &A::d_q),
                         field("d_k", &A::d_k), field("d_v", &A::d_v));
}
constexpr auto fields_of(const fvlm_paged_attention*) {
  using A = fvlm_paged_attention;
  return std::make_tuple(field("q", &A::q), field("k_pages", &A::k_pages), field("v_pages", &A::v_pages),
                         field("page_table", &A::page_table), field("sequences", &A::sequences),
                         field("lengths", &A::lengths), field("out", &A::out), field("k", &A::k), field("v", &A::v),
                         field("q_norm", &A::q_norm), field("k_norm", &A::k_norm),
                         field("frequencies", &A::frequencies));
}
constexpr auto fields_of(const fvlm_norm_forward*) {
  using A = fvlm_norm_forward;
  return std::make_tuple(field("x", &A::x), field("residual", &A::residual), field("weight", &A::weight),
                         field("bias", &A::bias), field("y", &A::y), field("sum", &A::sum), field("saved", &A::saved),
                         field("rest", &A::rest), field("sum_rest", &A::sum_rest), field("gate", &A::gate));
}
constexpr auto fields_of(const fvlm_norm_backward*) {
  using A = fvlm_norm_backward;
  return std::make_tuple(field("d_y", &A::d_y), field("d_sum", &A::d_sum), field("s", &A::s),
                         field("weight", &A::weight), field("saved", &A::saved), field("d_x", &A::d_x),
                         field("d_weight", &A::d_weight), field("d_bias", &A::d_bias), field("d_x_sums", &A::d_x_sums),
                         field("gate", &A::gate), field("d_gate", &A::d_gate));
}
constexpr auto fields_of(const fvlm_rope_apply*) {
  using A = fvlm_rope_apply;
  return std::make_tuple(field("x", &A::x), field("positions", &A::positions), field("out", &A::out));
}
constexpr auto fields_of(const fvlm_swiglu_forward*) {
  using A = fvlm_swiglu_forward;
  return std::make_tuple(field("gate", &A::gate), field("up", &A::up), field("y", &A::y));
}
constexpr auto fields_of(const fvlm_swiglu_backward*) {
  using A = fvlm_swiglu_backward;
  return std::make_tuple(field("gate", &A::gate), field("up", &A::up), field("d_y", &A::d_y),
                         field("d_gate", &A::d_gate), field("d_up", &A::d_up), field("y", &A::y));
}
constexpr auto fields_of(const fvlm_bias_gelu_forward*) {
  using A = fvlm_bias_gelu_forward;
  return std::make_tuple(field("x", &A::x), field("bias", &A::bias), field("y", &A::y));
}
constexpr auto fields_of(const fvlm_bias_gelu_backward*) {
  using A = fvlm_bias_gelu_backward;
  return std::make_tuple(field("x", &A::x), field("bias", &A::bias), field("d_y", &A::d_y), field("d_x", &A::d_x),
                         field("d_bias", &A::d_bias));
}
constexpr auto fields_of(const fvlm_layerscale_forward*) {
  using A = fvlm_layerscale_forward;
  return std::make_tuple(field("x", &A::x), field("scale", &A::scale), field("residual", &A::residual),
                         field("y", &A::y));
}
constexpr auto fields_of(const fvlm_layerscale_backward*) {
  using A = fvlm_layerscale_backward;
  return std::make_tuple(field("x", &A::x), field("scale", &A::scale), field("d_y", &A::d_y), field("d_x", &A::d_x),
                         field("d_scale", &A::d_scale), field("d_x_sums", &A::d_x_sums));
}
constexpr auto fields_of(const fvlm_linear_forward*) {
  using A = fvlm_linear_forward;
  return std::make_tuple(field("x", &A::x), field("weight", &A::weight), field("bias", &A::bias), field("y", &A::y),
                         field("pre_activation", &A::pre_activation), field("residual", &A::residual),
                         field("rest", &A::rest), field("y_rest", &A::y_rest), field("norm_weight", &A::norm_weight));
}
constexpr auto fields_of(const fvlm_linear_input_gradient*) {
  using A = fvlm_linear_input_gradient;
  return std::make_tuple(field("d_y", &A::d_y), field("weight", &A::weight),
                         field("pre_activation", &A::pre_activation), field("d_x", &A::d_x),
                         field("d_x_sums", &A::d_x_sums), field("x", &A::x));
}
constexpr auto fields_of(const fvlm_linear_weight_gradient*) {
  using A = fvlm_linear_weight_gradient;
  return std::make_tuple(field("d_y", &A::d_y), field("x", &A::x), field("d_weight", &A::d_weight),
                         field("d_bias", &A::d_bias), field("weight", &A::weight), field("d_x", &A::d_x));
}
constexpr auto fields_of(const fvlm_scaled_rows_forward*) {
  using A = fvlm_scaled_rows_forward;
  return std::make_tuple(field("scale", &A::scale), field("weight", &A::weight), field("bias", &A::bias),
                         field("scaled_weight", &A::scaled_weight), field("scaled_bias", &A::scaled_bias));
}
constexpr auto fields_of(const fvlm_scaled_rows_backward*) {
  using A = fvlm_scaled_rows_backward;
  return std::make_tuple(field("scale", &A::scale), field("weight", &A::weight), field("bias", &A::bias),
                         field("d_scaled_weight", &A::d_scaled_weight), field("d_scaled_bias", &A::d_scaled_bias),
                         field("d_scale", &A::d_scale), field("d_weight", &A::d_weight), field("d_bias", &A::d_bias));
}
constexpr auto fields_of(const fvlm_convolution_forward*) {
  using A = fvlm_convolution_forward;
  return std::make_tuple(field("x", &A::x), field("weight", &A::weight), field("bias", &A::bias),
                         field("cu_seqlens", &A::cu_seqlens), field("slots", &A::slots), field("starts", &A::starts),
                         field("states", &A::states), field("y", &A::y));
}
constexpr auto fields_of(const fvlm_convolution_backward*) {
  using A = fvlm_convolution_backward;
  return std::make_tuple(field("x", &A::x), field("weight", &A::weight), field("bias", &A::bias),
                         field("cu_seqlens", &A::cu_seqlens), field("d_y", &A::d_y), field("d_x", &A::d_x),
                         field("d_weight", &A::d_weight), field("d_bias", &A::d_bias));
}
constexpr auto fields_of(const fvlm_delta_rule_forward*) {
  using A = fvlm_delta_rule_forward;
  return std::make_tuple(field("qkv", &A::qkv), field("gates", &A::gates), field("log_decay", &A::log_decay),
                         field("step_bias", &A::step_bias), field("cu_seqlens", &A::cu_seqlens),
                         field("slots", &A::slots), field("starts", &A::starts), field("states", &A::states),
                         field("y", &A::y), field("saved", &A::saved));
}
constexpr auto fields_of(const fvlm_delta_rule_backward*) {
  using A = fvlm_delta_rule_backward;
  return std::make_tuple(field("qkv", &A::qkv), field("gates", &A::gates), field("log_decay", &A::log_decay),
                         field("step_bias", &A::step_bias), field("cu_seqlens", &A::cu_seqlens), field("d_y", &A::d_y),
                         field("saved", &A::saved), field("d_qkv", &A::d_qkv), field("d_gates", &A::d_gates),
                         field("d_log_decay", &A::d_log_decay), field("d_step_bias", &A::d_step_bias));
}
constexpr auto fields_of(const fvlm_experts_forward*) {
  using A = fvlm_experts_forward;
  return std::make_tuple(field("x", &A::x), field("logits", &A::logits), field("bias", &A::bias),
                         field("gate_up", &A::gate_up), field("down", &A::down), field("y", &A::y),
                         field("gate_up_scales", &A::gate_up_scales), field("down_scales", &A::down_scales));
}
constexpr auto fields_of(const fvlm_loss_forward*) {
  using A = fvlm_loss_forward;
  return std::make_tuple(field("hidden", &A::hidden), field("weight", &A::weight), field("targets", &A::targets),
                         field("losses", &A::losses), field("saved", &A::saved));
}
constexpr auto fields_of(const fvlm_loss_backward*) {
  using A = fvlm_loss_backward;
  return std::make_tuple(field("hidden", &A::hidden), field("weight", &A::weight), field("targets", &A::targets),
                         field("d_losses", &A::d_losses), field("saved", &A::saved), field("d_hidden", &A::d_hidden),
                         field("d_weight", &A::d_weight));
}
constexpr auto fields_of(const fvlm_loss_fused*) {
  using A = fvlm_loss_fused;
  return std::make_tuple(field("hidden", &A::hidden), field("weight", &A::weight), field("targets", &A::targets),
                         field("d_losses", &A::d_losses), field("losses", &A::losses), field("d_hidden", &A::d_hidden),
                         field("d_weight", &A::d_weight));
}
constexpr auto fields_of(const fvlm_optimizer_step*) {
  using A = fvlm_optimizer_step;
  return std::make_tuple(field("master", &A::master), field("parameter", &A::parameter),
                         field("gradient", &A::gradient), field("state", &A::state), field("segments", &A::segments),
                         field("hyper", &A::hyper), field("step", &A::step), field("scale", &A::scale),
                         field("skip", &A::skip));
}
constexpr auto fields_of(const fvlm_quantizer_pack*) {
  using A = fvlm_quantizer_pack;
  return std::make_tuple(field("weight", &A::weight), field("packed", &A::packed), field("importance", &A::importance));
}
constexpr auto fields_of(const fvlm_quantizer_unpack*) {
  using A = fvlm_quantizer_unpack;
  return std::make_tuple(field("packed", &A::packed), field("weight", &A::weight));
}
constexpr auto fields_of(const fvlm_quantizer_linear*) {
  using A = fvlm_quantizer_linear;
  return std::make_tuple(field("packed", &A::packed), field("x", &A::x), field("bias", &A::bias), field("y", &A::y),
                         field("residual", &A::residual), field("norm_weight", &A::norm_weight));
}
constexpr auto fields_of(const fvlm_quantizer_linear_gradient*) {
  using A = fvlm_quantizer_linear_gradient;
  return std::make_tuple(field("packed", &A::packed), field("d_y", &A::d_y), field("d_x", &A::d_x));
}
constexpr auto fields_of(const fvlm_fake_quantize_forward*) {
  using A = fvlm_fake_quantize_forward;
  return std::make_tuple(field("weight", &A::weight), field("out", &A::out));
}
constexpr auto fields_of(const fvlm_fake_quantize_backward*) {
  using A = fvlm_fake_quantize_backward;
  return std::make_tuple(field("weight", &A::weight), field("d_out", &A::d_out), field("d_weight", &A::d_weight));
}

// Calls visit(name, pointer) for a pointer member, and for each element of an array of them.
template <class Value, class Visit>
void visit_field(const char* name, Value& value, Visit& visit) {
  if constexpr (std::is_array_v<Value>) {
    // append() in place of operator+, for which gcc 12 has a false warning.
    for (size_t i = 0; i < std::extent_v<Value>; ++i)
      visit(std::string(name).append("[").append(std::to_string(i)).append("]"), value[i]);
  } else {
    visit(std::string(name), value);
  }
}

template <class Value>
constexpr bool writable = std::is_same_v<std::remove_all_extents_t<Value>, fvlm_tensor*>;

} // namespace detail

// Calls visit(const std::string& name, const fvlm_tensor* tensor) for every tensor argument, including NULL ones.
template <class Arguments, class Visit>
void each_tensor(const Arguments& arguments, Visit&& visit) {
  std::apply([&](const auto&... field) { (detail::visit_field(field.name, arguments.*field.member, visit), ...); },
             detail::fields_of(&arguments));
}

// Calls visit(const std::string& name, fvlm_tensor*& tensor) for every tensor argument that the call may write.
template <class Arguments, class Visit>
void each_output(Arguments& arguments, Visit&& visit) {
  auto one = [&](const auto& field) {
    auto& value = arguments.*field.member;
    if constexpr (detail::writable<std::remove_reference_t<decltype(value)>>)
      detail::visit_field(field.name, value, visit);
  };
  std::apply([&](const auto&... field) { (one(field), ...); }, detail::fields_of(&arguments));
}

} // namespace fvlm
