// The memory that `plan` predicts for a step, compared with that of the step's tensors.
#include "budget/stage_budget.h"
#include "feed/model_samples.h"
#include "model/connector/foveated/settings.h"
#include "objective/dpo/settings.h"
#include "objective/kl/settings.h"
#include "objective/labels.h"
#include "objective/next_token/settings.h"
#include "small_run.h"
#include "train/checkpoint.h"
#include "train/initial_model.h"
#include "train/quantized_weights.h"
#include "train/stage_model.h"
#include "train/synthetic_pack.h"
#include "train/tensor_memory.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

namespace fvlm::train {
namespace {

// No two sizes alike, and activations larger than the weights.
const std::vector<std::string> larger = {
    "model.image_size=32",    "model.vision.width=48",       "model.vision.layers=3", "model.vision.heads=4",
    "model.decoder.width=40", "model.decoder.layers=4",      "model.decoder.heads=4", "model.decoder.kv_heads=2",
    "model.decoder.mlp=112",  "model.connector.query_dim=24"};

class Budget : public SmallRun {
 protected:
  struct Sizes {
    int64_t estimated = 0, measured = 0;
    double ratio() const { return static_cast<double>(estimated) / static_cast<double>(measured); }
  };

  enum class Kernels { reference, plugins };

  // Of one step on a full pack; the second, when all workspaces have their size.
  Sizes step(const plan::Plan& plan, const std::string& name, const PackSize& size, Kernels kernels) {
    const c10::InferenceMode without_autograd;
    const plan::Stage& stage =
        *std::find_if(plan.stages.begin(), plan.stages.end(), [&](const plan::Stage& one) { return one.name == name; });
    RegistryOptions options;
    if (kernels == Kernels::plugins) {
      options.bundled = FVLM_PLUGINS;
      options.load.bundled = read_bundled_hashes(options.bundled.parent_path() / "bundled", options.load.trust);
    }
    Registry registry(options);
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    const auto description = describe(plan);
    TensorMemory memory;
    const auto operations = make_operations(plan, registry, at::kCPU);
    const MakeModel begin = [&](const model::ArenaOptions& options) { return make_model(description, 1, options); };
    auto made = make_stage_model(plan, stage, registry, at::kCPU, begin, begin);
    const int64_t image = plan.model.image_size, vocabulary = description.decoder.vocab_size;
    const SyntheticPack pack = make_synthetic_pack(stage, size, 0, image, vocabulary);
    const auto used = model::Capacity::of(feed::model_samples(
        pack.host, image, [&](const SampleText& text) { return objective::labels(text, stage.objective); }));
    EXPECT_EQ(used.frames, size.frames);
    EXPECT_EQ(used.rows, size.rows);
    const Order order = Order::once({static_cast<int64_t>(pack.samples.size())});
    if (stage.uses(plan::ObjectiveTerm::Reference::cached)) {
      made.frozen.cache = std::make_shared<ReferenceLogProbCache>(order, folder("reference.bin"));
      for (const PackedSample& pair : pack.host.samples) made.frozen.cache->insert(pair, {-3, -4});
    }
    model::Capacity most = used;
    if (!plan.speed.shared_preference_frames) most.frames *= stage.texts_per_sample();
    GradientComputer gradient_computer(plan, stage, *made.vlm, *operations, most, made.frozen);
    std::unique_ptr<QuantizedWeights> quantized;
    if (stage.quantization_aware) {
      quantized = std::make_unique<QuantizedWeights>(plan, registry, made.vlm->parameters(), at::kCPU);
      quantized->quantize();
    }
    const StepCounts counts = counts_of(stage, pack.samples);
    PartTimes times;
    for (int i = 0; i < 2; ++i) {
      memory.reset_peak();
      gradient_computer.begin_step();
      gradient_computer.forward_backward(pack.host, counts, 1, times);
      if (quantized) quantized->pass_gradients();
      made.optimization->step(made.optimization->base_rates(), 1, 1, gradient_computer.sums());
      EXPECT_TRUE(std::isfinite(made.optimization->gradient_norm()));
    }
    auto setting = budget::setting_of(plan, stage, description, budget::Device::cpu);
    if (kernels == Kernels::reference) // which "auto" comes to where there is nothing else
      setting.machine.plain_attention = setting.machine.plain_loss = setting.machine.plain_kernels =
          setting.machine.plain_optimizer = true;
    budget::PackShape shape{used.frames,       used.rows,   stage.texts_per_sample() * used.frames,
                            used.sequences,    used.labels, used.longest_sequence,
                            used.longest_video};
    return {budget::step_need(setting, shape).peak, memory.peak()};
  }

