// Self-distillation: a stage whose teacher is what an earlier stage of the same run left.
#include "base/error.h"
#include "budget/described_model.h"
#include "recipe/files.h"
#include "small_run.h"
#include "train/find_batch.h"
#include "train/step_memory.h"

#include <fmt/format.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

class StageTeacher : public SmallRun {
 protected:
  static std::string taught_by(const std::string& teacher) {
    return fmt::format(R"(stages.instruct.objective=[{{"kind":"next_token"}},{{"kind":"kl","teacher":"{}"}}])",
                       teacher);
  }
  const std::vector<std::string> sets_{taught_by("align"), "log_every=1"};
};

TEST_F(StageTeacher, IsPlannedBeforeItIsTrained) {
  const recipe::Resolved planned = resolved(sets_);
  const plan::Stage& stage = planned.plan.stages[1];
  EXPECT_TRUE(recipe::find_missing_files(planned, stage).missing.empty());
  EXPECT_NO_THROW(rehearse(planned, {.folder = folder("a")}, registry_));

  const auto budget = stage_budget(planned.plan, stage, budget::describe(planned.plan), registry_, budget::Device::cpu);
  const auto amount = [&](budget::Item item) { return budget.step.amounts[static_cast<size_t>(item)]; };
  EXPECT_GT(amount(budget::Item::weights), 0);
  EXPECT_EQ(amount(budget::Item::frozen), amount(budget::Item::weights)) << "the same model once more";

  FindBatchRequest request;
  request.memory = int64_t{12} << 20;
  request.precision = 0.25;
  request.replicas = ThreadReplicas::Size{1, 1};
  EXPECT_TRUE(find_batch(planned.plan, stage, registry_, request).best);
  EXPECT_FALSE(fs::exists(folder("a")));
}

TEST_F(StageTeacher, IsTheModelThatTheEarlierStageLeft) {
  EXPECT_EQ(run("a", sets_).steps, 10 + 8 + 6);
  std::vector<double> divergences;
  for (const auto& line : metrics(folder("a")))
    if (line["kind"] == "step" && line["stage"] == "instruct") divergences.push_back(line["term.kl"]);
  ASSERT_EQ(divergences.size(), 8u);
  EXPECT_NEAR(divergences.front(), 0, 1e-6) << "the stage begins with the weights of its teacher";
  EXPECT_GT(divergences.back(), 1e-5) << "which stay as they were";

  const auto weights = [&](const char* name) {
    return read_file(StageFolder(folder(name) / "instruct").of(8) / "connector.safetensors");
  };
  run("named", {taught_by((folder("a") / "align").string()), "log_every=1"}, {.stage = "align"});
  run("named", {taught_by((folder("a") / "align").string()), "log_every=1"}, {.stage = "instruct"});
  EXPECT_TRUE(weights("a") == weights("named")) << "as by its path";

  for (const int64_t steps : {10, 3, 4}) run("parts", sets_, {.max_steps = steps});
  run("parts", sets_);
  expect_equal_runs("a", "parts");
}

TEST_F(StageTeacher, HasToBeTrainedInThisFolder) {
  run("base", {}, {.stage = "align"});
  try {
    run("a", sets_, {.stage = "instruct", .from = folder("base")});
    ADD_FAILURE() << "it was taught by nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(), "the stage 'align', whose model this one needs, is not done");
  }
  EXPECT_FALSE(fs::exists(folder("a")));
}

} // namespace
} // namespace fvlm::train
