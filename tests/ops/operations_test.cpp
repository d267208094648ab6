// Each operation on the tape: gradients compared with central differences in float64, parameters that are used twice,
// frozen ones.
#include "bench.h"
#include "ops/call_observer.h"
#include "ops/rows.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <set>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

Tensor starts(const std::vector<int>& bounds) {
  return at::tensor(bounds, at::kInt);
}

TEST(Operations, Linear) {
  Bench b;
  const Value x = b.input({5, 3});
  const Weight w(b.parameter("weight", {4, 3})), bias(b.parameter("bias", {4}));
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->linear(tape, x, w, bias)}; });
}

TEST(Operations, GeluMlp) {
  Bench b;
  const Value x = b.input({5, 3});
  const Operations::Layer up{Weight(b.parameter("up", {6, 3})), Weight(b.parameter("up bias", {6}))},
      down{Weight(b.parameter("down", {3, 6})), Weight(b.parameter("down bias", {3}))};
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->gelu_mlp(tape, x, up, down)}; });
}

// The reference computes SwiGLU and its derivative within the linears.
TEST(Operations, SwigluMlp) {
  Bench b;
  const Value x = b.input({5, 3});
  const Operations::Layer up{Weight(b.parameter("up", {8, 3})), {}}, down{Weight(b.parameter("down", {3, 4})), {}};
  std::set<uint32_t> options;
  const CallObserver observer{[] {},
                              [&](std::string_view, const CalledQuery& query, double) {
                                options.insert(std::get<fvlm_kernels_query>(query).options & ~FVLM_WITH_BACKWARD);
                              }};
  use_call_observer(&observer);
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->swiglu_mlp(tape, x, up, down, {})}; });
  use_call_observer(nullptr);
  EXPECT_TRUE(options.contains(FVLM_WITH_SWIGLU) && options.contains(FVLM_SWIGLU_INPUT));
}

// With biases, or where an input has no gradient, it is computed one operation after another.
TEST(Operations, SwigluMlpWithBiases) {
  Bench b;
  const Value x = b.input({5, 3});
  const Operations::Layer up{Weight(b.parameter("up", {8, 3})), Weight(b.parameter("up bias", {8}))},
      down{Weight(b.parameter("down", {3, 4})), Weight(b.parameter("down bias", {3}))};
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->swiglu_mlp(tape, x, up, down, {})}; });
}

// Two passes through the same weights, whose gradients are computed at once.
TEST(Operations, SwigluMlpOfTwoPasses) {
  Bench b;
  const Value first = b.input({5, 3}), second = b.input({2, 3});
  const Operations::Layer up{Weight(b.parameter("up", {8, 3})), {}}, down{Weight(b.parameter("down", {3, 4})), {}};
  b.expect_true_gradients([&](Tape& tape) {
    const auto passes = SharedGradientPass::make_pair(2);
    const Value y = b.ops->swiglu_mlp(tape, first, up, down, passes[0], passes[0].input(down.weight, 5)),
                z = b.ops->swiglu_mlp(tape, second, up, down, passes[1], passes[1].input(down.weight, 2));
    return std::vector{y, z};
  });
}

TEST(Operations, ProductsThatAddAResidual) {
  Bench b;
  const Value x = b.input({5, 3}), residual = b.input({5, 4});
  const Operations::Layer first{Weight(b.parameter("first", {4, 3})), Weight(b.parameter("first bias", {4}))},
      up{Weight(b.parameter("up", {6, 4})), Weight(b.parameter("up bias", {6}))},
      down{Weight(b.parameter("down", {4, 6})), Weight(b.parameter("down bias", {4}))};
  b.expect_true_gradients([&](Tape& tape) {
    const Value y = b.ops->linear(tape, x, first, residual);
    return std::vector{b.ops->gelu_mlp(tape, y, up, down, y)};
  });
}

