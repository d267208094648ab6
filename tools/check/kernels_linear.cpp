// linear: plain, with bias, with gelu, of a norm, with SwiGLU; its input gradient and its weight gradient.
#include "check/formulas.h"
#include "check/kernels.h"

#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fvlm::check {
namespace {

struct Numbers {
  at::Tensor x, weight, bias, d_y;
  at::Tensor before; // x before its gelu or SwiGLU
  at::Tensor held_weight, held_bias, held_sums, residual, rest, norm_weight;
};

Numbers numbers_of(const KernelCase& c) {
  const uint64_t seed = c.seed * 16;
  const int64_t columns = c.swiglu ? 2 * c.width : c.width;
  Numbers n{normal({c.rows, c.inner}, seed, c.dtype, c.magnitude),
            normal({columns, c.inner}, seed + 1, c.dtype, 1 / std::sqrt(static_cast<double>(c.inner))),
            normal({columns}, seed + 2, c.dtype),
            normal({c.rows, c.width}, seed + 3, c.dtype),
            normal({c.rows, c.swiglu_input ? 2 * c.inner : c.inner}, seed + 4, c.dtype),
            normal({c.width, c.inner}, seed + 5, c.gradient_dtype),
            normal({c.width}, seed + 6, c.gradient_dtype),
            normal({c.inner}, seed + 7, c.gradient_dtype),
            normal({c.rows, c.width}, seed + 8, c.dtype),
            normal({c.rows, c.width}, seed + 9, c.dtype, 1.0 / 512),
            normal({c.inner}, seed + 10, c.dtype)};
  if (c.ties) { // every output is a single product
    n.x = tie_values({c.rows, c.inner}, c.dtype), n.weight = at::zeros({c.width, c.inner}, c.dtype);
    n.weight.fill_diagonal_(1);
    n.bias = filled({c.width}, c.dtype, 0.5), n.d_y = filled({c.rows, c.width}, c.dtype, 1.5);
  }
  if (c.bfloat16_weight) n.weight = n.weight.to(at::kBFloat16);
  if (!c.writes_compensation) return n;
  // Sums that float32 represents exactly in any order, so that every plugin rounds off the same amount.
  const auto coarse = [](at::Tensor& numbers, double unit) { numbers = (numbers / unit).round_().mul_(unit); };
  coarse(n.x, 0x1p-3), coarse(n.weight, 0x1p-5), coarse(n.bias, 0x1p-6), coarse(n.residual, 0x1p-6);
  coarse(n.rest, 0x1p-14);
  return n;
}

// Along `contracted`, e4m3 times the least power of two by which the largest magnitude is at most 448. The last `pairs`
// are sums of two.
struct Fp8 {
  at::Tensor values, scale;
};
Fp8 scaled_fp8(const at::Tensor& numbers, int64_t contracted, int64_t pairs = 0) {
  const at::Tensor largest = numbers.to(at::kDouble).abs().amax(contracted, true);
  const auto [mantissa, exponent] = at::frexp((largest / 448).clamp_min(0x1p-140));
  const at::Tensor scale = at::exp2((exponent - (mantissa == 0.5).to(at::kInt)).to(at::kDouble));
  const at::Tensor scaled = (numbers.to(at::kDouble) / scale).to(at::kFloat);
  const auto rounded = [](const at::Tensor& each) { return each.to(at::kFloat8_e4m3fn).to(at::kFloat); };
  const at::Tensor values = rounded(scaled);
  const auto paired = [&](const at::Tensor& all) {
    return all.narrow(contracted, all.size(contracted) - pairs, pairs);
  };
  paired(values).add_(rounded(paired(scaled) - paired(values)));
  return {values.to(at::kDouble), scale};
}

at::Tensor in_fp8(const at::Tensor& numbers, int64_t contracted, int64_t pairs) {
  if (numbers.numel() == 0) return numbers;
  const auto [values, scale] = scaled_fp8(numbers, contracted, pairs);
  return values * scale;
}

// Both gradients at once: one scale for the whole sum over rows.
at::Tensor weight_gradient_in_fp8(const at::Tensor& d_y, const at::Tensor& x, at::ScalarType work) {
  if (x.numel() == 0) return at::matmul(d_y.to(work).t(), x.to(work));
  const auto [of_d_y, scale_d_y] = scaled_fp8(d_y, 1);
  const auto [of_x, scale_x] = scaled_fp8(x, 1);
  const at::Tensor scale = scale_d_y * scale_x, largest = scale.max();
  const at::Tensor again = (of_d_y * (scale / largest)).to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble);
  return (at::matmul(again.to(work).t(), of_x.to(work)).to(at::kDouble) * largest).to(work);
}

