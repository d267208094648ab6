#include "ops/loss.h"
#include "tools.h"

#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

constexpr int64_t tokens = 7, hidden_width = 5, vocab = 11;

Loss::Inputs make_inputs() {
  Loss::Inputs inputs{random({tokens, hidden_width}, 1), random({vocab, hidden_width}, 2),
                      at::tensor({3, -1, 0, 10, -100, 3, 7}, at::kLong)};
  // A row without a target may contain NaN.
  inputs.hidden[1].fill_(std::nan(""));
  inputs.hidden[4].fill_(std::numeric_limits<double>::infinity());
  return inputs;
}

Tensor make_d_losses() {
  Tensor d_losses = random({tokens}, 3);
  d_losses[1].fill_(std::nan(""));
  return d_losses;
}

fvlm_loss_query query_of(const Loss::Inputs& inputs, at::ScalarType gradient_type) {
  return {.needs_d_hidden = 1,
          .needs_d_weight = 1,
          .dtype = abi_dtype(inputs.hidden.scalar_type()),
          .gradient_dtype = abi_dtype(gradient_type),
          .tokens = inputs.hidden.size(0),
          .width = inputs.hidden.size(1),
          .vocab = inputs.weight.size(0)};
}

Loss make_loss(const Loss::Inputs& inputs, at::ScalarType gradient_type = at::kDouble) {
  return {reference_backend<fvlm_loss_v1>(FVLM_LOSS_KIND), query_of(inputs, gradient_type)};
}

struct CrossEntropy {
  Tensor losses, d_hidden, d_weight;
};
CrossEntropy cross_entropy(const Loss::Inputs& inputs, const Tensor& d_losses) {
  const Tensor counts = inputs.targets.ge(0);
  const Tensor hidden = leaf(at::where(counts.unsqueeze(1), inputs.hidden.to(at::kDouble), 0));
  const Tensor weight = leaf(inputs.weight);
  const Tensor logits = at::log_softmax(at::matmul(hidden, weight.t()), 1);
  const Tensor losses = at::nll_loss(logits, at::where(counts, inputs.targets, -100), {}, at::Reduction::None);
  losses.backward(at::where(counts, d_losses.to(at::kDouble), 0));
  return {losses.detach(), hidden.grad(), weight.grad()};
}

void expect_losses(const Tensor& losses, const Loss::Gradients& gradients, const CrossEntropy& want) {
  expect_close(losses, want.losses, 1e-12, "losses");
  expect_close(gradients.hidden, want.d_hidden, 1e-12, "d_hidden");
  expect_close(gradients.weight, want.d_weight, 1e-12, "d_weight");
}

} // namespace

TEST(Loss, ForwardAndBackwardEqualCrossEntropy) {
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  const Loss loss = make_loss(inputs);
  const auto output = loss.forward(inputs);
  expect_losses(output.losses, loss.backward(inputs, output, d_losses), cross_entropy(inputs, d_losses));
  EXPECT_EQ(output.losses[1].item<double>(), 0.0) << "a token without a target has a loss";
}

TEST(Loss, FusedEqualsForwardAndBackward) {
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  const auto [losses, gradients] = make_loss(inputs).fused(inputs, d_losses);
  expect_losses(losses, gradients, cross_entropy(inputs, d_losses));
}

TEST(Loss, TableWithoutFusedIsCalledTwice) {
  const auto whole = reference_backend<fvlm_loss_v1>(FVLM_LOSS_KIND);
  fvlm_loss_v1 table = whole.table();
  table.fused = nullptr;
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  const Loss loss(Backend<fvlm_loss_v1>("partial", table, host_for("partial"), at::kCPU),
                  query_of(inputs, at::kDouble));
  const auto [losses, gradients] = loss.fused(inputs, d_losses);
  expect_losses(losses, gradients, cross_entropy(inputs, d_losses));
}

TEST(Loss, WeightGradientAccumulatesIntoAnArenaView) {
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  const Tensor arena = at::full({vocab, hidden_width + 4}, 0.5, at::kDouble);
  const Tensor slot = arena.narrow(1, 2, hidden_width);
  const Loss loss = make_loss(inputs);
  loss.fused(inputs, d_losses, {{}, slot}, true);
  loss.backward(inputs, loss.forward(inputs), d_losses, {{}, slot}, true);
  expect_close(slot, cross_entropy(inputs, d_losses).d_weight * 2 + 0.5, 1e-12, "d_weight");
  expect_same_bits(arena.narrow(1, 0, 2), at::full({vocab, 2}, 0.5, at::kDouble), "beside the slot");
  loss.fused(inputs, d_losses, {{}, slot}, false);
  expect_close(slot, cross_entropy(inputs, d_losses).d_weight, 1e-12, "overwritten");
}

