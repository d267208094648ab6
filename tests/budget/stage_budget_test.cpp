// How the predicted memory of a stage depends on its plan. tests/train/budget_test.cpp compares it with measured
// memory.
#include "budget/budget_text.h"
#include "budget/stage_budget.h"
#include "objective/dpo/settings.h"
#include "objective/kl/settings.h"
#include "objective/next_token/settings.h"

#include <gmock/gmock.h>

namespace fvlm::budget {
namespace {

using testing::HasSubstr;

ModelDescription model() {
  ModelDescription description;
  description.vision = {.model_type = "dinov2",
                        .hidden_size = 64,
                        .num_hidden_layers = 4,
                        .num_attention_heads = 4,
                        .intermediate_size = 256,
                        .image_size = 56,
                        .patch_size = 14,
                        .num_channels = 3,
                        .layer_norm_eps = 1e-6,
                        .layerscale_value = 1,
                        .initializer_range = 0.02,
                        .use_mask_token = true};
  description.decoder = {.model_type = "llama",
                         .vocab_size = 1000,
                         .hidden_size = 96,
                         .intermediate_size = 256,
                         .num_hidden_layers = 6,
                         .num_attention_heads = 6,
                         .num_key_value_heads = 2,
                         .head_dim = 16,
                         .max_position_embeddings = 512,
                         .rope_theta = 10000,
                         .rms_norm_eps = 1e-5,
                         .initializer_range = 0.02,
                         .tie_word_embeddings = true,
                         .eos_token_id = {2}};
  return description;
}

plan::Plan plan() {
  plan::Plan plan;
  plan.precision = plan::Precision::fp32;
  plan.model.image_size = 56;
  plan::Stage& stage = plan.stages.emplace_back();
  stage.name = "align";
  stage.data.sources.emplace_back().shards = {"a.tar"};
  stage.data.max_frames = 4;
  stage.data.max_text_tokens = 28;
  stage.objective = {objective::NextToken{}};
  plan::AdamW adamw;
  adamw.lr = {{"connector", 1e-3}, {"default", 1e-5}};
  stage.optimizer = adamw;
  stage.packing.frames = 32;
  stage.packing.tokens = 512;
  return plan;
}

StageBudget budget_of(const plan::Plan& plan, Device device = Device::cpu) {
  return stage_budget(plan, plan.stages[0], model(), device);
}

int64_t amount(const StageBudget& budget, Item item) {
  return budget.step.amounts[static_cast<size_t>(item)];
}

TEST(StageBudget, ItemsAddUpToTheSum) {
  const StageBudget budget = budget_of(plan());
  int64_t sum = 0;
  for (const int64_t one : budget.step.amounts) sum += one;
  EXPECT_EQ(sum, budget.step.peak);
  EXPECT_GT(amount(budget, Item::vision), 0);
  EXPECT_GT(amount(budget, Item::decoder), 0);
  EXPECT_EQ(budget.step.peak, budget.without_recompute);
}

TEST(StageBudget, LargerPacksGrowActivationsOnly) {
  plan::Plan large = plan();
  large.stages[0].packing.frames = 64;
  large.stages[0].packing.tokens = 1024;
  const StageBudget one = budget_of(plan()), two = budget_of(large);
  EXPECT_EQ(amount(one, Item::weights), amount(two, Item::weights));
  EXPECT_EQ(amount(one, Item::moments), amount(two, Item::moments));
  EXPECT_EQ(2 * amount(one, Item::vision), amount(two, Item::vision));
}

TEST(StageBudget, FrozenPartsHaveNoGradientsMomentsOrActivations) {
  plan::Plan frozen = plan();
  frozen.stages[0].freeze = {"vision"};
  const StageBudget all = budget_of(plan()), some = budget_of(frozen);
  EXPECT_EQ(amount(all, Item::weights), amount(some, Item::weights));
  EXPECT_LT(amount(some, Item::gradients), amount(all, Item::gradients));
  EXPECT_EQ(amount(some, Item::moments), 2 * amount(some, Item::gradients));
  EXPECT_LT(amount(some, Item::vision), amount(all, Item::vision) / 2);
}

TEST(StageBudget, Bfloat16HasMastersAndHalfTheActivations) {
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

TEST(StageBudget, GpuHoldsTheNextPacksFrames) {
  plan::Plan apart = plan();
  apart.speed.overlap_copies = false;
  const int64_t frames = 32 * 3 * 56 * 56 * 4;
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

TEST(StageBudget, MuonHasOneMomentMore) {
  const plan::Plan other = muon_plan();
  EXPECT_EQ(2 * amount(budget_of(other), Item::moments), 3 * amount(budget_of(plan()), Item::moments))
      << "momentum for the matrices, two moments for the others, each over the whole arena";
}

TEST(StageBudget, MuonHasWorkspaceForMatrices) {
  const auto room = [](Device device, plan::Precision precision) {
    plan::Plan muon = muon_plan(), adamw = plan();
    muon.precision = adamw.precision = precision;
    return amount(budget_of(muon, device), Item::workspace) - amount(budget_of(adamw, device), Item::workspace);
  };
  const int64_t gate = 2 * 4 * 96 * (96 + 256), products = 4 << 20; // each of 6 layers has a gate and an up
  EXPECT_EQ(room(Device::cpu, plan::Precision::fp32), gate);
  EXPECT_EQ(room(Device::cuda, plan::Precision::fp32), 2 * 6 * gate + products);
  EXPECT_EQ(room(Device::cuda, plan::Precision::bf16), 6 * gate + products);
}

TEST(StageBudget, RecomputedLayersNeedLess) {
  plan::Plan again = plan();
  plan::Recompute all;
  all.every = 1;
  again.stages[0].activation_checkpointing = {all, all};
  const StageBudget kept = budget_of(plan()), computed = budget_of(again);
  EXPECT_LT(computed.step.peak, kept.step.peak);
  EXPECT_EQ(computed.step.peak, kept.with_all);
  EXPECT_EQ(computed.without_recompute, kept.step.peak);
}

TEST(StageBudget, PreferencesHaveAFrozenReference) {
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

TEST(StageBudget, QuantizedWeightsKeepRealOnes) {
  plan::Plan aware = plan();
  aware.quantization = plan::Quantization{"int8", {"vision.*", "connector.*"}};
  aware.stages[0].quantization_aware = true;
  const StageBudget budget = budget_of(aware);
  const int64_t of_layer = 160 * 96 + 96 * 96 + 2 * 256 * 96 + 96 * 256; // q, k, v; out; gate, up; down
  EXPECT_EQ(amount(budget, Item::real_weights), 4 * 6 * of_layer) << "the matrices of the decoder's layers";
  EXPECT_EQ(amount(budget_of(plan()), Item::real_weights), 0);
}

TEST(StageBudget, SmallBatchIsLimitedBySamplesFramesOrTokens) {
  struct Small {
    plan::Batch batch;
    bool open; // packing.frames
    int64_t frames, rows;
  };
  for (const Small& small :
       {Small{{.samples = 2}, false, 8, 64}, Small{{.tokens = 96}, false, 32, 96}, Small{{.tokens = 96}, true, 12, 96},
        Small{{.frames = 16}, false, 16, 512}, Small{{.samples = 2, .tokens = 96}, false, 8, 64}}) {
    plan::Plan plan = budget::plan();
    plan.stages[0].batch = small.batch;
    if (small.open) plan.stages[0].packing.frames.reset();
    const StageBudget budget = budget_of(plan);
    EXPECT_EQ(budget.pack.frames, small.frames);
    EXPECT_EQ(budget.pack.rows, small.rows);
  }
}

TEST(StageBudget, StatesAssumptionsAboutTheData) {
  plan::Plan open = plan();
  open.stages[0].packing.frames.reset();
  const StageBudget budget = budget_of(open);
  ASSERT_EQ(budget.assumptions.size(), 1u);
  EXPECT_EQ(budget.assumptions[0], "packing.frames is open: training takes it from the data; here 64, for samples of 4 "
                                   "frames and 28 tokens");
  EXPECT_TRUE(budget_of(plan()).assumptions.empty());
}

TEST(StageBudget, RefusesMissingTeacher) {
  plan::Plan taught = plan();
  objective::Kl kl;
  kl.folder = "/nowhere/teacher";
  taught.stages[0].objective.push_back(kl);
  EXPECT_ANY_THROW(budget_of(taught));
}

TEST(GroupLines, CountTensorsAndShowLearningRates) {
  plan::Plan grouped = plan();
  grouped.model.groups = {{"queries", {"connector.q_*"}}};
  grouped.stages[0].freeze = {"decoder"};
  const auto lines = group_lines(grouped.model, grouped.stages[0], model());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].name, "connector");
  EXPECT_EQ(lines[0].lr, 1e-3);
  EXPECT_EQ(lines[2].name, "decoder");
  EXPECT_FALSE(lines[2].trained);
  EXPECT_FALSE(lines[2].lr);
  EXPECT_EQ(lines[3].name, "queries");
  EXPECT_EQ(lines[3].tensors, 2);
  EXPECT_EQ(lines[3].parameters, 2 * 384);
  const std::string text = groups_text({{"align", lines}});
  EXPECT_THAT(text, HasSubstr("queries"));
  EXPECT_THAT(text, HasSubstr("frozen"));
}

TEST(GroupLines, RefusePatternsThatMatchNothingOrTwice) {
  plan::Plan grouped = plan();
  grouped.model.groups = {{"nothing", {"connector.nobody"}}};
  EXPECT_ANY_THROW(group_lines(grouped.model, grouped.stages[0], model()));
  grouped.model.groups = {{"one", {"connector.q_*"}}, {"two", {"*.q_static"}}};
  EXPECT_ANY_THROW(group_lines(grouped.model, grouped.stages[0], model()));
}

} // namespace
} // namespace fvlm::budget
