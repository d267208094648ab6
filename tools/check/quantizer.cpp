#include "check/quantizer.h"

#include "check/families.h"
#include "check/formulas.h"
#include "check/workbench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fvlm::check {
namespace {

fvlm_quantizer_query query_of(const QuantizerCase& c, at::Device device) {
  fvlm_quantizer_query query{};
  query.struct_size = sizeof query;
  query.device = device_of(device);
  query.dtype = dtype_of(c.dtype);
  query.rows = c.rows;
  query.cols = c.cols;
  query.tokens = c.convert_only ? 0 : c.tokens + c.spare_tokens;
  query.options = c.options;
  query.epsilon = 1e-5f;
  return query;
}

bool quantizes_activations(const Context& context) {
  const char* scheme = context.table<fvlm_quantizer_v1>().scheme;
  return scheme && std::string_view(scheme) == "w8a8";
}

// What w8a8 makes of the rows of x, whose codes and scales are float32's, in float64.
at::Tensor rounded_rows(const at::Tensor& x) {
  if (x.numel() == 0) return x;
  const at::Tensor wide = x.to(at::kFloat), scale = wide.abs().amax(1, true) / 127.5f,
                   code = at::round(wide / at::where(scale == 0, at::ones_like(scale), scale)).clamp(-128, 127);
  return code.to(at::kDouble) * scale.to(at::kDouble);
}

int64_t width_of(const QuantizerCase& c) {
  return c.options & FVLM_QUANTIZED_SWIGLU ? c.rows / 2 : c.rows;
}

Run run(Context& context, const QuantizerCase& c, const Variation& variation) {
  const auto& table = context.table<fvlm_quantizer_v1>();
  const QuantizerNumbers n = quantizer_numbers(c);
  Workbench bench(context, variation);
  if (!bench.begin(table, query_of(c, context.device))) return bench.finish();
  const uint64_t workspace = bench.required().forward_workspace;

  Operand& weight = bench.input("weight", n.weight, Rows::contiguous);
  auto packed = bench.saved("packed");
  fvlm_quantizer_pack pack{};
  fvlm_quantizer_unpack unpack{};
  fvlm_quantizer_linear linear{};
  fvlm_quantizer_linear_gradient gradient{};
  for (size_t i = 0; i < packed.size(); ++i)
    pack.packed[i] = packed[i]->abi(), unpack.packed[i] = linear.packed[i] = gradient.packed[i] = packed[i]->abi();

  pack.weight = weight.abi();
  if (c.weighted) pack.importance = bench.input("importance", n.importance, Rows::contiguous).abi();
  bench.call("pack", workspace, table.pack, pack);
  if (!bench.can_continue()) return bench.finish();

  unpack.weight = bench.output("unpacked", n.weight.sizes(), c.dtype, Rows::contiguous).abi();
  bench.call("unpack", workspace, table.unpack, unpack);
  if (!bench.can_continue()) return bench.finish();

  if (!c.convert_only) {
    linear.x = bench.input("x", n.x).abi();
    linear.bias = c.bias ? bench.input("bias", n.bias, Rows::contiguous).abi() : nullptr;
    linear.y = bench.output("y", {c.tokens, width_of(c)}, c.dtype).abi();
    if (c.options & FVLM_QUANTIZED_RESIDUAL) linear.residual = bench.input("residual", n.residual).abi();
    if (c.options & FVLM_QUANTIZED_NORM)
      linear.norm_weight = bench.input("norm_weight", n.norm_weight, Rows::contiguous).abi();
    bench.call("linear", workspace, table.linear, linear);
    if (c.options || !bench.can_continue()) return bench.finish();
    gradient.d_y = bench.input("d_y", n.d_y).abi();
    gradient.d_x = bench.output("d_x", {c.tokens, c.cols}, c.dtype).abi();
    bench.call("linear_gradient", workspace, table.linear_gradient, gradient);
    if (!bench.can_continue()) return bench.finish();
  }

  Operand& out = bench.output("out", n.weight.sizes(), c.dtype, Rows::contiguous);
  bench.call("fake_quantize_forward", workspace, table.fake_quantize_forward,
             fvlm_fake_quantize_forward{0, weight.abi(), out.abi()});
  if (!bench.can_continue()) return bench.finish();
  Operand& d_out = bench.input("d_out", n.d_out, Rows::contiguous);
  Operand& d_weight = bench.output("d_weight", n.weight.sizes(), c.dtype, Rows::contiguous);
  bench.call("fake_quantize_backward", workspace, table.fake_quantize_backward,
             fvlm_fake_quantize_backward{0, weight.abi(), d_out.abi(), d_weight.abi()});
  return bench.finish();
}

// The linear and its gradient, compared with the plugin's own dequantized weight in float64.
std::string extra_check(const Context& context, const QuantizerCase& c, const Run& done, double& worst) {
  if (c.convert_only) return "";
  const QuantizerNumbers n = quantizer_numbers(c);
  const at::Tensor& weight = *done.output("unpacked");
  auto linear = [&](at::ScalarType work) {
    at::Tensor x = n.x.to(work);
    if (quantizes_activations(context)) x = rounded_rows(n.x).to(work);
    if (c.options & FVLM_QUANTIZED_NORM) x = x * (x.square().mean(1, true) + 1e-5).rsqrt() * n.norm_weight.to(work);
    at::Tensor y = at::matmul(x, weight.to(work).t());
    if (c.bias) y = y + n.bias.to(work);
    if (c.options & FVLM_QUANTIZED_SWIGLU) {
      const at::Tensor gate = y.narrow(1, 0, c.rows / 2);
      y = gate * gate.sigmoid() * y.narrow(1, c.rows / 2, c.rows / 2);
    }
    return c.options & FVLM_QUANTIZED_RESIDUAL ? y + n.residual.to(work) : y;
  };
  auto gradient = [&](at::ScalarType work) { return at::matmul(n.d_y.to(work), weight.to(work)); };
  // Codes may be multiplied before or after scaling; a dequantized 16-bit weight has one more rounding.
  const double rounding = c.dtype == at::kFloat || c.dtype == at::kDouble ? 0 : 1;
  const double size = std::sqrt(static_cast<double>(std::max(c.cols, c.rows))) * root_mean_square(weight);
  // With a norm, x is of about the size of the norm's weight; a gate multiplies two such sums.
  const double of_x = root_mean_square(c.options & FVLM_QUANTIZED_NORM ? n.norm_weight : n.x),
               gated = c.options & FVLM_QUANTIZED_SWIGLU ? std::max(1.0, size * of_x) : 1;
  std::vector<Expected> all{{"y", linear(at::kDouble), linear(c.dtype), c.dtype, rounding * 2 * size * of_x * gated}};
  if (!c.options)
    all.push_back(
        {"d_x", gradient(at::kDouble), gradient(c.dtype), c.dtype, rounding * 2 * size * root_mean_square(n.d_y)});
  for (const Expected& expected : all) {
    const at::Tensor* actual = done.output(expected.name);
    if (!actual) return expected.name + " was not computed";
    Comparison found = compare(*actual, expected);
    if (!found.failure.empty()) return found.failure;
    worst = std::max(worst, found.ratio);
  }
  return "";
}

std::string label(const QuantizerCase& c) {
  return fmt::format("{} weight [{}, {}]{}{}{}", name_of(c.dtype), c.rows, c.cols,
                     c.convert_only ? ", to convert alone" : fmt::format(", {} tokens", c.tokens),
                     c.weighted ? ", weighted"
                     : c.bias   ? ""
                                : ", no bias",
                     c.options ? fmt::format(", options {}", c.options) : "");
}

} // namespace

