// experts: a router's choice and the MLPs of the chosen experts.
#include "check/formulas.h"
#include "check/generic.h"
#include "check/kernels.h"

#include <fvlm/fvlm.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fvlm::check {
namespace {

using at::Tensor;

// Matrices of all experts, and where they are quantized their codes and scales.
struct Matrices {
  Tensor numbers, codes, scales;
};
struct Numbers {
  Tensor x, logits, bias;
  Matrices gate_up, down;
};

// Codes of all values, each scale its own. Zeros and fives of `ties` are exact in each type.
Matrices quantized(const KernelCase& c, int64_t of_expert, int64_t cols, uint64_t seed) {
  const bool is_int8 = c.weight_bits == 8;
  const int64_t group = is_int8 ? cols : sdk::int4_group(cols), half = is_int8 ? 127 : 8;
  const std::vector<int64_t> grouped{c.experts, of_expert, cols / group, group};
  const Tensor codes =
      normal(grouped, seed, at::kDouble, 0.4 * static_cast<double>(half)).round().clamp(-half, half - 1);
  const Tensor scales = (normal({c.experts, of_expert, cols / group}, seed + 1, at::kDouble).square() + 0.5) *
                        (2 / (static_cast<double>(half) * std::sqrt(static_cast<double>(cols))));
  Matrices out{{}, {}, scales.to(at::kFloat)};
  out.numbers = (codes * out.scales.to(at::kDouble).unsqueeze(3)).flatten(2);
  if (is_int8) {
    out.codes = codes.flatten(2).to(at::kChar);
  } else { // two a byte, in whole words
    const Tensor all = at::constant_pad_nd((codes.flatten(2) + 8).to(at::kByte), {0, (8 - cols % 8) % 8});
    const Tensor pairs = all.unflatten(2, {-1, 2});
    out.codes = pairs.select(3, 0) + pairs.select(3, 1) * 16;
  }
  return out;
}

// Logits of a row are a quarter apart, in any order, so that rounding does not change which are the largest. A bias of
// 0, 2 or 4 outweighs the scores.
Tensor logits_of(const KernelCase& c) {
  if (c.ties) return filled({c.rows, c.experts}, c.dtype, 0.5);
  const Tensor order = at::argsort(normal({c.rows, c.experts}, c.seed * 16, at::kDouble), int64_t{1});
  return ((order - c.experts / 2) * 0.25).to(c.dtype);
}

Numbers numbers_of(const KernelCase& c) {
  const auto some = [&](at::IntArrayRef shape, uint64_t seed, double scale = 1) {
    return normal(shape, c.seed * 16 + seed, c.dtype, scale);
  };
  const auto of_sum = [](int64_t terms) { return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1))); };
  const auto matrices = [&](int64_t of_expert, int64_t cols, uint64_t seed) {
    return c.weight_bits < 16 ? quantized(c, of_expert, cols, c.seed * 16 + seed)
                              : Matrices{some({c.experts, of_expert, cols}, seed, of_sum(cols)), {}, {}};
  };
  return {some({c.rows, c.width}, 1), logits_of(c),
          c.bias ? (at::arange(c.experts).remainder(3) * 2).to(c.dtype) : Tensor(), matrices(2 * c.inner, c.width, 2),
          matrices(c.width, c.inner, 4)};
}

// Which experts and with which weights is known exactly; the products are of the type `work`.
Tensor formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  if (c.rows == 0) return at::zeros({0, c.width}, work);
  const Tensor logits = n.logits.to(at::kDouble), scores = c.sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1),
               by = c.bias ? scores + n.bias.to(at::kDouble) : scores;
  const Tensor order = std::get<1>(at::sort(by, /*stable=*/true, 1, /*descending=*/true)).narrow(1, 0, c.chosen);
  Tensor weights = scores.gather(1, order);
  if (c.normalized) weights = weights / (weights.sum(1, true) + static_cast<double>(c.epsilon));
  weights = (weights * static_cast<double>(c.router_scale)).to(work);
  const Tensor gate_up = n.gate_up.numbers.to(work), down = n.down.numbers.to(work), x = n.x.to(work);
  std::vector<Tensor> rows;
  for (int64_t row = 0; row < c.rows; ++row) {
    Tensor sum = at::zeros({c.width}, x.options());
    for (int64_t k = 0; k < c.chosen; ++k) {
      const auto expert = order[row][k].item<int64_t>();
      const Tensor both = gate_up[expert].matmul(x[row]), gate = both.narrow(0, 0, c.inner);
      const Tensor hidden = gate * at::sigmoid(gate) * both.narrow(0, c.inner, c.inner);
      sum = sum + weights[row][k] * down[expert].matmul(hidden);
    }
    rows.push_back(sum);
  }
  return at::stack(rows);
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  return {{"y", formula(c, n, at::kDouble), formula(c, n, c.dtype), c.dtype}};
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &x = bench.input("x", n.x), &logits = bench.input("logits", n.logits);
  Operand* bias = c.bias ? &bench.input("bias", n.bias, Rows::contiguous) : nullptr;
  const auto matrices = [&](const char* name, const Matrices& of) -> Operand& {
    return bench.input(name, of.codes.defined() ? of.codes : of.numbers, Rows::contiguous);
  };
  const auto scales = [&](const char* name, const Matrices& of) {
    return of.scales.defined() ? &bench.input(name, of.scales, Rows::contiguous) : nullptr;
  };
  Operand &gate_up = matrices("gate_up", n.gate_up), &down = matrices("down", n.down);
  Operand *gate_up_scales = scales("gate_up_scales", n.gate_up), *down_scales = scales("down_scales", n.down);
  Operand& y = bench.output("y", n.x.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.experts_forward,
             fvlm_experts_forward{0, x.abi(), logits.abi(), abi_of(bias), gate_up.abi(), down.abi(), y.abi(),
                                  abi_of(gate_up_scales), abi_of(down_scales)});
}