TEST(Loss, TakesStridedRows) {
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  const Loss::Inputs views{spread(inputs.hidden), spread(inputs.weight), inputs.targets};
  const Loss loss = make_loss(inputs);
  const auto output = loss.forward(views);
  expect_losses(output.losses, loss.backward(views, output, d_losses), cross_entropy(inputs, d_losses));
}

TEST(Loss, LowPrecisionKeepsFloat32LossesAndWeightGradients) {
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 5e-3}, {at::kHalf, 7e-4}}) {
    auto inputs = make_inputs();
    inputs.hidden = inputs.hidden.to(type);
    inputs.weight = inputs.weight.to(type);
    const Tensor d_losses = make_d_losses().to(at::kFloat);
    const Loss loss = make_loss(inputs, at::kFloat);
    const auto output = loss.forward(inputs);
    const auto gradients = loss.backward(inputs, output, d_losses);
    EXPECT_EQ(output.losses.scalar_type(), at::kFloat);
    EXPECT_EQ(gradients.weight.scalar_type(), at::kFloat);
    EXPECT_EQ(gradients.hidden.scalar_type(), type);
    const auto want = cross_entropy(inputs, d_losses);
    expect_close(output.losses, want.losses, 2e-6, c10::toString(type));
    expect_close(gradients.weight, want.d_weight, 2e-6, c10::toString(type));
    expect_close(gradients.hidden, want.d_hidden, tolerance, c10::toString(type));
  }
}

TEST(Loss, SavesNothingWhereNothingTrains) {
  const auto inputs = make_inputs();
  auto query = query_of(inputs, at::kDouble);
  query.needs_d_hidden = query.needs_d_weight = 0;
  const Loss loss(reference_backend<fvlm_loss_v1>(FVLM_LOSS_KIND), query);
  const auto output = loss.forward(inputs);
  EXPECT_TRUE(output.saved.empty());
  expect_close(output.losses, cross_entropy(inputs, make_d_losses()).losses, 1e-12, "losses");
}

TEST(Loss, FrozenHeadGetsNoGradient) {
  const auto inputs = make_inputs();
  const Tensor d_losses = make_d_losses();
  auto query = query_of(inputs, at::kDouble);
  query.needs_d_weight = 0;
  const Loss loss(reference_backend<fvlm_loss_v1>(FVLM_LOSS_KIND), query);
  const auto gradients = loss.backward(inputs, loss.forward(inputs), d_losses);
  EXPECT_FALSE(gradients.weight.defined());
  expect_close(gradients.hidden, cross_entropy(inputs, d_losses).d_hidden, 1e-12, "d_hidden");
}

TEST(Loss, NoTokensAndNoTargetsGiveZeroGradients) {
  for (int64_t rows : {0, 3}) {
    const Loss::Inputs inputs{random({rows, hidden_width}, 1), random({vocab, hidden_width}, 2),
                              at::full({rows}, -1, at::kLong)};
    const Loss loss = make_loss(inputs);
    const auto output = loss.forward(inputs);
    const auto gradients = loss.backward(inputs, output, random({rows}, 3));
    expect_same_bits(output.losses, at::zeros({rows}, at::kDouble), "losses");
    expect_same_bits(gradients.hidden, at::zeros({rows, hidden_width}, at::kDouble), "d_hidden");
    expect_same_bits(gradients.weight, at::zeros({vocab, hidden_width}, at::kDouble), "d_weight");
  }
}

TEST(Loss, LargeLogitsDoNotOverflow) {
  auto inputs = make_inputs();
  inputs.hidden = inputs.hidden.nan_to_num(0, 0, 0).mul_(1e4).to(at::kFloat);
  inputs.weight = inputs.weight.to(at::kFloat);
  const Loss loss = make_loss(inputs, at::kFloat);
  const auto output = loss.forward(inputs);
  EXPECT_TRUE(output.losses.isfinite().all().item<bool>()) << output.losses;
  expect_close(output.losses, cross_entropy(inputs, make_d_losses().to(at::kFloat)).losses, 1e-5, "losses");
}
