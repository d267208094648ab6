// rope, swiglu, bias + gelu, layer-scale + residual.
#include "check/formulas.h"
#include "check/kernels.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>

namespace fvlm::check {
namespace {

namespace rope {

at::Tensor x_of(const KernelCase& c) {
  return normal({c.rows, c.heads, c.head_dim}, c.seed * 16, c.dtype, c.magnitude);
}

at::Tensor positions_of(const KernelCase& c) {
  // Packed segments: positions restart every seven rows.
  return (at::arange(c.rows).remainder(7) + c.first_position).to(at::kInt);
}

// Unlike those of any theta.
at::Tensor frequencies_of(const KernelCase& c) {
  if (!c.frequencies) return {};
  const auto index = at::arange(c.rotary_dim / 2, at::kDouble);
  return at::exp(index * -0.3) / (index.remainder(3) + 1);
}

Expectation expect(const KernelCase& c) {
  auto x = x_of(c);
  auto turned = [&](at::ScalarType work) {
    if (c.frequencies) return rotate(x.to(work), positions_of(c), frequencies_of(c), c.inverse);
    return rotate(x.to(work), positions_of(c), c.rotary_dim, c.theta, c.inverse);
  };
  return {{"out", turned(at::kDouble), turned(c.dtype), c.dtype}};
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  Operand& x = bench.input("x", x_of(c));
  Operand& positions = bench.input("positions", positions_of(c), Rows::contiguous);
  Operand& out = bench.output_over(&x, "out", x.view().sizes(), c.dtype);
  Operand* frequencies = c.frequencies ? &bench.input("frequencies", frequencies_of(c), Rows::contiguous) : nullptr;
  const fvlm_requirements& needs = bench.required();
  bench.call("forward", c.inverse ? needs.backward_workspace : needs.forward_workspace, table.rope,
             fvlm_rope_apply{0, c.inverse, x.abi(), positions.abi(), out.abi(), abi_of(frequencies)});
}

} // namespace rope

namespace swiglu {

struct Numbers {
  at::Tensor gate, up, d_y;
};

Numbers numbers_of(const KernelCase& c) {
  // silu is the identity for numbers this large.
  if (c.ties)
    return {tie_values({c.rows, c.width}, c.dtype), filled({c.rows, c.width}, c.dtype, 1.5),
            filled({c.rows, c.width}, c.dtype, 1.5)};
  return {normal({c.rows, c.width}, c.seed * 16, c.dtype, c.magnitude),
          normal({c.rows, c.width}, c.seed * 16 + 1, c.dtype), normal({c.rows, c.width}, c.seed * 16 + 2, c.dtype)};
}

std::vector<at::Tensor> formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  auto gate = leaf(n.gate, work), up = leaf(n.up, work);
  auto y = (c.gelu_form ? gelu_of(c, gate) : gate * at::sigmoid(gate)) * up;
  auto d = gradients({y}, {gate, up}, {n.d_y});
  return {y.detach(), d[0], d[1]};
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"y", exact[0], naive[0], c.dtype}};
  if (c.backward) {
    all.push_back({"d_gate", exact[1], naive[1], c.dtype});
    all.push_back({"d_up", exact[2], naive[2], c.dtype});
    if (c.output) all.push_back({"y again", exact[0], naive[0], c.dtype});
  }
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &gate = bench.input("gate", n.gate), &up = bench.input("up", n.up);
  Operand& y = bench.output("y", n.gate.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.swiglu_forward,
             fvlm_swiglu_forward{0, gate.abi(), up.abi(), y.abi()});
  if (!c.backward || !bench.can_continue()) return;
  Operand& d_y = bench.input("d_y", n.d_y);
  Operand& d_gate = bench.output_over(&gate, "d_gate", n.gate.sizes(), c.dtype);
  Operand& d_up = bench.output_over(&up, "d_up", n.gate.sizes(), c.dtype);
  Operand* again = c.output ? &bench.output_over(&d_y, "y again", n.gate.sizes(), c.dtype) : nullptr;
  bench.call("backward", bench.required().backward_workspace, table.swiglu_backward,
             fvlm_swiglu_backward{0, gate.abi(), up.abi(), d_y.abi(), d_gate.abi(), d_up.abi(), abi_of(again)});
}

} // namespace swiglu