Outcome correct(Context& context, std::vector<KernelCase> all) {
  if (!offered(context, FVLM_OP_EXPERTS)) return not_applicable("not offered");
  return expect_correct_where_supported(context, in_own_dtype(context, FVLM_OP_EXPERTS, std::move(all)));
}

// Softmax and sigmoid, normalized or not, with a bias for the choice or without.
Outcome routers(Context& context) {
  std::vector<KernelCase> all;
  for (const bool sigmoid : {false, true})
    for (const bool normalized : {false, true})
      for (const bool bias : {false, true})
        all.push_back({.rows = 6,
                       .bias = bias,
                       .experts = 12,
                       .chosen = 3,
                       .sigmoid = sigmoid,
                       .normalized = normalized,
                       .router_scale = 2.5F,
                       .epsilon = 0.25F});
  return correct(context, std::move(all));
}

// All of them, one, and more than a power of two.
Outcome counts(Context& context) {
  return correct(context, {{.rows = 3, .bias = false, .experts = 1, .chosen = 1},
                           {.rows = 4, .bias = false, .experts = 4, .chosen = 4},
                           {.rows = 2, .bias = false, .experts = 33, .chosen = 32},
                           {.rows = 7, .bias = false, .experts = 130, .chosen = 8, .sigmoid = true},
                           {.rows = 4, .width = 16, .inner = 8, .bias = false, .experts = 500, .chosen = 10}});
}

Outcome ties(Context& context) {
  return correct(context, {{.rows = 4, .bias = false, .experts = 40, .chosen = 5, .ties = true},
                           {.rows = 4, .experts = 40, .chosen = 5, .ties = true}});
}

// Many rows of an expert: all go to the first ones.
Outcome shared(Context& context) {
  std::vector<KernelCase> all;
  for (const int64_t rows : {8, 9, 16, 17, 33, 64})
    all.push_back({.rows = rows, .width = 72, .inner = 40, .bias = false, .experts = 64, .chosen = 4, .ties = true});
  all.push_back({.rows = 32, .width = 264, .inner = 200, .bias = false, .experts = 64, .chosen = 8});
  return correct(context, std::move(all));
}

// Thousands of features, of which the sums are those of float32.
Outcome wide(Context& context) {
  return correct(context, {{.rows = 1, .width = 2048, .inner = 768, .bias = false, .experts = 8, .chosen = 8},
                           {.rows = 9, .width = 1000, .inner = 1400, .bias = false, .experts = 16, .chosen = 2}});
}

// Weights that are codes with scales: groups of 32, 64 and 128 columns, and experts with one row and with many.
template <int bits>
Outcome codes(Context& context) {
  std::vector<KernelCase> all{
      {.rows = 3, .width = 96, .inner = 64, .bias = false, .experts = 6},
      {.rows = 9, .width = 256, .inner = 320, .bias = false, .experts = 12, .chosen = 3, .ties = true},
      {.rows = 2, .width = 1024, .inner = 512, .bias = false, .experts = 4},
      {.rows = 5, .width = 544, .inner = 768, .bias = false, .experts = 10, .sigmoid = true}};
  for (KernelCase& one : all) one.weight_bits = bits;
  return correct(context, std::move(all));
}

} // namespace

const Kernel experts_kernel{run, expect};

std::vector<Check> expert_checks() {
  const std::string plain = "experts_float*,experts_bfloat16";
  return {{"experts_routers", "scores by softmax and by sigmoids, and what becomes of them", routers, plain},
          {"experts_counts", "1 to 500 experts, of which 1 to 32 are chosen", counts, plain},
          {"experts_ties", "of equal scores the first ones", ties, plain},
          {"experts_shared", "experts that many rows go to", shared, plain},
          {"experts_wide", "sums over thousands of features", wide, plain},
          {"experts_int8", "weights in int8", codes<8>, plain},
          {"experts_int4", "weights in int4, by groups of columns", codes<4>, plain}};
}

} // namespace fvlm::check
