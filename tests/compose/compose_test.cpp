// A connector defined by the test trains, resumes, is evaluated, generates and is traced like the engine's own.
#include "../train/measured_step.h"
#include "../train/small_run.h"
#include "base/error.h"
#include "infer/generator.h"
#include "mean_pool.h"
#include "model/loading.h"
#include "model/trace.h"
#include "recipe/freeze.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <gmock/gmock.h>

namespace fvlm::model {
std::unique_ptr<Connector> mean_pool_connector(const plan::ConnectorSettings&, const Parts&, Parameters&);
} // namespace fvlm::model

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What a line in connectors.inc does for a connector of the engine.
const bool registered = [] {
  connector::all_settings().push_back(connector::mean_pool_settings());
  model::register_connector("mean_pool", model::mean_pool_connector);
  return true;
}();

class Compose : public SmallRun {
 protected:
  Compose() {
    change_recipe("connector = { query_dim = 12 }", "connector = fvlm.mean_pool { scale = 0.5 }");
    change_recipe(
        R"({ fvlm.next_token { on = "answer" }, fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } })",
        R"(fvlm.next_token { on = "answer" })");
  }

  fs::path checkpoint(const std::string& run, const char* stage, int64_t step) const {
    return StageFolder(folder(run) / stage).of(step);
  }
};

// Plans and checkpoints of versions with a single connector keep their JSON and their hash.
TEST_F(SmallRun, APlainTableIsTheFoveatedConnectorAndIsWrittenAsOne) {
  const auto plain = resolved(), set = resolved({"model.connector.query_dim=16"});
  change_recipe("connector = { query_dim = 12 }", "connector = fvlm.foveated { query_dim = 12 }");
  const auto named = resolved(), set_too = resolved({"model.connector.query_dim=16"});
  EXPECT_EQ(recipe::plan_json(plain.plan)["model"]["connector"].dump(),
            R"({"query_dim":12,"visual_scale":0.14,"attend":"deep"})");
  EXPECT_EQ(named.hash, plain.hash);
  EXPECT_EQ(set_too.hash, set.hash);
  EXPECT_NE(set.hash, plain.hash);
  EXPECT_EQ(named.plan.stages[0].mode, "coarse_fine");
}

TEST_F(Compose, ResolvesToAPlanThatComesBack) {
  const auto plan = resolved();
  EXPECT_EQ(plan.plan.stages[0].mode, "pooled");
  EXPECT_THAT(plan.plan.stages[1].evaluation.sets[0].modes, testing::ElementsAre("pooled"));
  const auto json = recipe::plan_json(plan.plan);
  EXPECT_EQ(json["model"]["connector"].dump(), R"({"kind":"mean_pool","scale":0.5})");
  const auto changed = resolved({"model.connector.scale=0.25"});
  EXPECT_EQ(changed.plan.model.connector.as<connector::MeanPool>()->scale, 0.25);
  EXPECT_NE(changed.hash, plan.hash);
}

