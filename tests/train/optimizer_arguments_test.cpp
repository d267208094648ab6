// What a plugin's optimizer is given, as fvlm/optimizer.h promises: hyperparameters by group, moments, the step count.
#include "base/error.h"
#include "small_run.h"
#include "train/initial_model.h"

#include <fvlm/fvlm.hpp>

#include <ATen/ops/full.h>

#include <gmock/gmock.h>
#include <limits>

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct GivenStep {
  int64_t number;
  bool skipped;
  std::vector<std::vector<float>> hyper; // by group
  fvlm_dtype state;
  std::vector<int64_t> segments; // of each group
};
std::vector<GivenStep> given;

// An optimizer that changes nothing and records its arguments.
class Notes : public sdk::Optimizer {
 public:
  static sdk::Support supports(const Query&) { return sdk::accept(50, "notes its arguments"); }
  static sdk::States states(const Query& query) { return {{"m", query.state_dtype}}; }
  void step(const fvlm_call&, const Query& query, const Step& arguments) {
    const sdk::View<const float, 2> hyper(arguments.hyper, "hyper");
    GivenStep step{*sdk::View<const std::int64_t, 1>(arguments.step, "step").data(),
                   *sdk::View<const std::int32_t, 1>(arguments.skip, "skip").data() != 0,
                   {},
                   arguments.state[0]->dtype,
                   std::vector<int64_t>(static_cast<size_t>(query.group_count))};
    for (int64_t i = 0; i < query.segment_count; ++i) ++step.segments.at(static_cast<size_t>(query.segments[i].group));
    for (int64_t group = 0; group < hyper.size(0); ++group)
      step.hyper.emplace_back(hyper.row(group), hyper.row(group) + hyper.size(1));
    given.push_back(step);
  }
};

class Plain : public Notes {
 public:
  static constexpr const char* algorithm = "plain";
  static constexpr fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 1}, {"keep", 0.5, 0, 1}};
};

class Decaying : public Notes {
 public:
  static constexpr const char* algorithm = "decaying";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1}, {"weight_decay", 0.25, 0, 1}, {"keep", 0.5, 0, 1}};
};

class OwnMuon : public Notes {
 public:
  static constexpr const char* algorithm = "muon";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1}, {"momentum", 0.5, 0, 1}, {"nesterov", 1, 0, 1}, {"weight_decay", 0, 0, 1}, {"eps", 1, 0, 1}};
};

class OwnAdamW : public Notes {
 public:
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1}, {"beta1", 0.5, 0, 1}, {"beta2", 0.5, 0, 1}, {"eps", 1, 0, 1}, {"weight_decay", 0, 0, 1}};
};

const fvlm_plugin* enter(const fvlm_host* host) {
  return sdk::entry<Plain, Decaying, OwnMuon, OwnAdamW>(host, "optimizer-notes", "1.0");
}

class OptimizerArguments : public SmallRun {
 protected:
  OptimizerArguments() {
    registry_.add_static(builtin_manifest("optimizer-notes", "1.0", "for a test",
                                          {FVLM_OPTIMIZER_KIND("plain"), FVLM_OPTIMIZER_KIND("decaying"),
                                           FVLM_OPTIMIZER_KIND("muon"), FVLM_OPTIMIZER_KIND("adamw")},
                                          {"cpu"}),
                         [] { return &enter; });
    given.clear();
  }

  void set_optimizer(const std::string& optimizer) const {
    change_recipe("described.optimizer or fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }", optimizer);
  }

  // A stage of the recipe that begins, and so many steps of it; `sums` are what the caller wants to be finite.
  std::vector<GivenStep> steps(const std::vector<double>& sums) {
    given.clear();
    const auto recipe = resolved();
    const plan::Stage& stage = recipe.plan.stages[0];
    const auto model = make_model(describe(recipe.plan), 42, {});
    Optimization optimization(recipe.plan, stage, registry_, model->parameters(),
                              groups_of(recipe.plan.model, stage, model->parameters()));
    for (size_t i = 0; i < sums.size(); ++i) {
      optimization.set_momentum(static_cast<int64_t>(i));
      optimization.step(optimization.base_rates(), 1, 0, at::full({1}, sums[i], at::kDouble));
    }
    return given;
  }
};

TEST_F(OptimizerArguments, StepCountsAppliedStepsFrom1InEachStage) {
  set_optimizer("fvlm.optimizer \"plain\" { lr = 0.125 }");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<int64_t> numbers;
  std::vector<bool> skipped;
  for (const GivenStep& step : steps({0, nan, nan, 0, 0})) {
    numbers.push_back(step.number);
    skipped.push_back(step.skipped);
  }
  EXPECT_THAT(numbers, ElementsAre(1, 2, 2, 2, 3)) << "a skipped step does not count";
  EXPECT_THAT(skipped, ElementsAre(false, true, true, false, false));
  EXPECT_EQ(steps({0}).at(0).number, 1) << "the next stage starts from 1";
}

