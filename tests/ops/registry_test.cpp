// The references in the engine: registered, selected, and called in debug mode with guard zones.
#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/optimizer.h"
#include "ops/quantizer.h"
#include "plugin/selection.h"
#include "tools.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

TEST(ReferenceInRegistry, PassesTheLoadersChecksAndIsSelected) {
  Registry registry{RegistryOptions{}};
  registry.add_static(reference_manifest(), [] { return &reference_entry; });
  std::string reason;
  ASSERT_NE(registry.load("reference", &reason), nullptr) << reason;
  EXPECT_EQ(registry.load("reference")->tables.size(), 9u);

  const fvlm_attention_query query = {.struct_size = sizeof query,
                                      .device = {FVLM_CPU, 0},
                                      .dtype = abi_dtype(at::kFloat),
                                      .heads_q = 2,
                                      .heads_kv = 1,
                                      .head_dim = 4,
                                      .max_seqlen_q = 3,
                                      .max_seqlen_kv = 3,
                                      .tokens_q = 3,
                                      .tokens_kv = 3,
                                      .segments = 1,
                                      .scale = 0.5f};
  const auto choice = select<fvlm_attention_v1>(registry, {}, query);
  EXPECT_EQ(choice.report.chosen, "reference");
  const Attention attention(Backend<fvlm_attention_v1>(choice, at::kCPU), query);
  const Tensor bounds = at::tensor({0, 3}, at::kInt), kv = at::ones({3, 1, 4});
  const auto output = attention.forward(at::ones({3, 2, 4}), kv, kv, {bounds, bounds, {}, {}});
  expect_close(output.out, at::ones({3, 2, 4}), 1e-6, "out");
  EXPECT_TRUE(output.saved.empty());
}

// Debug mode replaces each output by a copy between guard zones, including the gaps of strided views.
TEST(ReferenceInDebugMode, WritesNothingOutsideItsOutputs) {
  const DebugMode debug;
  const auto kernels = reference_backend<fvlm_kernels_v1>(FVLM_KERNELS_KIND);
  const fvlm_kernels_query query = {.op = FVLM_OP_LAYERNORM,
                                    .dtype = abi_dtype(at::kFloat),
                                    .gradient_dtype = abi_dtype(at::kFloat),
                                    .options = FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS,
                                    .rows = 5,
                                    .width = 6,
                                    .inner = 6,
                                    .epsilon = 1e-5f};
  const auto rows = [](uint64_t seed) { return spread(random({5, 6}, seed, at::kFloat)); };
  const Tensor weight = random({6}, 7, at::kFloat), matrix = random({6, 6}, 8, at::kFloat);
  const Norm norm(kernels, query);
  const auto normed = norm.forward(rows(1), rows(2), weight, weight, {rows(3), rows(4), {}});
  EXPECT_TRUE(normed.y.isfinite().all().item<bool>());
  norm.backward(normed.sum, weight, normed, rows(5), rows(6), {}, {rows(7), {}, {}});
  const Linear linear(kernels, query);
  const Tensor arena = at::full({6, 20}, 3.0f), slot = arena.narrow(1, 4, 6);
  linear.forward(rows(1), matrix, weight, {rows(2), {}});
  linear.input_gradient(rows(1), matrix, rows(2), rows(3));
  linear.weight_gradient(rows(1), rows(2), true, {slot, {}}, true);
  expect_same_bits(arena.narrow(1, 10, 10), at::full({6, 10}, 3.0f), "beside the slot");
  const SwiGlu swiglu(kernels, query);
  swiglu.forward(rows(1), rows(2), rows(3));
  swiglu.backward(rows(1), rows(2), rows(3), {rows(4), rows(5)});

  const Loss loss(reference_backend<fvlm_loss_v1>(FVLM_LOSS_KIND), {.needs_d_hidden = 1,
                                                                    .needs_d_weight = 1,
                                                                    .dtype = abi_dtype(at::kFloat),
                                                                    .gradient_dtype = abi_dtype(at::kFloat),
                                                                    .tokens = 5,
                                                                    .width = 6,
                                                                    .vocab = 6});
  const Loss::Inputs inputs{rows(1), matrix, at::tensor({1, -1, 0, 5, 2}, at::kLong)};
  const auto fused = loss.fused(inputs, at::ones({5}), {rows(2), slot}, true);
  EXPECT_TRUE(fused.losses.isfinite().all().item<bool>());
  loss.backward(inputs, loss.forward(inputs), at::ones({5}), {rows(2), slot}, false);

  const Quantizer quantizer(reference_backend<fvlm_quantizer_v1>(FVLM_QUANTIZER_KIND("int8")),
                            {.dtype = abi_dtype(at::kFloat), .rows = 5, .cols = 6, .tokens = 2});
  quantizer.unpack(quantizer.pack(rows(1)), rows(2));
  quantizer.fake_quantize_gradient(rows(1), rows(2));

  const std::vector<fvlm_optimizer_segment> segments = {{2, 3, 4, 0}};
  for (const char* kind : {FVLM_OPTIMIZER_KIND("adamw"), FVLM_OPTIMIZER_KIND("muon")}) {
    const Optimizer optimizer(reference_backend<fvlm_optimizer_v1>(kind),
                              {.gradient_dtype = abi_dtype(at::kFloat),
                               .parameter_dtype = abi_dtype(at::kBFloat16),
                               .state_dtype = abi_dtype(at::kFloat),
                               .elements = 16,
                               .group_count = 1},
                              segments);
    std::vector<Tensor> states;
    for (auto& state : optimizer.make_states()) states.push_back(state.values);
    const Tensor master = at::ones({16});
    optimizer.step(
        {master, at::ones({16}), at::ones({16}, at::kBFloat16), states},
        {optimizer.default_hyperparameters(), at::ones({1}, at::kLong), at::ones({1}), at::zeros({1}, at::kInt)});
    EXPECT_EQ(master[0].item<float>(), 1.0f) << kind;
    EXPECT_LT(master[2].item<float>(), 1.0f) << kind;
  }
}
