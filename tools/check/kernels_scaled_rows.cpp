// scaled_rows (fold_row_scale): LayerScale folded into linears, and the gradients of scale, weight and bias.
#include "check/formulas.h"
#include "check/kernels.h"

#include <cmath>

namespace fvlm::check {
namespace {

struct Numbers {
  at::Tensor scale, weight, bias, d_scaled_weight, d_scaled_bias, held_scale, held_weight, held_bias;
};

Numbers numbers_of(const KernelCase& c) {
  const uint64_t seed = c.seed * 16;
  const std::vector<int64_t> rows{c.rows, c.width}, matrices{c.rows, c.width, c.inner};
  const auto wide = at_least_float(c.dtype);
  Numbers n{normal(rows, seed, c.dtype),
            normal(matrices, seed + 1, c.dtype, 1 / std::sqrt(static_cast<double>(c.inner))),
            normal(rows, seed + 2, c.dtype),
            normal(matrices, seed + 3, wide),
            normal(rows, seed + 4, wide),
            normal(rows, seed + 5, c.gradient_dtype),
            normal(matrices, seed + 6, c.gradient_dtype),
            normal(rows, seed + 7, c.gradient_dtype)};
  if (c.ties)
    n.scale = filled(rows, c.dtype, 1.5), n.weight = tie_values(matrices, c.dtype), n.bias = tie_values(rows, c.dtype);
  return n;
}

// scaled_weight, scaled_bias, d_scale, d_weight, d_bias
std::vector<at::Tensor> formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  auto scale = leaf(n.scale, work), weight = leaf(n.weight, work), bias = leaf(n.bias, work);
  auto scaled_weight = weight * scale.unsqueeze(2), scaled_bias = bias * scale;
  auto d = gradients({scaled_weight, scaled_bias}, {scale, weight, bias}, {n.d_scaled_weight, n.d_scaled_bias});
  return {scaled_weight.detach(), scaled_bias.detach(), accumulated(c, n.held_scale, d[0]),
          accumulated(c, n.held_weight, d[1]), accumulated(c, n.held_bias, d[2])};
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  const auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"scaled_weight", exact[0], naive[0], c.dtype}, {"scaled_bias", exact[1], naive[1], c.dtype}};
  if (!c.backward) return all;
  all.push_back({"d_bias", exact[4], naive[4], c.gradient_dtype});
  if (c.frozen) return all;
  all.push_back({"d_scale", exact[2], naive[2], c.gradient_dtype});
  all.push_back({"d_weight", exact[3], naive[3], c.gradient_dtype});
  return all;
}

// A strided operand for gradients of several layers, spaced like their parameters.
Operand* spaced_gradient(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held) {
  return c.accumulate ? &bench.updated(name, held, Rows::free) : &bench.output(name, held.sizes(), held.scalar_type());
}

// With `frozen`, only the bias has a gradient, and d_scaled_weight is not given.
void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &scale = bench.input("scale", n.scale), &weight = bench.input("weight", n.weight),
          &bias = bench.input("bias", n.bias);
  Operand& scaled_weight = bench.output("scaled_weight", n.weight.sizes(), c.dtype);
  Operand& scaled_bias = bench.output("scaled_bias", n.bias.sizes(), c.dtype);
  bench.call(
      "forward", bench.required().forward_workspace, table.scaled_rows_forward,
      fvlm_scaled_rows_forward{0, scale.abi(), weight.abi(), bias.abi(), scaled_weight.abi(), scaled_bias.abi()});
  if (!c.backward || !bench.can_continue()) return;

  Operand* d_scaled_weight = c.frozen ? nullptr : &bench.input("d_scaled_weight", n.d_scaled_weight);
  Operand* d_scaled_bias = c.needs_gradient("d_scale") || c.needs_gradient("d_bias")
                               ? &bench.input("d_scaled_bias", n.d_scaled_bias)
                               : nullptr;
  const auto gradient = [&](const std::string& name, const at::Tensor& held, bool required) {
    return required && c.needs_gradient(name) ? spaced_gradient(bench, c, name, held) : nullptr;
  };
  Operand *d_scale = gradient("d_scale", n.held_scale, !c.frozen),
          *d_weight = gradient("d_weight", n.held_weight, !c.frozen), *d_bias = gradient("d_bias", n.held_bias, true);
  bench.call("backward", bench.required().backward_workspace, table.scaled_rows_backward,
             fvlm_scaled_rows_backward{0, c.accumulate, scale.abi(), weight.abi(), bias.abi(), abi_of(d_scaled_weight),
                                       abi_of(d_scaled_bias), abi_of(d_scale), abi_of(d_weight), abi_of(d_bias)});
}

} // namespace

const Kernel scaled_rows_kernel{run, expect};

} // namespace fvlm::check