TEST_F(OptimizerArguments, HyperparametersAreTheRecipesByGroup) {
  set_optimizer("fvlm.optimizer \"decaying\" { lr = { default = 0.5, vision = 0.125 }, moments = \"bf16\", "
                "weight_decay = { vision = 0.75 }, options = { keep = 0.25 } }");
  const GivenStep step = steps({0}).at(0);
  EXPECT_THAT(step.hyper,
              testing::UnorderedElementsAre(ElementsAre(0.5F, 0.25F, 0.25F), ElementsAre(0.5F, 0.25F, 0.25F),
                                            ElementsAre(0.125F, 0.75F, 0.25F)))
      << "lr, weight_decay and keep of three groups; a group without a weight_decay has the table's default";
  EXPECT_TRUE(step.state == sdk::bfloat16);
}

TEST_F(OptimizerArguments, AGroupOfAdamWHasItsOwnBetasAndEps) {
  set_optimizer("fvlm.adamw { lr = 0.5, weight_decay = 0.125, betas = { 0.25, 0.5 }, eps = 0.75, groups = { "
                "connector = { betas = { 0.5, 0.75 } }, decoder = { eps = 0.25 } } }");
  EXPECT_THAT(steps({0}).at(0).hyper, ElementsAre(ElementsAre(0.5F, 0.5F, 0.75F, 0.75F, 0.125F), // connector
                                                  ElementsAre(0.5F, 0.25F, 0.5F, 0.75F, 0.125F), // vision
                                                  ElementsAre(0.5F, 0.25F, 0.5F, 0.25F, 0.125F)));
}

TEST_F(OptimizerArguments, MuonTakesTheMatricesOfItsGroupsAndItsMomentumRises) {
  set_optimizer(
      "fvlm.muon { lr = 0.25, groups = \"decoder\", momentum = 0.75, momentum_warmup = { from = 0.25, steps = 2 }, "
      "weight_decay = { connector = 0.5, default = 0 }, eps = 0.5, others = { lr = { decoder = 0.125, default "
      "= 0.0625 }, betas = { 0.25, 0.5 }, eps = 0.25, groups = { connector = { betas = { 0.5, 0.75 }, eps = "
      "0.125 } } } }");
  const auto all = steps({0, 0, 0, 0}); // Muon, then AdamW, in each step
  ASSERT_EQ(all.size(), 8U);
  const std::array momenta{0.25F, 0.5F, 0.75F, 0.75F};
  for (size_t i = 0; i < momenta.size(); ++i) {
    const GivenStep &muon = all[2 * i], &adamw = all[2 * i + 1];
    EXPECT_THAT(muon.hyper.at(2), ElementsAre(0.25F, momenta[i], 1.0F, 0.0F, 0.5F)) << "step " << i;
    EXPECT_THAT(muon.segments, ElementsAre(0, 0, 14)) << "q, k, v, o, gate, up and down of two layers, each by itself";
    EXPECT_THAT(adamw.hyper, ElementsAre(ElementsAre(0.0625F, 0.5F, 0.75F, 0.125F, 0.5F),
                                         ElementsAre(0.0625F, 0.25F, 0.5F, 0.25F, 0.0F),
                                         ElementsAre(0.125F, 0.25F, 0.5F, 0.25F, 0.0F)));
    EXPECT_EQ(adamw.segments.at(2), 6) << "the embedding, two norms of each layer and the last norm";
  }
}

TEST_F(OptimizerArguments, WithoutWeightDecayTheAlgorithmHasItsDefault) {
  set_optimizer("fvlm.optimizer \"decaying\" { lr = 0.5 }");
  const GivenStep step = steps({0}).at(0);
  EXPECT_THAT(step.hyper, testing::Each(ElementsAre(0.5F, 0.25F, 0.5F)));
  EXPECT_TRUE(step.state == sdk::float32);
}

TEST_F(OptimizerArguments, WeightDecayOfAnAlgorithmWithoutItIsRefused) {
  set_optimizer("fvlm.optimizer \"plain\" { lr = 0.5, weight_decay = 0.1 }");
  try {
    steps({0});
    ADD_FAILURE() << "the recipe's weight_decay is dropped in silence";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("the optimizer plain has no hyperparameter 'weight_decay'"),
                                    HasSubstr("it has lr or keep")));
  }
}

TEST_F(OptimizerArguments, ARunResumesAnAlgorithmWithoutWeightDecay) {
  set_optimizer("fvlm.optimizer \"plain\" { lr = 0.5 }");
  TrainRequest request;
  request.stage = "align", request.max_steps = 4;
  EXPECT_EQ(run("short", {}, request).steps, 4);
  given.clear();
  request.max_steps = -1;
  EXPECT_EQ(run("short", {}, request).steps, 6);
  EXPECT_EQ(given.at(0).number, 5) << "the count is that of the checkpoint";
}

} // namespace
} // namespace fvlm::train
