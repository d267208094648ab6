// packing.tokens = "memory": which pack a limit gives, and that a run keeps it.
#include "base/error.h"
#include "budget/described_model.h"
#include "model/weights/visual_rows.h"
#include "small_run.h"
#include "train/context_parallel.h"
#include "train/memory_packing.h"
#include "train/step_memory.h"
#include "train/tensor_memory.h"

#include <gmock/gmock.h>
#include <numeric>

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MemoryPackingRun : public SmallRun {
 protected:
  static constexpr int64_t mebibyte = 1 << 20;
  // The first stage fills the memory, with packs smaller than its steps of 64 samples.
  static std::vector<std::string> sets() {
    return {"stages.align.packing.tokens=memory", "stages.align.packing.frames=auto",
            "stages.align.packing.segments=auto", "stages.align.batch.samples=64", "stages.align.samples=256"};
  }
  static TrainRequest within(int64_t memory, int64_t max_steps = -1) {
    TrainRequest request;
    request.stage = "align";
    request.memory = memory;
    request.max_steps = max_steps;
    request.replicas = ThreadReplicas::Size{1, 1};
    return request;
  }
  struct Choice {
    budget::ChosenPack pack;
    int64_t estimate_of_next; // of the smallest pack that is as much larger as the search is exact
  };
  Choice choose(int64_t memory, int64_t ranks = 1, int64_t replicas = 1) {
    const plan::Plan plan = resolved(sets()).plan;
    const plan::Stage& stage = plan.stages.front();
    const auto description = budget::describe(plan);
    const DataSizes data = measure_data_sizes(plan, stage, nullptr, visual_rows(plan.model));
    const auto pack =
        choose_pack(plan, stage, data, description, registry_,
                    {budget::Device::cpu, memory_limit(budget::Device::cpu, memory, 1), ranks, 0, replicas});
    StepMemory next(plan, data.stage, description, registry_, budget::Device::cpu);
    const int64_t rows = pack.rows + std::max<int64_t>(64, pack.rows / 32);
    const int64_t frames = rows * pack.frames / pack.rows;
    return {pack, next.of({frames, rows}, 0, stage.activation_checkpointing).peak};
  }
  RunRecord::Pack recorded(const std::string& name) const { return RunRecord::read(folder(name)).packs.at("align"); }
  std::string output(const std::string& name, const TrainRequest& request) {
    testing::internal::CaptureStderr();
    run(name, sets(), request);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(MemoryPackingRun, ChoosesTheLargestPackThatFitsByEstimate) {
  int64_t before = 0;
  for (const int64_t limit : {3 * mebibyte, 5 * mebibyte, 8 * mebibyte}) {
    const Choice choice = choose(limit);
    EXPECT_GT(choice.pack.rows, before) << limit;
    EXPECT_LE(choice.pack.estimated, limit);
    EXPECT_GT(choice.estimate_of_next, limit) << choice.pack.rows;
    EXPECT_EQ(choice.pack.bound, budget::ChosenPack::Bound::memory);
    before = choice.pack.rows;
  }
}

TEST_F(MemoryPackingRun, IsNoLargerThanAStepNeeds) {
  const auto alone = choose(512 * mebibyte).pack, of_two = choose(512 * mebibyte, 2).pack;
  EXPECT_EQ(alone.bound, budget::ChosenPack::Bound::step);
  EXPECT_LE(alone.rows, 64 * (2 + 48) + 64);
  EXPECT_EQ(alone.frames, 64 * 2) << "all of them may have frames";
  EXPECT_NEAR(static_cast<double>(of_two.rows), static_cast<double>(alone.rows) / 2, 64);
  const std::string said = output("whole", within(512 * mebibyte, 1));
  EXPECT_THAT(said, AllOf(HasSubstr("which hold a whole step"), HasSubstr("64 sequences -> 1 pack,")));
}

TEST_F(MemoryPackingRun, TakesFramesInTheProportionOfTheMix) {
  const plan::Plan plan = resolved(sets()).plan;
  const DataSizes data = measure_data_sizes(plan, plan.stages.front(), nullptr, visual_rows(plan.model));
  const plan::Plan text = resolved({"stages.align.data.text_ratio=0.9"}).plan;
  const DataSizes more = measure_data_sizes(text, text.stages.front(), nullptr, visual_rows(text.model));
  EXPECT_LT(more.frames_per_row, data.frames_per_row / 4);
}

TEST_F(MemoryPackingRun, HoldsNoMoreThanItsSegments) {
  auto with_segments = sets();
  with_segments[2] = "stages.align.packing.segments=16";
  testing::internal::CaptureStderr();
  run("few", with_segments, within(512 * mebibyte, 1));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("which packing.segments fill"), HasSubstr("64 sequences -> 4 packs,")));
}

