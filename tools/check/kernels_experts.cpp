// experts: a router's choice and the MLPs of the chosen experts.
#include "check/formulas.h"
#include "check/generic.h"
#include "check/kernels.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fvlm::check {
namespace {

using at::Tensor;

struct Numbers {
  Tensor x, logits, bias, gate_up, down;
};

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
  return {some({c.rows, c.width}, 1), logits_of(c),
          c.bias ? (at::arange(c.experts).remainder(3) * 2).to(c.dtype) : Tensor(),
          some({c.experts, 2 * c.inner, c.width}, 2, of_sum(c.width)),
          some({c.experts, c.width, c.inner}, 3, of_sum(c.inner))};
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
  const Tensor gate_up = n.gate_up.to(work), down = n.down.to(work), x = n.x.to(work);
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
  Operand &gate_up = bench.input("gate_up", n.gate_up, Rows::contiguous),
          &down = bench.input("down", n.down, Rows::contiguous), &y = bench.output("y", n.x.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.experts_forward,
             fvlm_experts_forward{0, x.abi(), logits.abi(), abi_of(bias), gate_up.abi(), down.abi(), y.abi()});
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

} // namespace

const Kernel experts_kernel{run, expect};

std::vector<Check> expert_checks() {
  const std::string plain = "experts_float*,experts_bfloat16";
  return {{"experts_routers", "scores by softmax and by sigmoids, and what becomes of them", routers, plain},
          {"experts_counts", "1 to 500 experts, of which 1 to 32 are chosen", counts, plain},
          {"experts_ties", "of equal scores the first ones", ties, plain},
          {"experts_shared", "experts that many rows go to", shared, plain},
          {"experts_wide", "sums over thousands of features", wide, plain}};
}

} // namespace fvlm::check