struct Results {
  at::Tensor pre_activation, y, d_x, x, sums, d_weight, d_bias;
};

Results formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  auto x = n.x.to(work), d_y = n.d_y.to(work);
  Results r;
  const auto operand = [&](const at::Tensor& numbers, int64_t contracted) {
    return c.fp8 ? in_fp8(numbers, contracted, c.pairs).to(work) : numbers.to(work);
  };
  at::Tensor of_forward = operand(n.x, 1);
  if (c.norm)
    of_forward = x = x * at::rsqrt(x.square().mean(1, true) + static_cast<double>(c.epsilon)) * n.norm_weight.to(work);
  r.pre_activation = at::matmul(of_forward, operand(n.weight, 1).t());
  if (c.bias) r.pre_activation = r.pre_activation + n.bias.to(work);
  if (c.residual) r.pre_activation = r.pre_activation + n.residual.to(work);
  if (c.reads_compensation) r.pre_activation = r.pre_activation + n.rest.to(work);
  r.y = c.gelu ? gelu_of(c, r.pre_activation) : r.pre_activation;
  if (c.swiglu) r.y = at::silu(r.y.narrow(1, 0, c.width)) * r.y.narrow(1, c.width, c.width);
  if (!c.backward || c.swiglu) return r;
  r.d_x = at::matmul(operand(n.d_y, 1), operand(n.weight, 0));
  if (c.gelu_on_input) {
    auto before = leaf(n.before, work);
    r.d_x = gradients({gelu_of(c, before)}, {before}, {r.d_x})[0];
  }
  if (c.swiglu_input) {
    auto before = leaf(n.before, work);
    const at::Tensor y = at::silu(before.narrow(1, 0, c.inner)) * before.narrow(1, c.inner, c.inner);
    r.d_x = gradients({y}, {before}, {r.d_x})[0];
    r.x = y.detach();
    return r;
  }
  r.sums = accumulated(c, n.held_sums, r.d_x.sum(0));
  r.d_weight = accumulated(
      c, n.held_weight, c.fp8 && c.both_gradients ? weight_gradient_in_fp8(n.d_y, n.x, work) : at::matmul(d_y.t(), x));
  r.d_bias = accumulated(c, n.held_bias, d_y.sum(0));
  return r;
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Results exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  if (c.gives_input_gradient_alone()) {
    Expectation all{{"d_x", exact.d_x, naive.d_x, c.dtype}};
    if (c.output) all.push_back({"x", exact.x, naive.x, c.dtype});
    return all;
  }
  Expectation all{{"y", exact.y, naive.y, c.dtype}};
  if (c.writes_compensation) {
    const at::Tensor lost = exact.y - exact.y.to(c.dtype).to(at::kDouble);
    all.push_back({"y_rest", lost, lost, c.dtype});
  }
  if (!c.backward) return all;
  if (c.gelu || c.swiglu) all.push_back({"pre_activation", exact.pre_activation, naive.pre_activation, c.dtype});
  if (c.swiglu) return all;
  all.push_back({"d_x", exact.d_x, naive.d_x, c.dtype});
  if (c.column_sums) all.push_back({"d_x_sums", exact.sums, naive.sums, c.gradient_dtype});
  if (c.frozen) return all;
  all.push_back({"d_weight", exact.d_weight, naive.d_weight, c.gradient_dtype});
  if (c.both_gradients && c.needs_gradient("d_x with d_weight"))
    all.push_back({"d_x with d_weight", exact.d_x, naive.d_x, c.dtype});
  if (c.bias) all.push_back({"d_bias", exact.d_bias, naive.d_bias, c.gradient_dtype});
  return all;
}