TEST_F(MemoryPackingRun, CountsTheGradientsOfReplicas) {
  EXPECT_LT(choose(4 * mebibyte, 1, 8).pack.rows, choose(4 * mebibyte).pack.rows);
}

TEST_F(MemoryPackingRun, TrainsWithinTheLimitAndSaysWhatItChose) {
  const auto trained_within = [&](const std::string& name, int64_t limit) {
    TensorMemory memory(0);
    const std::string said = output(name, within(limit, 2));
    EXPECT_THAT(said, AllOf(HasSubstr("stage align: packs of "), HasSubstr("as --memory-mib says")));
    EXPECT_THAT(said, testing::Not(HasSubstr("out of memory")));
    EXPECT_LE(memory.peak(), limit);
    EXPECT_GT(memory.peak(), limit * 8 / 10) << "the limit is used";
    return recorded(name).tokens;
  };
  EXPECT_LT(trained_within("small", 4 * mebibyte), trained_within("large", 8 * mebibyte));
}

TEST_F(MemoryPackingRun, KeepsItsPackWhenResumedWithOtherMemory) {
  run("whole", sets(), within(6 * mebibyte));
  run("resumed", sets(), within(6 * mebibyte, 2));
  const RunRecord::Pack pack = recorded("whole");
  EXPECT_EQ(recorded("resumed"), pack);
  EXPECT_THAT(output("resumed", within(3 * mebibyte, 1)),
              AllOf(HasSubstr("which no longer fit"), HasSubstr("the limit is 3.0 MiB")));
  EXPECT_THAT(output("resumed", within(32 * mebibyte)), HasSubstr("as when the run began"));
  EXPECT_EQ(recorded("resumed"), pack);
  expect_equal_runs("whole", "resumed");
  run("other", sets(), within(32 * mebibyte));
  EXPECT_NE(recorded("other"), pack) << "a run of its own would have had another";
}

TEST_F(MemoryPackingRun, KeepsItsPackBeforeTheFirstCheckpoint) {
  TrainRequest killed = within(6 * mebibyte);
  killed.faults.before_step = [](const std::string&, int64_t, model::Parameters&) {
    throw Error(ErrorKind::internal, "killed");
  };
  EXPECT_THROW(run("killed", sets(), killed), Error);
  const RunRecord::Pack pack = recorded("killed");
  run("killed", sets(), within(32 * mebibyte, 1));
  EXPECT_EQ(recorded("killed"), pack);
}

TEST_F(MemoryPackingRun, SaysWhereTheLargestSampleDoesNotFit) {
  try {
    run("none", sets(), within(mebibyte / 2));
    FAIL() << "half a mebibyte holds no pack";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_EQ(error.where(), "stage align");
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("which the largest sample needs"),
                      HasSubstr("the limit is 512.0 KiB as --memory-mib says"), HasSubstr("activation_checkpointing")));
  }
  EXPECT_FALSE(fs::exists(folder("none") / "run.json"));
}

TEST_F(MemoryPackingRun, IsRefusedWhereRanksShareSequences) {
  const plan::Plan plan = resolved(sets()).plan;
  try {
    require_context_parallel(plan, {&plan.stages.front()});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.text(), HasSubstr("--set stages.align.packing.tokens="));
  }
}

TEST_F(MemoryPackingRun, OtherWordsAreNamedWithTheirPlace) {
  change_recipe("described.packing or { frames = 16, tokens = 512,",
                "described.packing or { frames = 16, tokens = \"memry\",");
  try {
    (void)resolved();
    FAIL() << "\"memry\" is no size";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.text(),
        AllOf(HasSubstr("small.lua:13: stages.align.packing.tokens: expected an integer of at least 1, \"auto\" "
                        "or \"memory\", got the string \"memry\"")));
  }
}

} // namespace
} // namespace fvlm::train
