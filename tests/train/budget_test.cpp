// What a dry run of a step says of its memory, beside what the tensors of such a step hold.
#include "measured_step.h"
#include "model/connector/foveated/settings.h"
#include "objective/dpo/settings.h"
#include "objective/kl/settings.h"
#include "objective/next_token/settings.h"
#include "small_run.h"
#include "train/checkpoint.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

namespace fvlm::train {
namespace {

std::vector<std::string> larger() {
  auto sets = measurable_sizes;
  sets.push_back("model.connector.query_dim=24");
  return sets;
}

class Budget : public SmallRun {
 protected:
  enum class Kernels { reference, plugins };

  StepSizes step(const plan::Plan& plan, const std::string& name, const PackSize& size, Kernels kernels,
                 int64_t ranks = 1) {
    const plan::Stage& stage =
        *std::find_if(plan.stages.begin(), plan.stages.end(), [&](const plan::Stage& one) { return one.name == name; });
    RegistryOptions options;
    if (kernels == Kernels::plugins) {
      options.bundled = FVLM_PLUGINS;
      options.load.bundled = read_bundled_hashes(options.bundled.parent_path() / "bundled", options.load.trust);
    }
    Registry registry(options);
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    return measure_step(plan, stage, size, registry, ranks);
  }

  using Change = std::function<void(plan::Plan&, plan::Stage&)>;
  void expect_true(const std::string& stage, const Change& change = {}, Kernels kernels = Kernels::reference,
                   const PackSize& size = {24, 768}) {
    plan::Plan plan = resolved(larger()).plan;
    for (plan::Stage& each : plan.stages)
      if (each.name == stage && change) change(plan, each);
    const StepSizes sizes = step(plan, stage, size, kernels);
    RecordProperty("estimated", sizes.estimated);
    RecordProperty("measured", sizes.measured);
    fmt::print("{}, {}: {} bytes estimated, {} measured, ratio {:.3f}\n", stage,
               kernels == Kernels::plugins ? "plugins" : "reference", sizes.estimated, sizes.measured, sizes.ratio());
    EXPECT_NEAR(sizes.ratio(), 1, 0.05) << sizes.estimated << " estimated, " << sizes.measured << " measured";
  }

  // A model directory, to be a teacher.
  std::string made_teacher() {
    const c10::InferenceMode without_autograd;
    const plan::Plan plan = resolved(larger()).plan;
    const auto description = describe(plan);
    const auto begin = [&](const model::ArenaOptions& options) { return make_model(description, 1, options); };
    const auto made = make_stage_model(plan, plan.stages[0], registry_, at::kCPU, begin, begin);
    write_checkpoint(folder("teacher"), snapshot(description, *made.model, *made.optimization, {}));
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

TEST_F(Budget, ShardedGradientsMatchMeasured) {
  const plan::Plan plan = resolved(larger()).plan;
  for (const char* stage : {"align", "instruct", "prefer"}) {
    const StepSizes one = step(plan, stage, {4, 64}, Kernels::reference),
                    eighth = step(plan, stage, {4, 64}, Kernels::reference, 8);
    fmt::print("{}: {} bytes measured, {} of one of 8 ranks, {} estimated\n", stage, one.measured, eighth.measured,
               eighth.estimated);
    EXPECT_NEAR(eighth.ratio(), 1, 0.05) << eighth.estimated << " estimated, " << eighth.measured << " measured";
    EXPECT_LT(eighth.measured, one.measured);
  }
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

// As many frames of the encoder as are shared at all, three of four: what a step takes then is less than planned.
TEST_F(Budget, RepeatedFramesTakeLessThanPlanned) {
  const plan::Plan plan = resolved(larger()).plan;
  const PackSize size{24, 768};
  const auto repeat = [](SyntheticPack& pack) {
    int64_t saved = 0;
    for (size_t i = 0; saved < 6; ++i) {
      auto repeated = std::make_shared<Sample>(*pack.samples.at(i));
      saved += repeated->frames - 1;
      repeated->copies = repeated->frames;
      pack.samples[i] = pack.host.samples[i].sample = repeated;
    }
    int64_t end = 0;
    for (PackedSample& packed : pack.host.samples)
      packed.first_frame = std::exchange(end, end + packed.sample->distinct_frames());
    pack.host.frame_count = end;
    EXPECT_EQ(end, 18);
  };
  for (const plan::Stage& stage : plan.stages)
    for (const auto& recompute : {plan::ActivationCheckpointing{}, {every(1), every(1)}}) {
      plan::Stage own = stage;
      own.activation_checkpointing = recompute;
      const StepSizes sizes = measure_step(plan, own, size, registry_, 1, repeat);
      fmt::print("{}: {} bytes planned, {} measured\n", stage.name, sizes.estimated, sizes.measured);
      EXPECT_LE(sizes.measured, sizes.estimated) << stage.name;
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

TEST_F(Budget, Fp8MatchesMeasured) {
  const auto fp8 = [](plan::Plan& plan, plan::Stage&) { plan.precision = plan::Precision::fp8; };
  for (const Kernels kernels : {Kernels::reference, Kernels::plugins}) expect_true("align", fp8, kernels);
}

TEST_F(Budget, QuickstartMatchesMeasured) {
  recipe::Request request;
  request.file = FVLM_QUICKSTART;
  request.args = {{"data", data().string()}};
  const plan::Plan plan = recipe::resolve(request).plan;
  for (const char* stage : {"align", "prefer"}) {
    const StepSizes sizes = step(plan, stage, {128, 2048}, Kernels::plugins);
    fmt::print("quickstart, {}: {} bytes estimated, {} measured, ratio {:.3f}\n", stage, sizes.estimated,
               sizes.measured, sizes.ratio());
    EXPECT_NEAR(sizes.ratio(), 1, 0.05) << stage;
  }
}

} // namespace
} // namespace fvlm::train