QuantizerNumbers quantizer_numbers(const QuantizerCase& c) {
  const uint64_t seed = c.seed * 8;
  QuantizerNumbers n{normal({c.rows, c.cols}, seed, at::kDouble, c.magnitude),
                     normal({c.tokens, c.cols}, seed + 1, c.dtype),
                     normal({c.rows}, seed + 2, c.dtype),
                     normal({c.tokens, c.rows}, seed + 3, c.dtype),
                     normal({c.rows, c.cols}, seed + 4, c.dtype),
                     normal({c.cols}, seed + 5, at::kFloat).square() * 9 + 0.01,
                     normal({c.tokens, c.rows}, seed + 6, c.dtype),
                     normal({c.cols}, seed + 7, c.dtype)};
  auto row = at::arange(c.rows), column = at::arange(c.cols);
  switch (c.weights) {
  case Weights::normal:
    break;
  case Weights::zero_rows:
    n.weight.masked_fill_((row.remainder(3) == 1).unsqueeze(1), 0);
    break;
  case Weights::constant:
    n.weight = (n.weight.select(1, 0).unsqueeze(1) + at::zeros({1, c.cols}, at::kDouble));
    break;
  case Weights::negative:
    n.weight = -n.weight.abs();
    break;
  case Weights::ties: {
    // Halfway between two codes; the row's largest weight makes the scale a power of two.
    auto codes = (column + row.unsqueeze(1)).remainder(253).to(at::kDouble) - 125.5;
    auto scale = at::exp2((row.remainder(5) - 3).to(at::kDouble)).unsqueeze(1);
    n.weight = at::where((column == 0).unsqueeze(0), at::full({}, 127.0, at::kDouble), codes) * scale;
    break;
  }
  case Weights::outliers:
    n.weight = at::where((column == c.cols / 2).unsqueeze(0), n.weight.sign() * 40 * c.magnitude, n.weight);
  }
  n.weight = n.weight.to(c.dtype);
  return n;
}

