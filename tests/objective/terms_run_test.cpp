// Terms of an objective in whole runs: a teacher with a prompt of its own, the manifold term, and weights that change.
#include "base/error.h"
#include "model/weights/safetensors.h"
#include "train/measured_step.h"
#include "train/small_run.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::AllOf, testing::HasSubstr;

class TermsRun : public SmallRun {
 protected:
  TermsRun() {
    change_recipe(
        "data = mix { { data .. \"/questions/*.tar\" } }",
        "data = mix { { data .. \"/questions/*.tar\" }, teacher_prompt = \"{user} It is {assistant}, a {source}.\" }");
    change_recipe(
        "{ fvlm.next_token { on = \"answer\" }, fvlm.next_token { on = \"all\", pass = \"coarse\", weight = 0.5 } }",
        objective_);
    change_recipe("samples = 64,", "samples = 64, freeze = { \"decoder\" },");
  }

  std::vector<nlohmann::json> steps(const std::string& name) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step" && line["stage"] == "instruct") found.push_back(line);
    return found;
  }

  TrainReport instruct(const std::string& name, int64_t max_steps = -1) {
    return run(name, {"log_every=1", "stages.instruct.from=model"}, {.stage = "instruct", .max_steps = max_steps});
  }

  std::string error_of(const std::string& from, const std::string& to) const {
    change_recipe(from, to);
    try {
      resolved();
    } catch (const Error& error) {
      return error.text();
    }
    return "none";
  }

  const std::string objective_ =
      "{ fvlm.next_token { weight = function(progress) return 2 - progress end }, "
      "fvlm.next_token { first = 2, position_weights = { 2, 1 }, weight = 0.5 }, "
      "fvlm.kl { reads = \"teacher_prompt\", first = 3, temperature = 2 }, fvlm.manifold { weight = 0.1 } }";
};

TEST_F(TermsRun, TrainsAndReportsEachTermWithItsWeight) {
  instruct("a");
  const auto lines = steps("a");
  ASSERT_EQ(lines.size(), 8u);
  for (size_t step = 0; step < lines.size(); ++step) {
    const auto& line = lines[step];
    const double weight = 2 - static_cast<double>(step) / 8;
    EXPECT_NEAR(line["weight.next_token"].get<double>(), weight, 1e-9) << line;
    EXPECT_FALSE(line.contains("weight.kl")) << line;
    EXPECT_NEAR(line["loss"].get<double>(),
                weight * line["term.next_token"].get<double>() + 0.5 * line["term.next_token_2"].get<double>() +
                    line["term.kl"].get<double>() + 0.1 * line["term.manifold"].get<double>(),
                1e-5)
        << line;
    EXPECT_GT(line["term.kl"], 0);
    EXPECT_GT(line["term.manifold"], 0);
  }
  const auto at_step = [&](int64_t step) { return content(StageFolder(folder("a") / "instruct").of(step)); };
  EXPECT_EQ(at_step(8).at("decoder/model.safetensors"), at_step(6).at("decoder/model.safetensors"));
  EXPECT_NE(at_step(8).at("connector.safetensors"), at_step(6).at("connector.safetensors"));
}

TEST_F(TermsRun, ResumesToEqualBits) {
  instruct("whole");
  EXPECT_TRUE(instruct("parts", 3).stopped);
  instruct("parts");
  const auto last = [&](const std::string& name) { return content(StageFolder(folder(name) / "instruct").of(8)); };
  EXPECT_EQ(last("parts").at("connector.safetensors"), last("whole").at("connector.safetensors"));
  EXPECT_EQ(steps("parts"), steps("whole"));
}

TEST_F(TermsRun, MemoryIsEstimatedAsItIsMeasured) {
  const auto plan = resolved(measurable_sizes).plan;
  const StepSizes sizes = measure_step(plan, plan.stages[1], {24, 768}, registry_);
  EXPECT_NEAR(sizes.ratio(), 1, 0.05) << sizes.estimated << " bytes estimated, " << sizes.measured << " measured";
}

TEST_F(TermsRun, APromptThatNobodyReadsIsAMistake) {
  EXPECT_THAT(error_of(objective_, "fvlm.next_token {}"), HasSubstr("stages.instruct.data.teacher_prompt"));
}

TEST_F(TermsRun, ATeacherWithoutAPromptIsAMistake) {
  EXPECT_THAT(error_of("teacher_prompt = \"{user} It is {assistant}, a {source}.\"", "max_frames = 2"),
              HasSubstr("stages.instruct.objective[3]"));
}

TEST_F(TermsRun, AModelIsNoTeacherOfItselfWithTheSamePrompt) {
  EXPECT_THAT(error_of("fvlm.kl { reads = \"teacher_prompt\"", "fvlm.kl { reads = \"sample\""),
              HasSubstr("the model would be compared with itself"));
}

TEST_F(TermsRun, AnEvaluationHasNoTeacherPrompt) {
  EXPECT_THAT(error_of("data = mix { { data .. \"/heldout/questions/*.tar\" } }",
                       "data = mix { { data .. \"/heldout/questions/*.tar\" }, teacher_prompt = \"{user}\" }"),
              AllOf(HasSubstr("stages.instruct.evaluation"), HasSubstr("an evaluation has no teacher")));
}

TEST_F(TermsRun, FirstIsAWholeNumberOrMoves) {
  change_recipe("first = 3, temperature", "first = { 1, 3 }, temperature");
  instruct("a");
  const auto lines = steps("a");
  ASSERT_EQ(lines.size(), 8u);
  const std::vector<int64_t> expected{1, 1, 2, 2, 2, 2, 3, 3};
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step]["first.kl"], expected[step]) << step;
    EXPECT_FALSE(lines[step].contains("first.next_token_2")) << "it stays";
  }
  EXPECT_THAT(error_of("first = { 1, 3 }", "first = 1.5"), HasSubstr("1.5 is no number of labels"));
}

TEST_F(TermsRun, ATeacherWithItsOwnPromptSharesTheAnswerAlone) {
  EXPECT_THAT(error_of("fvlm.kl { reads = \"teacher_prompt\"", "fvlm.kl { on = \"all\", reads = \"teacher_prompt\""),
              HasSubstr("shares only the answer"));
}

} // namespace
} // namespace fvlm::train
