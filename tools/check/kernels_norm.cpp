// rmsnorm and layernorm, with and without a residual.
#include "check/formulas.h"
#include "check/kernels.h"

#include <ATen/ops/rsqrt.h>

#include <cmath>

namespace fvlm::check {
namespace {

struct Numbers {
  at::Tensor x, residual, weight, bias, d_y, d_sum, held_weight, held_bias, held_sums, rest, gate;
};

Numbers numbers_of(const KernelCase& c) {
  const uint64_t seed = c.seed * 16;
  const int64_t columns = c.columns(), width = c.per_head ? c.head_dim : c.width;
  Numbers n{normal({c.rows, columns}, seed, c.dtype, c.magnitude) + 0.25,
            normal({c.rows, columns}, seed + 1, c.dtype, c.magnitude),
            normal({width}, seed + 2, c.dtype, 0.5) + 1,
            normal({width}, seed + 3, c.dtype),
            normal({c.rows, columns}, seed + 4, c.dtype),
            normal({c.rows, columns}, seed + 5, c.dtype),
            normal({width}, seed + 6, c.gradient_dtype),
            normal({width}, seed + 7, c.gradient_dtype),
            normal({columns}, seed + 8, c.gradient_dtype),
            normal({c.rows, columns}, seed + 9, c.dtype, c.magnitude / 512),
            normal({c.rows, columns}, seed + 10, c.dtype, 2)};
  if (c.ties) {
    n.x = tie_values({c.rows, columns}, c.dtype);
    if (c.ties_up) n.x = n.x - n.x.remainder(2) + 1; // the even number lies above them
    n.residual = filled({c.rows, columns}, c.dtype, 0.5);
    n.weight = filled({width}, c.dtype, 1), n.bias = filled({width}, c.dtype, 0);
  }
  return n;
}

// One row for each norm.
at::Tensor norms_of(const KernelCase& c, const at::Tensor& rows) {
  return c.per_head ? rows.view({-1, c.head_dim}) : rows;
}

// y, s, d_x, d_weight, d_bias, sums of d_x, d_gate
std::vector<at::Tensor> formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  const auto sums = at_least_float(work);
  auto x = leaf(n.x, work), weight = leaf(n.weight, work), bias = leaf(n.bias, work), gate = leaf(n.gate, work);
  auto s = c.residual ? x + n.residual.to(work) : x * 1;
  if (c.reads_compensation) s = s + n.rest.to(work);
  auto wide = norms_of(c, s.to(sums));
  at::Tensor y;
  if (c.op == FVLM_OP_RMSNORM) {
    auto normed = (wide * at::rsqrt(wide.square().mean(1, true) + static_cast<double>(c.epsilon)) * weight.to(sums))
                      .view(s.sizes());
    y = (c.gate ? normed * gate.to(sums) * gate.to(sums).sigmoid() : normed).to(work);
  } else {
    auto centred = wide - wide.mean(1, true);
    auto scale = at::rsqrt(centred.square().mean(1, true) + static_cast<double>(c.epsilon));
    y = (centred * scale * weight.to(sums) + bias.to(sums)).to(work);
  }
  std::vector<at::Tensor> outputs{y}, d_outputs{n.d_y};
  if (c.has_d_sum) {
    outputs.push_back(s);
    d_outputs.push_back(n.d_sum);
  }
  auto d = gradients(outputs, {x, weight, bias, gate}, d_outputs);
  return {y.detach(),
          s.detach(),
          d[0],
          accumulated(c, n.held_weight, d[1]),
          accumulated(c, n.held_bias, d[2]),
          accumulated(c, n.held_sums, d[0].to(sums).sum(0)),
          d[3]};
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  auto centred = c.op == FVLM_OP_RMSNORM ? norms_of(c, exact[1]) : exact[1] - exact[1].mean(1, true);
  auto spread = at::rsqrt(centred.square().mean(1, true) + static_cast<double>(c.epsilon));
  const double steep = c.rows > 0 ? spread.max().item<double>() : 0;
  // A row with little spread: s - mean cancels, and its rounding is multiplied by rsqrt.
  const double rounding = c.op == FVLM_OP_LAYERNORM ? steep * root_mean_square(exact[1]) : 0;
  Expectation all{{"y", exact[0], naive[0], c.dtype, rounding}};
  if (c.residual) all.push_back({"sum", exact[1], naive[1], c.dtype});
  if (c.writes_compensation) {
    const at::Tensor lost = exact[1] - exact[1].to(c.dtype).to(at::kDouble);
    all.push_back({"sum_rest", lost, lost, c.dtype});
  }
  if (!c.backward) return all;
  // d_x is d_y without its components along x (and 1), so with width 1 it is zero.
  all.push_back({"d_x", exact[2], naive[2], c.dtype, steep * root_mean_square(n.d_y)});
  if (c.gate) all.push_back({"d_gate", exact[6], naive[6], c.dtype});
  if (c.column_sums)
    all.push_back({"d_x_sums", exact[5], naive[5], c.gradient_dtype,
                   steep * root_mean_square(n.d_y) * std::sqrt(static_cast<double>(c.rows))});
  if (c.frozen) return all;
  all.push_back({"d_weight", exact[3], naive[3], c.gradient_dtype, std::max(1.0, rounding) * root_mean_square(n.d_y)});
  if (c.op == FVLM_OP_LAYERNORM) all.push_back({"d_bias", exact[4], naive[4], c.gradient_dtype});
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const bool rms = c.op == FVLM_OP_RMSNORM;
  const Numbers n = numbers_of(c);