// Layers of a tower, with a distance of `apart` numbers between the parameters of adjacent layers.
struct ScaledLayers {
  ScaledLayers(Bench& bench, int64_t count, int64_t width, int64_t inner, int64_t apart) {
    const Tensor values = random({count * apart}, 7), gradients = at::full({count * apart}, std::nan(""), at::kDouble);
    for (int64_t i = 0; i < count; ++i) {
      const auto part = [&](const char* name, int64_t begin, at::IntArrayRef shape) {
        Parameter& made = bench.parameter(name + std::to_string(i), shape);
        made.value = values.narrow(0, i * apart + begin, made.value.numel()).view(shape);
        made.gradient = gradients.narrow(0, i * apart + begin, made.value.numel()).view(shape);
        return Weight(made);
      };
      const Weight weight = part("weight", 0, {width, inner}), bias = part("bias", width * inner, {width});
      all.push_back({{weight, bias}, part("scale", width * inner + width, {width})});
    }
  }
  std::vector<Operations::LayerWithScale> all;
};

TEST(Operations, ScaledLinearsEqualLinearAndScale) {
  Bench b;
  const Value x = b.input({5, 4}), residual = b.input({5, 4});
  const ScaledLayers layers(b, 3, 4, 4, 30);
  const auto folded = [&](Tape& tape) {
    const auto scaled = b.ops->fold_scale(tape, layers.all);
    Value y = x;
    for (const auto& each : scaled) y = b.ops->linear(tape, y, each, residual);
    return std::vector{y, b.ops->linear(tape, x, scaled[1], {})}; // the second is read twice
  };
  b.expect_true_gradients(folded);

  Tape none(Tape::Mode::forward_only);
  Value plain = x;
  for (const auto& [layer, scale] : layers.all)
    plain = b.ops->layerscale(none, b.ops->linear(none, plain, layer.weight, layer.bias), scale, residual);
  expect_close(folded(none)[0].data, plain.data, 1e-12, "folded");
  const auto& choices = b.ops->choices();
  EXPECT_EQ(std::count_if(choices.begin(), choices.end(),
                          [](const SelectionReport& each) { return each.subject == "kernels scaled_rows"; }),
            2)
      << "three layers at once, with and without gradients";
}

// Unused layers get zero gradients, and so does an unused tower; also with other memory layouts and frozen parameters.
TEST(Operations, ScaledLinearsFrozenOrUnread) {
  Bench b;
  const Value x = b.input({5, 4});
  ScaledLayers layers(b, 2, 4, 4, 30);
  const ScaledLayers elsewhere(b, 1, 4, 4, 25);
  layers.all.push_back(elsewhere.all[0]);
  b.expect_true_gradients([&](Tape& tape) {
    const auto scaled = b.ops->fold_scale(tape, layers.all);
    return std::vector{b.ops->linear(tape, b.ops->linear(tape, x, scaled[0], {}), scaled[2], {})};
  });
  Tape unread;
  for (const auto& each : b.parameters) each->has_gradient = false;
  (void)b.ops->fold_scale(unread, layers.all);
  unread.backward();
  EXPECT_FALSE(b.parameters[0]->has_gradient);

  for (const char* trains : {"weight", "bias", "scale"}) {
    SCOPED_TRACE(trains);
    Bench some;
    const Value input = some.input({5, 4});
    const ScaledLayers of(some, 2, 4, 4, 30);
    for (const auto& each : some.parameters)
      if (!each->name.starts_with(trains)) each->gradient.reset();
    std::vector<Operations::LayerWithScale> anew;
    for (size_t i = 0; i < some.parameters.size(); i += 3)
      anew.push_back({{Weight(*some.parameters[i]), Weight(*some.parameters[i + 1])}, Weight(*some.parameters[i + 2])});
    some.expect_true_gradients([&](Tape& tape) {
      const auto scaled = some.ops->fold_scale(tape, anew);
      return std::vector{some.ops->linear(tape, some.ops->linear(tape, input, scaled[0], {}), scaled[1], {})};
    });
  }
}

// The second pass of a step accumulates.
TEST(Operations, ScaledLinearsAddToGradients) {
  Bench b;
  const Value x = b.input({5, 4});
  const ScaledLayers layers(b, 2, 4, 4, 30);
  const auto pass = [&] {
    Tape tape;
    const auto scaled = b.ops->fold_scale(tape, layers.all);
    const Value y = b.ops->linear(tape, b.ops->linear(tape, x, scaled[0], {}), scaled[1], {});
    y.gradient->add(random({5, 4}, 9));
    tape.backward();
    x.gradient->take();
  };
  pass();
  std::vector<Tensor> once;
  for (const auto& each : b.parameters) once.push_back(each->gradient.clone());
  pass();
  for (size_t i = 0; i < once.size(); ++i)
    expect_close(b.parameters[i]->gradient, 2 * once[i], 1e-12, b.parameters[i]->name);
}