void run_forward(Workbench& bench, decltype(fvlm_kernels_v1::linear_forward) forward, const KernelCase& c,
                 const Numbers& n, Operand& x, Operand& weight) {
  Operand* bias = c.bias ? &bench.input("bias", n.bias, Rows::contiguous) : nullptr;
  Operand* residual = c.residual ? &bench.input("residual", n.residual) : nullptr;
  Operand& y = bench.output_over(residual, "y", n.d_y.sizes(), c.dtype);
  Operand* pre = (c.gelu || c.swiglu) && c.backward
                     ? &bench.output("pre_activation", {c.rows, n.weight.size(0)}, c.dtype)
                     : nullptr;
  Operand* rest = c.reads_compensation ? &bench.input("rest", n.rest) : nullptr;
  Operand* y_rest = c.writes_compensation ? &bench.output_over(rest, "y_rest", n.d_y.sizes(), c.dtype) : nullptr;
  Operand* norm_weight = c.norm ? &bench.input("norm_weight", n.norm_weight, Rows::contiguous) : nullptr;
  bench.call("forward", bench.required().forward_workspace, forward,
             fvlm_linear_forward{0, x.abi(), weight.abi(), abi_of(bias), y.abi(), abi_of(pre), abi_of(residual),
                                 abi_of(rest), abi_of(y_rest), abi_of(norm_weight)});
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &x = bench.input("x", n.x),
          &weight = bench.input("weight", n.weight, c.strided_weight ? Rows::free : Rows::contiguous);
  if (!c.gives_input_gradient_alone()) run_forward(bench, table.linear_forward, c, n, x, weight);
  if (!c.backward || c.swiglu || !bench.can_continue()) return;

  Operand& d_y = bench.input("d_y", n.d_y);
  Operand* before = c.gelu_on_input || c.swiglu_input ? &bench.input("pre_activation before x", n.before) : nullptr;
  Operand& d_x = bench.output_over(c.swiglu_input ? before : nullptr, "d_x", n.before.sizes(), c.dtype);
  Operand* of_swiglu = c.swiglu_input && c.output ? &bench.output("x", n.x.sizes(), c.dtype) : nullptr;
  Operand* sums = c.column_sums ? &accumulated_output(bench, c, "d_x_sums", n.held_sums) : nullptr;
  bench.call("backward", bench.required().backward_workspace, table.linear_input_gradient,
             fvlm_linear_input_gradient{0, d_y.abi(), weight.abi(), abi_of(before), d_x.abi(), c.accumulate,
                                        abi_of(sums), abi_of(of_swiglu)});
  if (c.frozen || c.gives_input_gradient_alone() || !bench.can_continue()) return;

  Operand* d_weight = parameter_gradient(bench, c, "d_weight", n.held_weight);
  Operand* d_bias = c.bias ? parameter_gradient(bench, c, "d_bias", n.held_bias) : nullptr;
  Operand* again = c.both_gradients && c.needs_gradient("d_x with d_weight")
                       ? &bench.output("d_x with d_weight", n.x.sizes(), c.dtype)
                       : nullptr;
  bench.call("weight gradient", bench.required().backward_workspace, table.linear_weight_gradient,
             fvlm_linear_weight_gradient{0, c.accumulate, d_y.abi(), x.abi(), abi_of(d_weight), abi_of(d_bias),
                                         c.both_gradients ? weight.abi() : nullptr, abi_of(again)});
}

} // namespace

const Kernel linear_kernel{run, expect};

} // namespace fvlm::check
