// Mixtures of experts: weights of routers, and products by expert however they are computed.
#include "bench.h"
#include "ops/dry_run.h"
#include "ops/experts.h"

#include <fvlm/fvlm.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

namespace fvlm::ops {
namespace of_experts {

using at::Tensor;

constexpr int64_t rows = 9, width = 8, inner = 6, count = 5;

// The experts of each row and their weights as their definition has them, one row after the other.
Tensor expected_of(const Tensor& x, const Tensor& experts, const Tensor& weights, const Tensor& gate_up,
                   const Tensor& down) {
  Tensor y = at::zeros_like(x);
  for (int64_t row = 0; row < x.size(0); ++row)
    for (int64_t k = 0; k < experts.size(1); ++k) {
      const int64_t expert = experts[row][k].item<int64_t>();
      const Tensor up = gate_up.narrow(0, expert * 2 * inner, 2 * inner).matmul(x[row]);
      const Tensor hidden = at::silu(up.narrow(0, 0, inner)) * up.narrow(0, inner, inner);
      y[row] += weights[row][k] * down.narrow(0, expert * width, width).matmul(hidden);
    }
  return y;
}

std::string word(ExpertProducts products) {
  return products == ExpertProducts::loop ? "loop" : products == ExpertProducts::blocks ? "blocks" : "grouped";
}

TEST(Experts, EachRowIsWhatItsExpertsMakeOfIt) {
  Bench b;
  const Value x = b.input({rows, width});
  const ExpertWeights weights{count, Weight(b.parameter("gate_up", {count * 2 * inner, width})),
                              Weight(b.parameter("down", {count * width, inner}))};
  // Of uneven numbers of rows, one of them without any; then as many pairs as experts or fewer.
  for (const Tensor& experts : {at::tensor({0, 1, 0, 4, 0, 4, 0, 4, 4, 1, 0, 4, 0, 4, 4, 0, 1, 0}).view({rows, 2}),
                                at::arange(rows).remainder(4).unsqueeze(1)}) {
    const Tensor shares = random(experts.sizes(), 7);
    const Tensor expected = expected_of(x.data, experts, shares, weights.gate_up.value(), weights.down.value());
    for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::blocks}) {
      Tape none(Tape::Mode::forward_only);
      const Value y = mix_experts(none, *b.ops, x, {experts, Value(shares)}, weights, products);
      expect_close(y.data, expected, 1e-12, fmt::format("{} of {} experts", word(products), experts.size(1)));
      const Value few = mix_experts(none, *b.ops, Value(x.data.narrow(0, 0, 2)),
                                    {experts.narrow(0, 0, 2), Value(shares.narrow(0, 0, 2))}, weights, products);
      expect_close(few.data, expected.narrow(0, 0, 2), 1e-12, word(products) + " of two rows");
    }
  }
}

TEST(Experts, GradientsReachRowsRouterAndExperts) {
  for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::blocks})
    for (const bool sigmoid : {false, true})
      for (const bool normalized : {false, true}) {
        SCOPED_TRACE(fmt::format("{} sigmoid {} normalized {}", word(products), sigmoid, normalized));
        Bench b;
        const Value x = b.input({rows, width});
        const Weight router(b.parameter("router", {count, width}));
        const ExpertWeights weights{count, Weight(b.parameter("gate_up", {count * 2 * inner, width})),
                                    Weight(b.parameter("down", {count * width, inner}))};
        b.expect_true_gradients([&](Tape& tape) {
          const Value logits = b.ops->linear(tape, x, router);
          const Routed routed = route(tape, logits, {2, sigmoid, normalized, 1e-2, 1.5, {}});
          return std::vector{mix_experts(tape, *b.ops, x, routed, weights, products)};
        });
      }
}

TEST(Experts, GradientsOfTwoPassesAddUp) {
  for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::blocks}) {
    Bench b;
    const Value x = b.input({rows, width}), z = b.input({3, width});
    const ExpertWeights weights{count, Weight(b.parameter("gate_up", {count * 2 * inner, width})),
                                Weight(b.parameter("down", {count * width, inner}))};
    const Value shares = b.input({rows, 1});
    const Tensor experts = at::arange(rows).remainder(3).unsqueeze(1);
    b.expect_true_gradients([&](Tape& tape) {
      const Routed first{experts, shares},
          second{at::tensor({4, 1, 1}).unsqueeze(1), Value(at::ones({3, 1}, at::kDouble))};
      return std::vector{mix_experts(tape, *b.ops, x, first, weights, products),
                         mix_experts(tape, *b.ops, z, second, weights, products)};
    });
  }
}