// A fused bias gradient is computed by the last operation that adds to the value, and by no other.
TEST(Operations, BiasesGetColumnSumsFromTheNextNorm) {
  for (const bool rows_are_taken : {false, true}) {
    SCOPED_TRACE(rows_are_taken);
    Bench b;
    const Value x = b.input({5, 3}), residual = b.input({5, 4});
    const Operations::Layer layer{Weight(b.parameter("weight", {4, 3})), Weight(b.parameter("bias", {4}))};
    const Weight norm(b.parameter("norm", {4})), norm_bias(b.parameter("norm bias", {4}));
    std::shared_ptr<Gradient> requested;
    b.expect_true_gradients([&](Tape& tape) {
      const Value y = b.ops->linear(tape, x, layer, residual);
      requested = y.gradient ? y.gradient : requested;
      const Value normed = b.ops->layernorm(tape, y, norm, norm_bias, 1e-6);
      if (!rows_are_taken) return std::vector{normed, b.ops->linear(tape, x, layer, y)};
      return std::vector{normed, gather_rows(tape, y, at::tensor({4, 1}, at::kLong))};
    });
    EXPECT_EQ(requested->has_bias_gradient(), !rows_are_taken);
  }
}

TEST(Operations, NormsWithAndWithoutResidual) {
  Bench b;
  const Value x = b.input({5, 4}), residual = b.input({5, 4});
  const Weight rms(b.parameter("rms", {4})), weight(b.parameter("weight", {4})), bias(b.parameter("bias", {4}));
  b.expect_true_gradients([&](Tape& tape) {
    const auto first = b.ops->rmsnorm(tape, x, residual, rms, 1e-5);
    const auto second = b.ops->rmsnorm(tape, first.sum, {}, rms, 1e-5);
    return std::vector{first.y, second.y, b.ops->layernorm(tape, first.sum, weight, bias, 1e-6)};
  });
}

// A residual stream in bfloat16.
TEST(Operations, CompensatedSumIsRoundedOnce) {
  Registry registry{RegistryOptions{}};
  registry.add_static(reference_manifest(), [] { return &reference_entry; });
  const auto error = [&](at::ScalarType dtype, bool keeps) {
    OperationsOptions options;
    options.dtype = dtype;
    options.gradient_dtype = at::kFloat;
    Operations ops(registry, options);
    Parameter parameter;
    parameter.value = at::ones({8}, dtype);
    const Weight weight(parameter);
    Tape none(Tape::Mode::forward_only);
    Tensor exact = at::zeros({5, 8}, at::kDouble), rest;
    Value sum(exact.to(dtype));
    for (uint64_t i = 0; i < 64; ++i) {
      const Tensor term = random({5, 8}, i).to(dtype);
      exact += term;
      sum = ops.rmsnorm(none, Value(term), sum, weight, 1e-5, {}, keeps ? &rest : nullptr).sum;
    }
    EXPECT_EQ(rest.defined(), keeps && dtype != at::kFloat);
    return (sum.data.to(at::kDouble) - exact).abs().max().item<double>() / exact.abs().max().item<double>();
  };
  EXPECT_LT(error(at::kBFloat16, true), 0x1p-8);
  EXPECT_GT(error(at::kBFloat16, false), 0x1p-7);
  EXPECT_LT(error(at::kFloat, true), 0x1p-20);
}