namespace bias_gelu {

struct Numbers {
  at::Tensor x, bias, d_y, held;
};

Numbers numbers_of(const KernelCase& c) {
  // gelu is the identity for numbers this large.
  if (c.ties)
    return {tie_values({c.rows, c.width}, c.dtype), filled({c.width}, c.dtype, 0.5),
            filled({c.rows, c.width}, c.dtype, 0.5), tie_values({c.width}, c.gradient_dtype)};
  return {normal({c.rows, c.width}, c.seed * 16, c.dtype, c.magnitude), normal({c.width}, c.seed * 16 + 1, c.dtype),
          normal({c.rows, c.width}, c.seed * 16 + 2, c.dtype), normal({c.width}, c.seed * 16 + 3, c.gradient_dtype)};
}

std::vector<at::Tensor> formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  auto x = leaf(n.x, work), bias = leaf(n.bias, work);
  auto sum = c.bias ? x + bias : x;
  auto y = gelu_of(c, sum);
  auto d = gradients({y}, {x, bias}, {n.d_y});
  return {y.detach(), d[0], accumulated(c, n.held, d[1])};
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"y", exact[0], naive[0], c.dtype}};
  if (c.backward) all.push_back({"d_x", exact[1], naive[1], c.dtype});
  if (c.backward && c.bias && !c.frozen) all.push_back({"d_bias", exact[2], naive[2], c.gradient_dtype});
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand& x = bench.input("x", n.x);
  Operand* bias = c.bias ? &bench.input("bias", n.bias, Rows::contiguous) : nullptr;
  Operand& y = bench.output("y", n.x.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.bias_gelu_forward,
             fvlm_bias_gelu_forward{0, x.abi(), abi_of(bias), y.abi()});
  if (!c.backward || !bench.can_continue()) return;
  Operand& d_y = bench.input("d_y", n.d_y);
  Operand& d_x = bench.output_over(&d_y, "d_x", n.x.sizes(), c.dtype);
  Operand* d_bias = c.bias ? parameter_gradient(bench, c, "d_bias", n.held) : nullptr;
  bench.call("backward", bench.required().backward_workspace, table.bias_gelu_backward,
             fvlm_bias_gelu_backward{0, c.accumulate, x.abi(), abi_of(bias), d_y.abi(), d_x.abi(), abi_of(d_bias)});
}

} // namespace bias_gelu

namespace layerscale {

struct Numbers {
  at::Tensor x, scale, residual, d_y, held, held_sums;
};

Numbers numbers_of(const KernelCase& c) {
  if (c.ties)
    return {filled({c.rows, c.width}, c.dtype, 0.5), filled({c.width}, c.dtype, 1),
            tie_values({c.rows, c.width}, c.dtype),  filled({c.rows, c.width}, c.dtype, 1),
            tie_values({c.width}, c.gradient_dtype), tie_values({c.width}, c.gradient_dtype)};
  return {normal({c.rows, c.width}, c.seed * 16, c.dtype, c.magnitude),
          normal({c.width}, c.seed * 16 + 1, c.dtype),
          normal({c.rows, c.width}, c.seed * 16 + 2, c.dtype),
          normal({c.rows, c.width}, c.seed * 16 + 3, c.dtype),
          normal({c.width}, c.seed * 16 + 4, c.gradient_dtype),
          normal({c.width}, c.seed * 16 + 5, c.gradient_dtype)};
}

std::vector<at::Tensor> formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  auto x = leaf(n.x, work), scale = leaf(n.scale, work);
  auto y = n.residual.to(work) + scale * x;
  auto d = gradients({y}, {x, scale}, {n.d_y});
  return {y.detach(), d[0], accumulated(c, n.held, d[1]), accumulated(c, n.held_sums, d[0].sum(0))};
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"y", exact[0], naive[0], c.dtype}};
  if (c.backward) all.push_back({"d_x", exact[1], naive[1], c.dtype});
  if (c.backward && !c.frozen) all.push_back({"d_scale", exact[2], naive[2], c.gradient_dtype});
  if (c.backward && c.column_sums) all.push_back({"d_x_sums", exact[3], naive[3], c.gradient_dtype});
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &x = bench.input("x", n.x), &scale = bench.input("scale", n.scale, Rows::contiguous),
          &residual = bench.input("residual", n.residual);
  Operand& y = bench.output_over(&residual, "y", n.x.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.layerscale_forward,
             fvlm_layerscale_forward{0, x.abi(), scale.abi(), residual.abi(), y.abi()});
  if (!c.backward || !bench.can_continue()) return;
  Operand& d_y = bench.input("d_y", n.d_y);
  Operand& d_x = bench.output("d_x", n.x.sizes(), c.dtype);
  Operand* d_scale = parameter_gradient(bench, c, "d_scale", n.held);
  Operand* sums = c.column_sums ? &accumulated_output(bench, c, "d_x_sums", n.held_sums) : nullptr;
  bench.call("backward", bench.required().backward_workspace, table.layerscale_backward,
             fvlm_layerscale_backward{0, c.accumulate, x.abi(), scale.abi(), d_y.abi(), d_x.abi(), abi_of(d_scale),
                                      abi_of(sums)});
}

} // namespace layerscale

} // namespace

at::Tensor gelu_of(const KernelCase& c, const at::Tensor& x) {
  if (c.gelu_form == FVLM_QUICK_GELU) return x * at::sigmoid(x * 1.702);
  if (c.gelu_form == FVLM_GELU_TANH) return x * at::sigmoid((x + x * x * x * 0.044715) * (2 * std::sqrt(2 / M_PI)));
  return x * ((at::erf(x * 0.7071067811865476) + 1) * 0.5);
}

const Kernel rope_kernel{rope::run, rope::expect};
const Kernel swiglu_kernel{swiglu::run, swiglu::expect};
const Kernel bias_gelu_kernel{bias_gelu::run, bias_gelu::expect};
const Kernel layerscale_kernel{layerscale::run, layerscale::expect};

} // namespace fvlm::check
