// How the memory that a stage needs follows from its plan. That the figures are those of tensors: budget_test.cpp.
#include "budget/stage_budget.h"
#include "budget/tiny_plan.h"
#include "objective/dpo/settings.h"
#include "objective/kl/settings.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "train/step_memory.h"

#include <gtest/gtest.h>

namespace fvlm::budget {
namespace {

StageBudget budget_of(const plan::Plan& plan, Device device = Device::cpu) {
  RegistryOptions options;
  options.bundled = FVLM_PLUGINS;
  options.load.bundled = read_bundled_hashes(options.bundled.parent_path() / "bundled", options.load.trust);
  Registry registry(options);
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  return train::stage_budget(plan, plan.stages[0], model(), registry, device);
}

int64_t amount(const StageBudget& budget, Item item) {
  return budget.step.amounts[static_cast<size_t>(item)];
}

TEST(StageBudget, adds_up_to_its_sum) {
  const StageBudget budget = budget_of(plan());
  int64_t sum = 0;
  for (const int64_t one : budget.step.amounts) sum += one;
  EXPECT_EQ(sum, budget.step.peak);
  EXPECT_GT(amount(budget, Item::vision), 0);
  EXPECT_GT(amount(budget, Item::decoder), 0);
  EXPECT_EQ(budget.step.peak, budget.without_recompute);
}

TEST(StageBudget, of_a_larger_pack_grows_with_its_activations_alone) {
  plan::Plan large = plan();
  large.stages[0].packing.frames = 64;
  large.stages[0].packing.tokens.count = 1024;
  const StageBudget one = budget_of(plan()), two = budget_of(large);
  EXPECT_EQ(amount(one, Item::weights), amount(two, Item::weights));
  EXPECT_EQ(amount(one, Item::moments), amount(two, Item::moments));
  large.stages[0].packing.frames = 96;
  large.stages[0].packing.tokens.count = 1536;
  const StageBudget three = budget_of(large);
  for (const Item item : {Item::vision, Item::decoder})
    EXPECT_EQ(amount(two, item) - amount(one, item), amount(three, item) - amount(two, item));
  EXPECT_GT(3 * amount(two, Item::vision), 5 * amount(one, Item::vision));
}

TEST(StageBudget, of_what_is_frozen_has_no_gradients_moments_and_activations) {
  plan::Plan frozen = plan();
  frozen.stages[0].freeze = {"vision"};
  const StageBudget all = budget_of(plan()), some = budget_of(frozen);
  EXPECT_EQ(amount(all, Item::weights), amount(some, Item::weights));
  EXPECT_LT(amount(some, Item::gradients), amount(all, Item::gradients));
  EXPECT_EQ(amount(some, Item::moments), 2 * amount(some, Item::gradients));
  EXPECT_LT(amount(some, Item::vision), amount(all, Item::vision) / 2);
}

TEST(StageBudget, of_bfloat16_has_masters_and_half_the_activations) {
  plan::Plan narrow = plan();
  narrow.precision = plan::Precision::bf16;
  const StageBudget wide = budget_of(plan(), Device::cuda), half = budget_of(narrow, Device::cuda);
  EXPECT_EQ(amount(wide, Item::masters), 0);
  EXPECT_EQ(amount(half, Item::masters), amount(half, Item::gradients));
  EXPECT_EQ(2 * amount(half, Item::weights), amount(wide, Item::weights));
  EXPECT_LT(amount(half, Item::decoder), amount(wide, Item::decoder) * 6 / 10);
  plan::common(narrow.stages[0].optimizer).moments = plan::Moments::bf16;
  EXPECT_EQ(amount(budget_of(narrow), Item::moments), amount(half, Item::moments) * 3 / 4)
      << "AdamW's second moment stays float32";
}

TEST(StageBudget, of_a_gpu_has_the_next_packs_frames_too) {
  plan::Plan apart = plan();
  apart.speed.overlap_copies = false;
  const int64_t frames = 32 * 3 * 56 * 56; // bytes
  EXPECT_EQ(amount(budget_of(plan(), Device::cuda), Item::pack),
            amount(budget_of(apart, Device::cuda), Item::pack) + frames);
  EXPECT_EQ(amount(budget_of(plan()), Item::pack), amount(budget_of(apart), Item::pack)) << "a CPU reads them in place";
}

plan::Plan muon_plan() {
  plan::Plan other = plan();
  plan::Muon muon;
  muon.lr = muon.others.lr = {{"default", 1e-3}};
  other.stages[0].optimizer = muon;
  return other;
}

TEST(StageBudget, OfMuonHasNoMoreMomentsThanOfAdamW) {
  EXPECT_EQ(amount(budget_of(muon_plan()), Item::moments), amount(budget_of(plan()), Item::moments))
      << "the momentum of matrices lies beside the others' first moment, in one arena";
}

TEST(StageBudget, of_muon_has_room_for_a_matrix_and_on_a_gpu_for_those_of_a_shape) {
  const auto room = [](Device device, plan::Precision precision) {
    plan::Plan muon = muon_plan(), adamw = plan();
    muon.precision = adamw.precision = precision;
    return amount(budget_of(muon, device), Item::workspace) - amount(budget_of(adamw, device), Item::workspace);
  };
  const int64_t gate = 2 * 4 * 96 * (96 + 256), products = 4 << 20; // each of 6 layers has a gate and an up
  constexpr int64_t alignment = 4096;
  EXPECT_GE(room(Device::cpu, plan::Precision::fp32), gate);
  EXPECT_LT(room(Device::cpu, plan::Precision::fp32), 2 * gate) << "its panels are padded";
  EXPECT_NEAR(room(Device::cuda, plan::Precision::fp32), 2 * 6 * gate + products, alignment);
  EXPECT_NEAR(room(Device::cuda, plan::Precision::bf16), 6 * gate + products, alignment);
}

TEST(StageBudget, of_layers_that_are_computed_again_is_less) {
  plan::Plan again = plan();
  plan::Recompute all;
  all.every = 1;
  again.stages[0].activation_checkpointing = {all, all};
  const StageBudget kept = budget_of(plan()), computed = budget_of(again);
  EXPECT_LT(computed.step.peak, kept.step.peak);
  EXPECT_EQ(computed.step.peak, kept.with_all);
  EXPECT_EQ(computed.without_recompute, kept.step.peak);
}

TEST(StageBudget, of_preferences_has_a_frozen_reference) {
  plan::Plan prefers = plan();
  prefers.stages[0].objective = {objective::Dpo{}};
  const StageBudget budget = budget_of(prefers);
  EXPECT_EQ(amount(budget, Item::frozen), amount(budget, Item::weights));
  objective::Dpo remembered;
  remembered.cache_reference = true;
  prefers.stages[0].objective = {remembered};
  EXPECT_EQ(amount(budget_of(prefers), Item::frozen), 0) << "what it thinks lies in the run's folder";
  EXPECT_EQ(budget.pack.visual_rows, 2 * budget.pack.frames) << "each text is read behind all its frames";
}

TEST(StageBudget, of_weights_that_compute_quantised_has_what_they_really_are) {
  plan::Plan aware = plan();
  aware.quantization = plan::Quantization{"int8", {"vision.*", "connector.*"}};
  aware.stages[0].quantization_aware = true;
  const StageBudget budget = budget_of(aware);
  const int64_t of_layer = 160 * 96 + 96 * 96 + 2 * 256 * 96 + 96 * 256; // q, k, v; out; gate, up; down
  EXPECT_EQ(amount(budget, Item::real_weights), 4 * 6 * of_layer) << "the matrices of the decoder's layers";
  EXPECT_EQ(amount(budget_of(plan()), Item::real_weights), 0);
}

TEST(StageBudget, of_a_teacher_that_is_not_there_is_refused) {
  plan::Plan taught = plan();
  objective::Kl kl;
  kl.folder = "/nowhere/teacher";
  taught.stages[0].objective.push_back(kl);
  EXPECT_ANY_THROW(budget_of(taught));
}

} // namespace
} // namespace fvlm::budget