TEST(Experts, ABiasDecidesTheChoiceAndNoWeight) {
  Bench b;
  Parameter bias;
  bias.value = at::tensor({0.0, 10.0, 0.0}, at::kDouble);
  const Tensor logits = at::tensor({3.0, -2.0, 1.0}, at::kDouble).unsqueeze(0);
  Tape none(Tape::Mode::forward_only);
  const Routed routed = route(none, Value(logits), {2, true, false, 0, 1, Weight(bias)});
  EXPECT_EQ(routed.experts[0][0].item<int64_t>(), 1);
  EXPECT_EQ(routed.experts[0][1].item<int64_t>(), 0);
  expect_close(routed.weights.data[0], at::tensor({-2.0, 3.0}, at::kDouble).sigmoid(), 1e-15, "sigmoids");
}

// The kernel for all experts has a version for a CPU, which shows that it is asked for the right products.
TEST(Experts, TheKernelForAllIsAskedForTheSameProducts) {
  OperationsOptions options;
  Registry registry{RegistryOptions{}};
  registry.add_static(reference_manifest(), [] { return &reference_entry; });
  Operations ops(registry, options);
  const Tensor x = random({rows, 8}, 1, at::kFloat), experts = at::arange(2 * rows).remainder(4).view({rows, 2});
  std::vector<Tensor> results[2];
  for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::grouped}) {
    Parameter gate_up, down;
    gate_up.value = random({count * 16, 8}, 2, at::kFloat), down.value = random({count * 8, 8}, 3, at::kFloat);
    gate_up.gradient = at::full_like(gate_up.value, std::nan("")), down.gradient = at::full_like(down.value, 1);
    down.has_gradient = true;
    Tape tape;
    const Value in(x, true), shares(random({rows, 2}, 4, at::kFloat), true);
    const Value y = mix_experts(tape, ops, in, {experts, shares}, {count, Weight(gate_up), Weight(down)}, products);
    y.gradient->add(random(y.data.sizes(), 5, at::kFloat));
    tape.backward();
    results[products == ExpertProducts::grouped] = {y.data, in.gradient->take(), shares.gradient->take(),
                                                    gate_up.gradient, down.gradient};
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    expect_close(results[1][i], results[0][i], 1e-5, fmt::format("result {}", i));
}

// A quantized weight, and one with its numbers.
struct QuantizedPair {
  Parameter codes, numbers;
  QuantizedPair(const char* scheme, int64_t of_all, int64_t cols, uint64_t seed) {
    const fvlm_quantizer_query query = {.struct_size = sizeof query,
                                        .device = abi_device(at::kCPU),
                                        .dtype = abi_dtype(at::kDouble),
                                        .rows = of_all,
                                        .cols = cols};
    const Quantizer quantizer(
        reference_backend<fvlm_quantizer_v1>((FVLM_QUANTIZER_KIND("") + std::string(scheme)).c_str()), query);
    codes.scheme = scheme;
    codes.packed = quantizer.pack(random({of_all, cols}, seed));
    codes.value = at::empty({1, 1}, at::TensorOptions().device(at::kMeta)).expand({of_all, cols});
    numbers.value = quantizer.unpack(codes.packed);
  }
};

TEST(Experts, QuantizedOnesAreThoseOfTheirNumbers) {
  for (const char* scheme : {"int8", "int4"})
    for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::blocks}) {
      SCOPED_TRACE(fmt::format("{} {}", scheme, word(products)));
      Bench b;
      QuantizedPair gate_up(scheme, count * 2 * inner, width, 2), down(scheme, count * width, inner, 3);
      // One expert has more than a few rows, one has none.
      const Tensor experts = at::arange(4 * rows).remainder(7).clamp_max(3).view({2 * rows, 2});
      std::vector<Tensor> results[2];
      for (const bool quantized : {false, true}) {
        const ExpertWeights weights{count, Weight(quantized ? gate_up.codes : gate_up.numbers),
                                    Weight(quantized ? down.codes : down.numbers)};
        Tape tape;
        const Value x(random({2 * rows, width}, 4), true), shares(random({2 * rows, 2}, 5), true);
        const Value y = mix_experts(tape, *b.ops, x, {experts, shares}, weights, products);
        y.gradient->add(random(y.data.sizes(), 6));
        tape.backward();
        results[quantized] = {y.data, x.gradient->take(), shares.gradient->take()};
      }
      for (size_t i = 0; i < results[0].size(); ++i)
        expect_close(results[1][i], results[0][i], 1e-12, fmt::format("result {}", i));
    }
}

namespace {

// A plugin for at most two rows, whose results are recognized.
struct TwoRows : sdk::Kernels {
  explicit TwoRows(const fvlm_instance_config&) {}
  static sdk::Support supports(const Query& query) {
    return query.rows <= 2 && query.dtype.bits == 64 ? sdk::accept(2, "two rows") : sdk::refuse("too many rows");
  }
  void experts_forward(const fvlm_call&, const Query& query, const fvlm_experts_forward& a) const {
    sdk::View<double, 2> y(a.y);
    const double of_codes =
        query.options & FVLM_INT4_WEIGHTS
            ? 1e4 * sdk::View<const float, 3>(a.down_scales)(query.experts - 1, query.width - 1, 0) +
                  1e4 * sdk::View<const uint8_t, 3>(a.gate_up)(0, 0, 0)
            : 0;
    for (int64_t row = 0; row < query.rows; ++row)
      for (int64_t column = 0; column < query.width; ++column)
        y(row, column) = query.experts + 0.1 * query.chosen + (query.options & FVLM_SIGMOID_ROUTER ? 1000 : 0) +
                         1e-3 * query.router_scale + 1e-6 * query.epsilon + of_codes;
  }
};
const fvlm_plugin* two_rows_entry(const fvlm_host* host) {
  return sdk::entry<TwoRows>(host, "two-rows", "1.0");
}

} // namespace