// A residual stream in bfloat16 to which linears add, compensated in every third row.
TEST(Operations, CompensatedRowsAreRoundedOnce) {
  Registry registry{RegistryOptions{}};
  registry.add_static(reference_manifest(), [] { return &reference_entry; });
  const auto errors = [&](at::ScalarType dtype, bool carries) {
    OperationsOptions options;
    options.dtype = dtype;
    options.gradient_dtype = at::kFloat;
    Operations ops(registry, options);
    Parameter weights, biases;
    weights.value = random({8, 4}, 1).to(dtype), biases.value = random({8}, 2).to(dtype);
    const Operations::Layer layer{Weight(weights), Weight(biases)};
    Tape none(Tape::Mode::forward_only);
    Tensor exact = at::zeros({9, 8}, at::kDouble);
    Value sum(exact.to(dtype));
    Operations::Compensation carried{3, {}};
    for (uint64_t i = 0; i < 64; ++i) {
      const Tensor x = random({9, 4}, 10 + i).to(dtype);
      exact += at::mm(x.to(at::kDouble), weights.value.to(at::kDouble).t()) + biases.value.to(at::kDouble);
      sum = ops.linear(none, Value(x), layer, sum, carries ? &carried : nullptr);
    }
    EXPECT_EQ(carried.value.defined(), carries && dtype != at::kFloat);
    const Tensor off = (sum.data.to(at::kDouble) - exact).abs().view({3, 3, 8}) / exact.abs().max();
    return std::pair(off.select(1, 2).max().item<double>(), off.narrow(1, 0, 2).max().item<double>());
  };
  const auto [carried, beside] = errors(at::kBFloat16, true);
  EXPECT_LT(carried, 0x1p-8);
  EXPECT_GT(beside, 0x1p-7);
  EXPECT_EQ(errors(at::kBFloat16, false).second, beside);
  EXPECT_GT(errors(at::kBFloat16, false).first, 0x1p-7);
  EXPECT_EQ(errors(at::kFloat, true), errors(at::kFloat, false));
}

TEST(Operations, SwigluAndLayerscale) {
  Bench b;
  const Value both = b.input({5, 8}), residual = b.input({5, 4});
  const Weight scale(b.parameter("scale", {4}));
  b.expect_true_gradients(
      [&](Tape& tape) { return std::vector{b.ops->layerscale(tape, b.ops->swiglu(tape, both), scale, residual)}; });
}

TEST(Operations, AttentionOverOneValueRotatedByThePlugin) {
  Bench b;
  const Value qkv = b.input({7, (4 + 2 + 2) * 4});
  const Segments segments{starts({0, 3, 3, 6}), at::tensor({0, 1, 2, 0, 1, 2, 0}, at::kInt), 3};
  b.expect_true_gradients([&](Tape& tape) {
    return std::vector{
        b.ops->attention(tape, {qkv, 0, 4}, {qkv, 16, 2}, {qkv, 24, 2}, segments, segments, {4, true, {4, 100.0}})};
  });
}

// Keys and values that several attentions read, and queries in a value of their own: as for fVLM's frames.
TEST(Operations, AttentionTwiceOverTheSameKeys) {
  Bench b;
  const Value q = b.input({2, 8}), qkv = b.input({6, 24});
  const Segments readers{starts({0, 1, 2}), {}, 1}, tokens{starts({0, 3, 6}), {}, 3};
  b.expect_true_gradients([&](Tape& tape) {
    const Heads k{qkv, 8, 2}, v{qkv, 16, 2};
    const Value own = b.ops->attention(tape, {qkv, 0, 2}, k, v, tokens, tokens, {4});
    const Value first = b.ops->attention(tape, {q, 0, 2}, k, v, readers, tokens, {4});
    return std::vector{own, first, b.ops->attention(tape, {first, 0, 2}, k, v, readers, tokens, {4})};
  });
}

TEST(Operations, RotationInPlace) {
  Bench b;
  const Value x = b.input({3, 8});
  const Weight w(b.parameter("weight", {8, 8}));
  const Tensor positions = at::tensor({0, 5, 9}, at::kInt);
  b.expect_true_gradients([&](Tape& tape) {
    const Value y = b.ops->linear(tape, x, w);
    return std::vector{b.ops->rotate(tape, y, 1, 4, {4, 100.0}, positions)};
  });
}

TEST(Operations, CrossEntropyByLabelAndWeighted) {
  Bench b;
  const Value hidden = b.input({4, 3});
  const Weight head(b.parameter("head", {5, 3}));
  const Tensor targets = at::tensor({1, -1, 4, 0}, at::kLong);
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->cross_entropy(tape, hidden, head, targets)}; });

  const Tensor weights = at::tensor({0.5, 7.0, 0.25, 1.0}, at::kDouble);
  Tape tape, other;
  b.parameters[0]->has_gradient = false;
  const Tensor losses = b.ops->weighted_cross_entropy(tape, hidden, head, targets, weights);
  tape.backward();
  const Tensor d_hidden = hidden.gradient->take(), d_head = b.parameters[0]->gradient.clone();
  b.parameters[0]->has_gradient = false;
  const Value again = b.ops->cross_entropy(other, hidden, head, targets);
  again.gradient->add(weights);
  other.backward();
  expect_close(losses, again.data, 1e-12, "losses");
  expect_close(d_hidden, hidden.gradient->take(), 1e-12, "d_hidden");
  expect_close(d_head, b.parameters[0]->gradient, 1e-12, "d_head");
}