  Operand& x = bench.input("x", n.x);
  Operand* residual = c.residual ? &bench.input("residual", n.residual) : nullptr;
  Operand& weight = bench.input("weight", n.weight, Rows::contiguous);
  Operand* bias = rms ? nullptr : &bench.input("bias", n.bias, Rows::contiguous);
  Operand* gate = c.gate ? &bench.input("gate", n.gate) : nullptr;
  Operand& y = bench.output("y", n.x.sizes(), c.dtype);
  const bool second_choice = bench.variation().alias == 2;
  Operand* sum = c.residual ? &bench.output_over(second_choice ? residual : &x, "sum", n.x.sizes(), c.dtype) : nullptr;
  Operand* rest = c.reads_compensation ? &bench.input("rest", n.rest) : nullptr;
  Operand* sum_rest = c.writes_compensation ? &bench.output_over(rest, "sum_rest", n.x.sizes(), c.dtype) : nullptr;
  auto saved = c.backward ? bench.saved("saved") : std::vector<Operand*>{};

  fvlm_norm_forward forward{};
  forward.x = x.abi(), forward.residual = abi_of(residual);
  forward.weight = weight.abi(), forward.bias = abi_of(bias);
  forward.y = y.abi(), forward.sum = abi_of(sum);
  forward.rest = abi_of(rest), forward.sum_rest = abi_of(sum_rest);
  forward.gate = abi_of(gate);
  for (size_t i = 0; i < saved.size(); ++i) forward.saved[i] = saved[i]->abi();
  bench.call("forward", bench.required().forward_workspace, rms ? table.rmsnorm_forward : table.layernorm_forward,
             forward);
  if (!c.backward || !bench.can_continue()) return;

  Operand& d_y = bench.input("d_y", n.d_y);
  Operand* d_sum = c.has_d_sum ? &bench.input("d_sum", n.d_sum) : nullptr;
  Operand& d_x = bench.output_over(second_choice && d_sum ? d_sum : &d_y, "d_x", n.x.sizes(), c.dtype);
  Operand* d_gate = c.gate ? &bench.output("d_gate", n.x.sizes(), c.dtype) : nullptr;
  Operand* d_weight = parameter_gradient(bench, c, "d_weight", n.held_weight);
  Operand* d_bias = rms ? nullptr : parameter_gradient(bench, c, "d_bias", n.held_bias);
  Operand* sums = c.column_sums ? &accumulated_output(bench, c, "d_x_sums", n.held_sums) : nullptr;
  fvlm_norm_backward backward{};
  backward.accumulate = c.accumulate;
  backward.d_y = d_y.abi(), backward.d_sum = abi_of(d_sum);
  backward.s = sum ? sum->abi() : x.abi(), backward.weight = weight.abi();
  for (size_t i = 0; i < saved.size(); ++i) backward.saved[i] = saved[i]->abi();
  backward.d_x = d_x.abi(), backward.d_weight = abi_of(d_weight), backward.d_bias = abi_of(d_bias);
  backward.d_x_sums = abi_of(sums);
  backward.gate = abi_of(gate), backward.d_gate = abi_of(d_gate);
  bench.call("backward", bench.required().backward_workspace, rms ? table.rmsnorm_backward : table.layernorm_backward,
             backward);
}

} // namespace

const Kernel norm_kernel{run, expect};

std::string norm_of_unrounded_sum(const KernelCase& c, const Run& run) {
  const at::Tensor &y = *run.output("y"), sum = run.output("sum")->to(at::kDouble);
  const at::Tensor centred = c.op == FVLM_OP_RMSNORM ? sum : sum - sum.mean(1, true);
  const at::Tensor exact = centred * at::rsqrt(centred.square().mean(1, true) + static_cast<double>(c.epsilon));
  const at::Tensor allowed = (exact.to(c.dtype).to(at::kDouble) - exact).abs() + exact.abs() * 1e-4 + 1e-5;
  const double share = ((y.to(at::kDouble) - exact).abs() > allowed).to(at::kDouble).mean().item<double>();
  // An approximate root may place some elements on the wrong side of a rounding.
  return share <= 0.15 ? "" : fmt::format("{:.0f} % of y are not the norm of `sum`, as it was rounded", 100 * share);
}

} // namespace fvlm::check
