// An objective defined by the test and added to the engine's table: recipes can use it, alone or with other terms, and
// it trains, is reported, and resumes.
#include "label_smoothing.h"
#include "model/weights/safetensors.h"
#include "train/measured_step.h"
#include "train/small_run.h"

#include <cmath>
#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::HasSubstr;

const bool added = [] {
  objective::all_settings().push_back(objective::label_smoothing_settings());
  objective::register_loss("label_smoothing", objective::label_smoothing_loss);
  return true;
}();

class AddedObjective : public SmallRun {
 protected:
  AddedObjective() {
    EXPECT_TRUE(added);
    change_recipe("objective = fvlm.next_token { on = \"all\" }",
                  "objective = fvlm.label_smoothing { on = \"all\", epsilon = fvlm.arg(\"epsilon\", 0.1) }");
  }

  std::vector<nlohmann::json> steps(const std::string& name) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") found.push_back(line);
    return found;
  }

  fs::path last(const std::string& name) const {
    const StageFolder checkpoints(folder(name) / "align");
    return checkpoints.of(checkpoints.steps().back());
  }

  TrainReport align(const std::string& name, int64_t max_steps = -1) {
    return run(name, {}, {.stage = "align", .max_steps = max_steps});
  }
};

TEST_F(AddedObjective, TrainsAndReportsItsFigures) {
  align("a");
  const auto lines = steps("a");
  ASSERT_GE(lines.size(), 2u);
  EXPECT_LT(lines.back()["term.label_smoothing"], lines.front()["term.label_smoothing"]);
  EXPECT_GT(lines.front()["cross_entropy"], 0);
  EXPECT_EQ(lines.front()["loss"], lines.front()["term.label_smoothing"]);
}

TEST_F(AddedObjective, WithoutSmoothingIsNextToken) {
  args_["epsilon"] = "0";
  align("none");
  change_recipe("fvlm.label_smoothing { on = \"all\", epsilon = fvlm.arg(\"epsilon\", 0.1) }",
                "fvlm.next_token { on = \"all\" }");
  args_.erase("epsilon");
  align("next_token");
  const auto smoothed = steps("none"), plain = steps("next_token");
  ASSERT_EQ(smoothed.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_NEAR(smoothed[i]["loss"].get<double>(), plain[i]["loss"].get<double>(), 1e-4) << "line " << i;
}

TEST_F(AddedObjective, ResumesToEqualBits) {
  align("whole");
  EXPECT_TRUE(align("parts", 4).stopped);
  align("parts");
  EXPECT_EQ(content(last("parts")).at("decoder/model.safetensors"),
            content(last("whole")).at("decoder/model.safetensors"));
  EXPECT_EQ(steps("parts"), steps("whole"));
}

TEST_F(AddedObjective, SumsWithTermsOfTheEngine) {
  change_recipe("fvlm.label_smoothing { on = \"all\", epsilon = fvlm.arg(\"epsilon\", 0.1) }",
                "{ fvlm.label_smoothing { weight = 0.5 }, fvlm.next_token { on = \"all\", weight = 0.5 } }");
  align("both");
  const auto line = steps("both").front();
  EXPECT_NEAR(line["loss"].get<double>(),
              0.5 * line["term.label_smoothing"].get<double>() + 0.5 * line["term.next_token"].get<double>(), 1e-6);
}

TEST_F(AddedObjective, MistakesInItsSettingsAreReported) {
  args_["epsilon"] = "1.5";
  try {
    resolved();
    FAIL() << "epsilon 1.5";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("stages.align.objective"));
    EXPECT_THAT(error.text(), HasSubstr("epsilon"));
  }
}

TEST_F(AddedObjective, ItsMemoryIsEstimatedAsItIsMeasured) {
  const auto plan = resolved(measurable_sizes).plan;
  const StepSizes sizes = measure_step(plan, plan.stages[0], {24, 768}, registry_);
  EXPECT_NEAR(sizes.ratio(), 1, 0.05) << sizes.estimated << " bytes estimated, " << sizes.measured << " measured";
}

} // namespace
} // namespace fvlm::train