TEST(Operations, Rows) {
  Bench b;
  const Value visual = b.input({3, 4});
  const Weight table(b.parameter("table", {6, 4})), row(b.parameter("row", {1, 4}));
  const Sequence sequence{at::tensor({2, 0, 0, 5, 2}, at::kLong),
                          at::tensor({1.0, 0.0, 0.0, 1.0, 1.0}, at::kDouble).unsqueeze(1),
                          at::tensor({2, 1, 5}, at::kLong)}; // the third is padding
  b.expect_true_gradients([&](Tape& tape) {
    const Value x = embed(tape, table, visual, sequence, at::kDouble);
    const Value twice = gather_rows(tape, x, at::tensor({4, 4, 1}, at::kLong));
    return std::vector{x, scale(tape, twice, 0.14), broadcast_row(tape, row, 3)};
  });
}

// q by itself, then q, k and v as one weight: the gradient of q accumulates, the others start from zero.
TEST(Operations, WeightReadInPartAndAsAWhole) {
  Bench b;
  Parameter &q = b.parameter("q", {2, 3}), &k = b.parameter("k", {4, 3});
  const Tensor values = random({6, 3}, 1), gradients = at::full({6, 3}, std::nan(""), at::kDouble);
  for (Parameter* each : {&q, &k}) {
    const int64_t begin = each == &q ? 0 : 2, rows = each->value.size(0);
    each->value = values.narrow(0, begin, rows);
    each->gradient = gradients.narrow(0, begin, rows);
  }
  const Value x = b.input({5, 3});
  const Weight part(q), whole(std::vector{&q, &k});
  b.expect_true_gradients([&](Tape& tape) {
    const Value y = b.ops->linear(tape, x, whole);
    return std::vector{y, b.ops->linear(tape, x, part)};
  });
}

TEST(Operations, TwoPassesShareTheGradientOfAWeight) {
  Bench b;
  const Value one = b.input({3, 4}), other = b.input({5, 4});
  const Weight up(b.parameter("up", {8, 4})), bias(b.parameter("bias", {8})), down(b.parameter("down", {2, 4}));
  b.expect_true_gradients([&](Tape& tape) {
    const auto passes = SharedGradientPass::make_pair(5);
    const auto run = [&](const Value& x, const SharedGradientPass& pass) {
      const Value gate_up = b.ops->linear(tape, x, up, bias, pass);
      return b.ops->linear(tape, b.ops->swiglu(tape, gate_up, pass.input(down, x.data.size(0))), down, {}, pass);
    };
    const Value first = run(one, passes[0]);
    return std::vector{first, run(other, passes[1])};
  });
}

TEST(Operations, SharedWeightGradientOfOnlyOnePassOrNone) {
  for (const char* which : {"earlier", "later", "earlier, and there is no other"}) {
    SCOPED_TRACE(which);
    Bench b;
    const Value one(random({3, 4}, 1)), other(random({5, 4}, 2));
    const Weight weight(b.parameter("weight", {2, 4}));
    b.expect_true_gradients([&](Tape& tape) {
      const auto passes = SharedGradientPass::make_pair(5);
      const Value first = b.ops->linear(tape, one, weight, {}, passes[0]);
      if (std::string(which).ends_with("no other")) return std::vector{first};
      const Value second = b.ops->linear(tape, other, weight, {}, passes[1]);
      return std::vector{std::string(which) == "later" ? second : first};
    });
  }
  Bench b;
  Parameter& weight = b.parameter("weight", {2, 4});
  Tape tape;
  b.ops->linear(tape, Value(random({3, 4}, 1)), Weight(weight), {}, SharedGradientPass::make_pair(5)[0]);
  tape.backward();
  EXPECT_FALSE(weight.has_gradient) << "nothing came";
}

