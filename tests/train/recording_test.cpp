// Recorded steps and copies beside them, with a device of our own.
#include "own_runtime.h"
#include "small_run.h"
#include "train/arrivals.h"
#include "train/recorder.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

TEST(Recorder, runs_then_records_then_replays) {
  OwnRuntime runtime;
  Recorder recorder("the test", true);
  int runs = 0;
  const auto work = [&runs] { ++runs; };
  EXPECT_TRUE(recorder.run(work));
  EXPECT_EQ(runtime.recorded, 0);
  EXPECT_EQ(recorder.kernels(), 0);
  EXPECT_TRUE(recorder.run(work));
  EXPECT_EQ(runtime.recorded, 1);
  EXPECT_FALSE(recorder.run([] { FAIL() << "what is recorded is not run anew"; }));
  EXPECT_EQ(recorder.kernels(), 7);
  EXPECT_EQ(runtime.recorded, 1);
  EXPECT_EQ(runs, 3) << "each time the work was done once";
}

TEST(Recorder, without_a_device_or_a_wish_everything_runs_as_it_is) {
  int runs = 0;
  Recorder nowhere("the test", true);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(nowhere.run([&] { ++runs; }));
  OwnRuntime runtime;
  Recorder unwanted("the test", false);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(unwanted.run([&] { ++runs; }));
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(runtime.recorded, 0);
}

class OwnArrivals : public testing::Test {
 protected:
  // Frames of one pixel, all of this value.
  void bring(int64_t used, float value, int64_t slots) {
    const std::shared_ptr<std::byte> memory = allocate_host(16);
    memory_ = memory;
    arrivals.bring(at::full({used, 3, 1, 1}, value), memory, arrivals.slots(slots));
  }
  void expect_slots(const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(at::equal(arrivals.slots(4)[static_cast<int64_t>(i)], at::full({3, 1, 1}, values[i])))
          << "slot " << i;
  }

  OwnRuntime runtime;
  Arrivals arrivals{runtime, at::kCPU, {4, 3, 1, 1}, true};
  std::weak_ptr<std::byte> memory_; // of the last pack
};

TEST_F(OwnArrivals, come_into_the_first_slots_and_the_rest_is_zero) {
  bring(4, 1, 4);
  expect_slots({1, 1, 1, 1});
  bring(2, 2, 3);
  expect_slots({2, 2, 0, 1});
}

TEST_F(OwnArrivals, are_copied_when_the_ones_before_have_moved_on) {
  bring(2, 1, 4);
  const auto first = memory_;
  EXPECT_FALSE(first.expired()) << "the device may still read it";
  bring(3, 2, 4);
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(runtime.log, testing::ElementsAre("copy behind mark 1", "follow copy 1", "wait for copy 1",
                                                "copy behind mark 2", "follow copy 2"));
}

class TrainRecording : public SmallRun {
 protected:
  TrainReport run_alone(const std::string& name, const std::vector<std::string>& sets = {}, const Faults& faults = {}) {
    return run(name, sets, {.crew = Crew::Size{1, 1}, .faults = faults});
  }
};

TEST_F(TrainRecording, recorded_steps_are_those_that_were_not_to_the_bit) {
  run_alone("plain");
  OwnRuntime runtime;
  run_alone("recorded");
  expect_equal_runs("plain", "recorded");
  EXPECT_GT(runtime.recorded, 5) << "passes and optimizer of three stages";
  EXPECT_GE(runtime.copied, 24) << "frames of each step";
}

TEST_F(TrainRecording, the_recipe_may_want_copies_that_do_not_overlap) {
  run_alone("plain");
  OwnRuntime runtime;
  run_alone("one_after_the_other", {"speed.overlap_copies=false"});
  EXPECT_EQ(runtime.copied, 0);
  EXPECT_EQ(runtime.marks, 0);
  expect_equal_runs("plain", "one_after_the_other");
}

TEST_F(TrainRecording, a_step_that_cannot_be_recorded_is_taken_as_it_is) {
  run_alone("plain");
  OwnRuntime runtime;
  runtime.refuses = true;
  run_alone("refused");
  expect_equal_runs("plain", "refused");
}

TEST_F(TrainRecording, what_a_reference_is_asked_is_recorded_too) {
  change_recipe("fvlm.dpo { beta = 0.1 }", "fvlm.dpo { beta = 0.1, cache_reference = true }");
  run_alone("plain");
  OwnRuntime runtime;
  int packs = 0, before = 0, after = 0;
  Faults faults;
  faults.before_reference = [&](const std::string&, const HostPack&) {
    if (packs++ == 0) before = runtime.recorded;
    after = runtime.recorded;
  };
  run_alone("recorded", {}, faults);
  expect_equal_runs("plain", "recorded");
  EXPECT_EQ(packs, 6);
  EXPECT_GT(after, before);
  EXPECT_LT(after - before, packs - 1) << "and then replayed";
}

TEST_F(TrainRecording, the_recipe_may_say_no) {
  OwnRuntime runtime;
  run_alone("plain", {"speed.graphs=false"});
  EXPECT_EQ(runtime.recorded, 0);
}

} // namespace
} // namespace fvlm::train
