// Pairs that a pack's class has beyond its own: they change no sum and no gradient of a preference loss.
#include "../ops/tools.h"
#include "objective/dpo/settings.h"
#include "small_run.h"
#include "train/groups.h"
#include "train/initial_model.h"
#include "train/input_staging.h"
#include "train/pass_builder.h"
#include "train/stage_model.h"
#include "train/synthetic_pack.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

namespace fvlm::train {
namespace {

using at::Tensor;
using objective::Dpo;

class PaddedPairs : public SmallRun, public testing::WithParamInterface<Dpo::Loss> {
 protected:
  static constexpr int64_t padding = 3;

  static HostPack three_pairs() {
    HostPack pack;
    for (const auto& [chosen, rejected] : {std::pair{9, 12}, {7, 5}, {6, 11}}) {
      auto sample = std::make_shared<Sample>();
      for (const int tokens : {chosen, rejected}) {
        SampleText& text = sample->texts.emplace_back();
        for (int i = 0; i < tokens; ++i) {
          text.ids.push_back(static_cast<TokenId>((i * 7919 + tokens) % 256));
          text.answer_mask.push_back(i % 5 > 1);
        }
      }
      pack.samples.push_back({std::ssize(pack.samples), sample, 0});
    }
    return pack;
  }

  // Texts without rows, and a reference's log-probabilities that would be seen.
  static void pad(objective::PassInputs& in) {
    Tensor& ends = in.pack.texts.cu_seqlens;
    ends = at::concat({ends, ends.slice(0, -1).expand({2 * padding})});
    in.used_pairs = at::concat({in.used_pairs, at::zeros({padding}, at::kDouble)});
    in.reference_log_probs = at::concat({in.reference_log_probs, at::full({2 * padding}, -7.0, at::kDouble)});
  }

  struct Learnt {
    Tensor sums;
    std::vector<std::pair<std::string, Tensor>> gradients;
  };

  Learnt learn(const plan::Plan& plan, const plan::Stage& stage, bool padded) {
    const c10::InferenceMode without_autograd;
    ops::Operations operations(registry_, {.dtype = at::kDouble, .gradient_dtype = at::kDouble});
    const auto all = [](const model::ParameterSpec&) { return true; };
    const auto policy = make_model(describe(plan), 1, {at::kCPU, at::kDouble, at::kDouble, all});
    const HostPack host = three_pairs();
    const PassBuilder builder(plan, stage, *policy, at::TensorOptions(at::kDouble),
                              max_capacity_of(plan, stage, {16, 256}, 8));
    std::vector<std::shared_ptr<const Sample>> samples;
    for (const PackedSample& packed : host.samples) samples.push_back(packed.sample);
    objective::PassInputs in = on_device(builder.build(host, 0, counts_of(stage, samples), 1), at::kCPU);
    in.reference_log_probs = at::full({2 * in.used_pairs.size(0)}, -11.0, at::kDouble);
    if (padded) pad(in);
    const objective::Objective objective(stage.objective, stage.mode);
    Learnt learnt{at::zeros({std::ssize(stage.objective), objective.columns()}, at::kDouble), {}};
    PartTimes times;
    objective.forward_backward(operations, *policy, {}, {&in}, {learnt.sums, {}}, times);
    for (const auto& parameter : policy->parameters().all())
      if (parameter.has_gradient) learnt.gradients.emplace_back(parameter.name, parameter.gradient.clone());
    return learnt;
  }
};

TEST_P(PaddedPairs, ChangeNothing) {
  plan::Plan plan = resolved().plan;
  plan::Stage& stage =
      *std::find_if(plan.stages.begin(), plan.stages.end(), [](const auto& each) { return each.needs_pairs(); });
  Dpo& term = *stage.objective[0].as<Dpo>();
  term.loss = GetParam();
  term.cache_reference = true;
  const Learnt plain = learn(plan, stage, false), padded = learn(plan, stage, true);
  ops::expect_close(padded.sums, plain.sums, 1e-12, "sums");
  EXPECT_EQ(plain.sums[0][1].item<double>(), 3) << "pairs";
  ASSERT_EQ(padded.gradients.size(), plain.gradients.size());
  ASSERT_FALSE(plain.gradients.empty());
  double largest = 0;
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    const auto& [name, gradient] = plain.gradients[i];
    largest = std::max(largest, gradient.abs().max().item<double>());
    ops::expect_close(padded.gradients[i].second, gradient, 1e-12, name);
  }
  EXPECT_GT(largest, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Losses, PaddedPairs,
                         testing::Values(Dpo::Loss::sigmoid, Dpo::Loss::ipo, Dpo::Loss::hinge, Dpo::Loss::kto,
                                         Dpo::Loss::simpo, Dpo::Loss::orpo));

} // namespace
} // namespace fvlm::train