// Avoids a copy where two passes share a weight gradient.
TEST(Operations, ResultsLieInTheRequestedMemory) {
  Bench b;
  const Weight scale(b.parameter("scale", {4}));
  const Segments segments{starts({0, 2, 5}), at::tensor({0, 1, 0, 1, 2}, at::kInt), 3};
  const auto check = [&](int64_t columns, const std::function<Value(Tape&, const Value& x, const Tensor& into)>& run) {
    const Value x(random({5, columns}, 1), true);
    const Tensor memory = at::full({9, columns}, std::nan(""), at::kDouble);
    Tensor place = memory.narrow(0, 4, 5);
    const Tensor into = at::full({5, 4}, std::nan(""), at::kDouble);
    x.gradient->set_destination([&place] { return place; });
    Tape tape;
    const Value y = run(tape, x, into);
    EXPECT_EQ(y.data.data_ptr(), into.data_ptr());
    y.gradient->add(random({5, 4}, 2));
    tape.backward();
    EXPECT_EQ(x.gradient->take().data_ptr(), place.data_ptr());
    EXPECT_FALSE(place.isnan().any().item<bool>());
    EXPECT_NE(x.gradient->allocate_like(x.data).data_ptr(), place.data_ptr()) << "the first gets it";
  };
  check(4, [&](Tape& tape, const Value& x, const Tensor& into) {
    return b.ops->rmsnorm(tape, x, Value(random({5, 4}, 3), true), scale, 1e-5, into).y;
  });
  check(8, [&](Tape& tape, const Value& x, const Tensor& into) { return b.ops->swiglu(tape, x, into); });
  check(12, [&](Tape& tape, const Value& x, const Tensor& into) {
    return b.ops->attention(tape, {x, 0, 2}, {x, 4, 2}, {x, 8, 2}, segments, segments, {2, true, {2, 100.0}}, into);
  });
}

TEST(Operations, FrozenParametersLeaveNoStepAndNoGradient) {
  Bench b;
  Parameter& frozen = b.parameter("frozen", {4, 3});
  frozen.gradient.reset();
  const Weight w(frozen);
  Tape tape;
  EXPECT_FALSE(b.ops->linear(tape, Value(random({5, 3}, 1)), w).requires_grad());
  const Value x = b.input({5, 3});
  b.expect_true_gradients([&](Tape& inner) { return std::vector{b.ops->linear(inner, x, w)}; });
  EXPECT_FALSE(frozen.gradient.defined());
}

TEST(Operations, RecomputedGiveTheSameGradients) {
  Bench b;
  const Value x = b.input({5, 4}), residual = b.input({5, 4});
  const Weight norm(b.parameter("norm", {4})), w(b.parameter("weight", {4, 4}));
  b.expect_true_gradients([&](Tape& tape) {
    return checkpointed(tape, {x, residual}, [&](Tape& inner, const std::vector<Value>& in) {
      const auto normed = b.ops->rmsnorm(inner, in[0], in[1], norm, 1e-5);
      return std::vector{b.ops->linear(inner, normed.y, w), normed.sum};
    });
  });
}

// The first attention that reads the shared keys defers its queries; the second adds to the gradient as usual.
TEST(Operations, DeferredQueriesAddTheirShareToTheOtherAttention) {
  for (const bool is_read : {true, false}) {
    SCOPED_TRACE(is_read);
    Bench b;
    const Value qkv = b.input({7, 12}), first = b.input({3, 4}), second = b.input({3, 4}); // two heads of two
    const Segments rows{starts({0, 3, 5, 7}), {}, 3}, readers{starts({0, 1, 1, 2}), {}, 1};
    b.expect_true_gradients([&](Tape& tape) {
      const auto is_open = [](const Value& kv) {
        return kv.requires_grad() && kv.gradient->accepts_deferred_queries();
      };
      const Value kv = b.ops->slice_columns(tape, qkv, 4, 8);
      const Value own = b.ops->attention(tape, {qkv, 0, 2}, {qkv, 4, 2}, {qkv, 8, 2}, rows, rows, {2}, {}, kv);
      EXPECT_EQ(is_open(kv), tape.records());
      std::vector<Value> read;
      for (const Value& queries : {first, second}) {
        read.push_back(b.ops->attention(tape, {queries, 0, 2}, {kv, 0, 2}, {kv, 4, 2}, readers, rows, {2}));
        EXPECT_FALSE(is_open(kv));
      }
      if (is_read) read.push_back(own);
      return read;
    });
  }
}

} // namespace