  using Change = std::function<void(plan::Plan&, plan::Stage&)>;
  void expect_true(const std::string& stage, const Change& change = {}, Kernels kernels = Kernels::reference,
                   const PackSize& size = {24, 768}) {
    plan::Plan plan = resolved(larger).plan;
    for (plan::Stage& each : plan.stages)
      if (each.name == stage && change) change(plan, each);
    const Sizes sizes = step(plan, stage, size, kernels);
    RecordProperty("estimated", sizes.estimated);
    RecordProperty("measured", sizes.measured);
    fmt::print("{}, {}: {} bytes estimated, {} measured, ratio {:.3f}\n", stage,
               kernels == Kernels::plugins ? "plugins" : "reference", sizes.estimated, sizes.measured, sizes.ratio());
    EXPECT_NEAR(sizes.ratio(), 1, 0.1) << sizes.estimated << " estimated, " << sizes.measured << " measured";
  }

  // A model directory, to be a teacher.
  std::string made_teacher() {
    const c10::InferenceMode without_autograd;
    const plan::Plan plan = resolved(larger).plan;
    const auto description = describe(plan);
    const auto begin = [&](const model::ArenaOptions& options) { return make_model(description, 1, options); };
    const auto made = make_stage_model(plan, plan.stages[0], registry_, at::kCPU, begin, begin);
    write_checkpoint(folder("teacher"), snapshot(description, *made.vlm, *made.optimization, {}));
    return folder("teacher").string();
  }
};

plan::Recompute every(int64_t nth) {
  plan::Recompute recompute;
  recompute.every = nth;
  return recompute;
}

TEST_F(Budget, NextTokenMatchesMeasured) {
  expect_true("align");
}

TEST_F(Budget, TextAloneMatchesMeasured) {
  expect_true("align", {}, Kernels::reference, {0, 768});
}

TEST_F(Budget, BothPassesMatchMeasured) {
  expect_true("instruct");
}

TEST_F(Budget, PreferencesMatchMeasured) {
  expect_true("prefer");
}

TEST_F(Budget, CachedReferenceMatchesMeasured) {
  expect_true("prefer",
              [](plan::Plan&, plan::Stage& stage) { stage.objective[0].as<objective::Dpo>()->cache_reference = true; });
}

TEST_F(Budget, PreferencesBesideNextTokenMatchMeasured) {
  expect_true("prefer", [](plan::Plan&, plan::Stage& stage) { stage.objective.push_back(objective::NextToken{}); });
}

TEST_F(Budget, TeacherMatchesMeasured) {
  const std::string teacher = made_teacher();
  expect_true("align", [&](plan::Plan&, plan::Stage& stage) {
    objective::Kl kl;
    kl.folder = teacher;
    stage.objective.push_back(kl);
  });
}

TEST_F(Budget, WithoutTowerOptimizationsMatchesMeasured) {
  const plan::Speed none = resolved({"speed=false"}).plan.speed;
  for (const char* stage : {"align", "instruct", "prefer"}) {
    expect_true(stage, [&](plan::Plan& plan, plan::Stage&) { plan.speed = none; });
    for (const auto which : {&plan::Speed::skip_last_patches, &plan::Speed::shared_preference_frames,
                             &plan::Speed::joint_weight_gradients, &plan::Speed::fold_layer_scale})
      expect_true(stage, [&](plan::Plan& plan, plan::Stage&) { plan.speed.*which = false; });
  }
}

TEST_F(Budget, RecomputedLayersMatchMeasured) {
  expect_true("align", [](plan::Plan&, plan::Stage& stage) { stage.activation_checkpointing = {every(1), every(1)}; });
}

TEST_F(Budget, LightCheckpointingMatchesMeasured) {
  plan::Recompute light;
  light.light = true;
  const auto both = [&](plan::Plan&, plan::Stage& stage) { stage.activation_checkpointing = {light, light}; };
  for (const char* stage : {"align", "instruct", "prefer"}) expect_true(stage, both);
  expect_true("align", both, Kernels::plugins);
}

TEST_F(Budget, SomeRecomputedLayersMatchMeasured) {
  expect_true("instruct", [](plan::Plan&, plan::Stage& stage) {
    stage.activation_checkpointing = {every(2), every(3)};
  });
}

TEST_F(Budget, FrozenVisionTowerMatchesMeasured) {
  expect_true("align", [](plan::Plan&, plan::Stage& stage) { stage.freeze = {"vision"}; });
}

TEST_F(Budget, ConnectorAloneMatchesMeasured) {
  expect_true("align", [](plan::Plan&, plan::Stage& stage) { stage.freeze = {"vision", "decoder"}; });
}

TEST_F(Budget, ShallowQueriesOnOtherFrameSizeMatchMeasured) {
  expect_true("align", [](plan::Plan& plan, plan::Stage&) {
    plan.model.connector.as<connector::Foveated>()->attend = connector::Attend::shallow;
    plan.model.image_size = 40;
  });
}

TEST_F(Budget, MuonMatchesMeasured) {
  expect_true("align", [](plan::Plan&, plan::Stage& stage) {
    plan::Muon muon;
    static_cast<plan::OptimizerCommon&>(muon) = plan::common(stage.optimizer);
    muon.others.lr = muon.lr;
    stage.optimizer = muon;
  });
}

TEST_F(Budget, QuantizedWeightsMatchMeasured) {
  expect_true("align", [](plan::Plan& plan, plan::Stage& stage) {
    plan.quantization = plan::Quantization{};
    stage.quantization_aware = true;
  });
}

TEST_F(Budget, PluginsMatchMeasured) {
  for (const char* stage : {"align", "instruct", "prefer"}) expect_true(stage, {}, Kernels::plugins);
}

TEST_F(Budget, Bfloat16MatchesMeasured) {
  const auto narrow = [](plan::Plan& plan, plan::Stage& stage) {
    plan.precision = plan::Precision::bf16;
    plan::common(stage.optimizer).moments = plan::Moments::bf16;
  };
  const auto narrowest = [&](plan::Plan& plan, plan::Stage& stage) {
    narrow(plan, stage);
    plan.gradients = plan::Gradients::bf16;
  };
  for (const char* stage : {"align", "prefer"}) expect_true(stage, narrow, Kernels::plugins);
  expect_true("align", narrowest, Kernels::plugins);
}

TEST_F(Budget, QuickstartMatchesMeasured) {
  recipe::Request request;
  request.file = FVLM_QUICKSTART;
  request.args = {{"data", data().string()}};
  const plan::Plan plan = recipe::resolve(request).plan;
  for (const char* stage : {"align", "prefer"}) {
    const Sizes sizes = step(plan, stage, {128, 2048}, Kernels::plugins);
    fmt::print("quickstart, {}: {} bytes estimated, {} measured, ratio {:.3f}\n", stage, sizes.estimated,
               sizes.measured, sizes.ratio());
    EXPECT_NEAR(sizes.ratio(), 1, 0.1) << stage;
  }
}

} // namespace
} // namespace fvlm::train