TEST(Experts, APluginComputesFewRowsWithoutATape) {
  Registry registry{RegistryOptions{}};
  registry.add_static(builtin_manifest("two-rows", "1.0", "experts of two rows", {FVLM_KERNELS_KIND}, {"cpu"}),
                      [] { return &two_rows_entry; });
  registry.add_static(reference_manifest(), [] { return &reference_entry; });
  Bench b; // for its parameters
  const ExpertWeights weights{count, Weight(b.parameter("gate_up", {count * 2 * inner, width})),
                              Weight(b.parameter("down", {count * width, inner}))};
  const Tensor x = random({rows, width}, 1), logits = random({rows, count}, 2);
  const Routing routing{2, true, true, 0.5, 3, {}};
  OperationsOptions options;
  options.dtype = options.gradient_dtype = at::kDouble;
  const auto mixture_of = [&](const OperationsOptions& of, int64_t first, Tape::Mode mode) {
    Operations ops(registry, of);
    Tape tape(mode);
    const Value in(x.narrow(0, 0, first)), scores(logits.narrow(0, 0, first));
    return mixture(tape, ops, in, scores, routing, weights, ExpertProducts::loop).data;
  };
  const auto plain_of = [&](int64_t first) {
    Operations ops(registry, options);
    Tape none(Tape::Mode::forward_only);
    const Routed routed = route(none, Value(logits.narrow(0, 0, first)), routing);
    return mix_experts(none, ops, Value(x.narrow(0, 0, first)), routed, weights, ExpertProducts::loop).data;
  };
  const double known = count + 0.2 + 1000 + 3e-3 + 0.5e-6;
  expect_close(mixture_of(options, 2, Tape::Mode::forward_only), at::full({2, width}, known, at::kDouble), 1e-9,
               "two rows");
  expect_close(mixture_of(options, 3, Tape::Mode::forward_only), plain_of(3), 1e-15, "more rows than it takes");
  expect_close(mixture_of(options, 2, Tape::Mode::record), plain_of(2), 1e-15, "with a tape");
  options.operations["experts"] = BackendPreference::of({"reference"});
  expect_close(mixture_of(options, 2, Tape::Mode::forward_only), plain_of(2), 1e-15, "another preference");
  options.operations["experts"] = BackendPreference::of({"two-rows"});
  expect_close(mixture_of(options, 3, Tape::Mode::forward_only), plain_of(3), 1e-15, "a preference that refuses");

  QuantizedPair gate_up("int4", count * 2 * inner, width, 2), down("int4", count * width, inner, 3);
  Operations ops(registry, options);
  Tape none(Tape::Mode::forward_only);
  const Tensor y = mixture(none, ops, Value(x.narrow(0, 0, 2)), Value(logits.narrow(0, 0, 2)), routing,
                           {count, Weight(gate_up.codes), Weight(down.codes)}, ExpertProducts::loop)
                       .data;
  const double of_codes =
      down.codes.packed[1][count * width - 1][0].item<double>() + gate_up.codes.packed[0][0][0].item<double>();
  expect_close(y, at::full({2, width}, known + 1e4 * of_codes, at::kDouble), 1e-9, "codes and scales");
}

TEST(Experts, ADryRunKnowsTheShapes) {
  for (const ExpertProducts products : {ExpertProducts::loop, ExpertProducts::blocks, ExpertProducts::grouped}) {
    const DryRun dry(at::kCPU);
    Registry registry{RegistryOptions{}};
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
    OperationsOptions options;
    options.device = at::kMeta;
    Operations ops(registry, options);
    const auto on = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
    Parameter gate_up, down;
    gate_up.value = gate_up.gradient = at::empty({count * 2 * inner, width}, on);
    down.value = down.gradient = at::empty({count * width, inner}, on);
    Tape tape;
    const Value x(at::empty({rows, width}, on), true), logits(at::empty({rows, count}, on), true);
    const Routed routed = route(tape, logits, {2, false, true, 0, 1, {}});
    const Value y = mix_experts(tape, ops, x, routed, {count, Weight(gate_up), Weight(down)}, products);
    EXPECT_EQ(y.data.sizes(), x.data.sizes());
    y.gradient->add(at::empty_like(y.data));
    tape.backward();
    EXPECT_EQ(x.gradient->take().sizes(), x.data.sizes());
    EXPECT_EQ(logits.gradient->take().sizes(), logits.data.sizes());
  }
}

} // namespace of_experts
} // namespace fvlm::ops