TEST_F(Compose, AModeOrViewOfAnotherConnectorIsAMistake) {
  const auto mistake = [&](const std::vector<std::string>& sets) {
    try {
      (void)resolved(sets);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("none");
  };
  EXPECT_THAT(mistake({"stages.align.mode=refined"}), HasSubstr("fvlm.mean_pool has no training mode 'refined'"));
  EXPECT_THAT(mistake({"stages.instruct.evaluation.sets.questions.modes=coarse_only"}),
              AllOf(HasSubstr("stages.instruct.evaluation.sets.questions.modes"),
                    HasSubstr("fvlm.mean_pool has no mode 'coarse_only'"), HasSubstr("use pooled")));
  change_recipe(R"(fvlm.next_token { on = "all" })", R"(fvlm.next_token { on = "all", pass = "coarse" })");
  EXPECT_THAT(mistake({}), HasSubstr("fvlm.mean_pool has no view 'coarse'"));
}

TEST_F(Compose, TrainsAndResumesToTheSameBits) {
  run("whole");
  run("stopped", {}, {.max_steps = 4});
  run("stopped", {}, {.max_steps = 9});
  run("stopped");
  expect_equal_runs("whole", "stopped");
  std::vector<double> losses;
  for (const auto& line : metrics(folder("whole")))
    if (line["kind"] == "step" && line["stage"] == "align") losses.push_back(line["loss"]);
  ASSERT_GT(losses.size(), 2u);
  EXPECT_LT(losses.back(), losses.front()) << "nothing was learnt";
  const auto last = content(checkpoint("whole", "align", 10)), first = content(checkpoint("whole", "align", 9));
  EXPECT_NE(last.at("connector.safetensors"), first.at("connector.safetensors")) << "the connector does not train";
  EXPECT_THAT(last.at("fvlm.json"), HasSubstr(R"("kind": "mean_pool")"));
}

TEST_F(Compose, IsEvaluated) {
  run("run", {"stages.instruct.evaluation.sets.questions.entropy=true"});
  int evaluations = 0;
  for (const auto& line : metrics(folder("run")))
    if (line["kind"] == "evaluation" && line["set"] == "questions") {
      ++evaluations;
      EXPECT_EQ(line["mode"], "pooled");
      EXPECT_GT(line["loss"].get<double>(), 0);
      EXPECT_FALSE(line.contains("attention_entropy")) << "it attends to nothing";
    }
  EXPECT_EQ(evaluations, 2);
}

TEST_F(Compose, AnswersAsItIsTraced) {
  run("run", {}, {.stage = "align"});
  const fs::path model = checkpoint("run", "align", 10), batch = folder("batch.safetensors"),
                 out = folder("out.safetensors");
  const at::Tensor frames = at::arange(2 * 3 * 16 * 16, at::kFloat).div(700).sub(1).view({2, 3, 16, 16});
  const std::vector<int64_t> prompt{5, 9, 3};
  model::write_tensors(batch, {{"frames", frames},
                               {"frame_counts", at::tensor({int64_t{2}}, at::kLong)},
                               {"input_ids", at::tensor(prompt, at::kLong)},
                               {"text_lengths", at::tensor({int64_t{3}}, at::kLong)},
                               {"loss_mask", at::ones({3}, at::kLong)}});
  model::TraceRequest request;
  request.model = model;
  request.batch = batch;
  request.out = out;
  request.gradients = true;
  (void)model::trace(request, registry_);
  const Safetensors traced = Safetensors::open(out);
  const at::Tensor logits = model::tensor_over(traced.at("logits"));
  EXPECT_EQ(model::tensor_over(traced.at("visual_tokens")).size(0), 2);
  EXPECT_GT(model::tensor_over(traced.at("grad.to_decoder.weight")).abs().max().item<double>(), 0);
  EXPECT_FALSE(traced.find("queries"));

  infer::Generator generator(model, {}, registry_);
  infer::GenerateOptions options;
  options.limit = 1;
  options.ignore_eos = true;
  const auto answer = generator.answer({frames, {{prompt, {}}}}, options);
  EXPECT_EQ(answer.ids.front(), logits[2].argmax().item<int64_t>()) << "generation sees other frames than training";
  request.attention = true;
  EXPECT_THROW((void)model::trace(request, registry_), Error);
}

TEST_F(Compose, ItsMemoryIsEstimatedAsItIsMeasured) {
  const auto plan = resolved(measurable_sizes).plan;
  for (const plan::Stage& stage : plan.stages) {
    const StepSizes sizes = measure_step(plan, stage, {24, 768}, registry_);
    EXPECT_NEAR(sizes.ratio(), 1, 0.05) << stage.name << ": " << sizes.estimated << " bytes estimated, "
                                        << sizes.measured << " measured";
  }
}

} // namespace
} // namespace fvlm::train