Trial quantizer_trial(const QuantizerCase& c) {
  Trial trial;
  trial.label = label(c);
  trial.supports = [c](Context& context) {
    return query_support(context.table<fvlm_quantizer_v1>().supports, query_of(c, context.device));
  };
  trial.run = [c](Context& context, const Variation& variation) { return run(context, c, variation); };
  trial.expect = [] { return Expectation{}; };
  trial.extra_check = [c](const Context& context, const Run& done, double& worst) {
    return extra_check(context, c, done, worst);
  };
  return trial;
}

std::vector<Trial> quantizer_cases(const std::vector<QuantizerCase>& cases) {
  return trials_of(cases, quantizer_trial);
}

at::ScalarType quantizer_dtype(Context& context) {
  return first_supported_dtype(context, [](auto dtype) { return quantizer_trial({.dtype = dtype}); });
}

std::vector<Trial> quantizer_trials(Context& context) {
  const auto dtype = quantizer_dtype(context);
  return quantizer_cases({{.dtype = dtype}, {.dtype = dtype, .rows = 48, .cols = 128, .tokens = 17, .bias = false}});
}

std::vector<Trial> quantizer_odd_trials(Context& context) {
  const auto dtype = quantizer_dtype(context);
  return quantizer_cases({{.dtype = dtype, .rows = 7, .cols = 33, .tokens = 5},
                          {.dtype = dtype, .rows = 3, .cols = 9, .tokens = 3, .bias = false}});
}

std::vector<Trial> quantizer_sweep(Context&) {
  std::vector<QuantizerCase> cases;
  for (auto dtype : floating)
    for (int64_t cols : {1, 7, 32, 64, 100}) cases.push_back({.dtype = dtype, .rows = 6, .cols = cols, .tokens = 5});
  cases.push_back({.tokens = 300});
  cases.push_back({.convert_only = true});
  return quantizer_cases(cases);
}

} // namespace fvlm::check
