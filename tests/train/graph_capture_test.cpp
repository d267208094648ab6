// Captured steps and overlapped copies, on a fake device.
#include "base/error.h"
#include "fake_runtime.h"
#include "ops/graph_cache.h"
#include "small_run.h"
#include "train/input_staging.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <gmock/gmock.h>
#include <limits>

namespace fvlm::train {
namespace {

TEST(GraphCache, RunsThenCapturesThenReplays) {
  FakeRuntime runtime;
  ops::GraphCache recorder("the test", true);
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

TEST(GraphCache, CapturesAnewWhatWasDropped) {
  FakeRuntime runtime;
  ops::GraphCache recorder("the test", true);
  int runs = 0;
  const auto work = [&runs] { ++runs; };
  for (int i = 0; i < 3; ++i) recorder.run(work);
  EXPECT_TRUE(runtime.drop_graphs());
  EXPECT_FALSE(runtime.drop_graphs()) << "there is none";
  for (int i = 0; i < 2; ++i) recorder.run(work);
  EXPECT_EQ(runtime.recorded, 2);
  EXPECT_EQ(runs, 5);
}

TEST(GraphCache, RunsEagerlyWithoutADeviceOrByRequest) {
  int runs = 0;
  ops::GraphCache nowhere("the test", true);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(nowhere.run([&] { ++runs; }));
  FakeRuntime runtime;
  ops::GraphCache unwanted("the test", false);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(unwanted.run([&] { ++runs; }));
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(runtime.recorded, 0);
}

class Staging : public testing::Test {
 protected:
  // Frames of one pixel, all of this value, in a place with so many slots.
  void stage(int64_t used, float value, int64_t slots, const std::vector<int64_t>& copies = {}, int64_t squares = 1) {
    const std::shared_ptr<std::byte> memory = allocate_host(16);
    memory_ = memory;
    BuiltPass built;
    built.frames = {at::full({used, 3, 1, 1}, value), copies};
    built.inputs.pack.encoder_slots = slots / squares;
    built.inputs.pack.slot_squares = squares;
    built.inputs.frame_shares = at::zeros({slots}, at::kDouble);
    staging.stage(std::move(built), memory, places[slots]);
  }
  void expect_slots(int64_t slots, const std::vector<float>& values) {
    const at::Tensor& frames = places.at(slots).inputs.pack.frames;
    ASSERT_EQ(frames.size(0), std::ssize(values));
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(at::equal(frames[static_cast<int64_t>(i)], at::full({3, 1, 1}, values[i]))) << "slot " << i;
  }

  FakeRuntime runtime;
  InputStaging staging{runtime, at::kCPU, {4, 3, 1, 1}, true};
  std::map<int64_t, StagedInputs> places; // by their slots
  std::weak_ptr<std::byte> memory_;       // of the last pack
};

TEST_F(Staging, FramesFillTheFirstSlotsAndTheRestIsZero) {
  stage(4, 1, 4);
  expect_slots(4, {1, 1, 1, 1});
  stage(2, 2, 3);
  expect_slots(3, {2, 2, 0});
  expect_slots(4, {2, 2, 0, 1}); // packs of all shapes share the slots
}

TEST_F(Staging, SquaresOfVideosMayBeMoreThanTheLargestPackHasFrames) {
  stage(2, 1, 4);
  stage(5, 2, 6, {}, 2);
  expect_slots(6, {2, 2, 2, 2, 2, 0});
  expect_slots(4, {1, 1, 0, 0}); // in memory of their own
  stage(6, 3, 6, {}, 2);
  stage(3, 4, 4);
  expect_slots(6, {3, 3, 3, 3, 3, 3});
  expect_slots(4, {4, 4, 4, 0});
}

TEST_F(Staging, RepeatedFramesTravelOnceAndFillTheirSlots) {
  stage(1, 5, 4, {3});
  expect_slots(4, {5, 5, 5, 0});
  stage(2, 6, 4, {1, 2});
  expect_slots(4, {6, 6, 6, 0});
}

// Every byte in every channel, more frames than are normalised at once, by tensor operations and by the host's loop.
TEST(Pixels, HaveTheValuesOfTheHostsNormalization) {
  NormalizationTable table = imagenet_normalization();
  table[1][7] = -0.0F, table[2][9] = 1e-42F;
  at::Tensor pixels =
      at::arange(20 * 16 * 16 * 3, at::kLong).mul(37).remainder(256).to(at::kByte).view({20, 16, 16, 3});
  at::Tensor on_device = at::empty({20, 3, 16, 16}, at::kFloat), on_host = at::empty_like(on_device);
  feed::normalise(pixels, feed::table_on(at::kCPU, table), on_device);
  feed::HostFrames{pixels, {}, &table}.copy_to(on_host);
  EXPECT_TRUE(at::equal(on_device.view(at::kInt), on_host.view(at::kInt)));
  for (const int64_t frame : {0, 15, 16, 19})
    for (int64_t channel = 0; channel < 3; ++channel)
      EXPECT_EQ(on_host[frame][channel][3][5].item<float>(),
                table[static_cast<size_t>(channel)][pixels[frame][3][5][channel].item<uint8_t>()]);
}

TEST_F(Staging, BytesAreNormalisedInTheirSlots) {
  const NormalizationTable& table = imagenet_normalization();
  for (const float byte : {3.0F, 200.0F}) {
    BuiltPass built;
    built.frames = {at::full({2, 1, 1, 3}, byte, at::kByte), {1, 2}, &table};
    built.inputs.pack.encoder_slots = 4;
    built.inputs.frame_shares = at::zeros({4}, at::kDouble);
    staging.stage(std::move(built), nullptr, places[4]);
    const at::Tensor& frames = places.at(4).inputs.pack.frames;
    for (int64_t channel = 0; channel < 3; ++channel)
      for (int64_t slot = 0; slot < 4; ++slot)
        EXPECT_EQ(frames[slot][channel].item<float>(),
                  slot == 3 ? 0 : table[static_cast<size_t>(channel)][static_cast<size_t>(byte)]);
  }
}

TEST_F(Staging, SmallTensorsKeepTheMemoryOfTheirShapes) {
  stage(4, 1, 4);
  const at::Tensor shares = places.at(4).inputs.frame_shares;
  BuiltPass next;
  next.inputs.frame_shares = at::full({4}, 0.25, at::kDouble);
  staging.stage(std::move(next), nullptr, places[4]);
  EXPECT_TRUE(at::equal(shares, at::full({4}, 0.25, at::kDouble)));
}

TEST_F(Staging, CopiesFramesAfterThePreviousOnesMoved) {
  stage(2, 1, 4);
  const auto first = memory_;
  EXPECT_FALSE(first.expired()) << "the device may still read it";
  stage(3, 2, 4);
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(memory_.expired());
  EXPECT_THAT(runtime.log, testing::ElementsAre("copy behind mark 1", "follow copy 1", "wait for copy 1",
                                                "copy behind mark 2", "follow copy 2"));
}

class TrainWithGraphs : public SmallRun {
 protected:
  TrainReport run_alone(const std::string& name, const std::vector<std::string>& sets = {}, const Faults& faults = {}) {
    return run(name, sets, {.replicas = ThreadReplicas::Size{1, 1}, .faults = faults});
  }
};

TEST_F(TrainWithGraphs, CapturedStepsEqualEagerOnesToTheBit) {
  run_alone("plain");
  FakeRuntime runtime;
  run_alone("recorded");
  expect_equal_runs("plain", "recorded");
  EXPECT_GT(runtime.recorded, 5) << "passes and optimizer of three stages";
  EXPECT_GE(runtime.copied, 24) << "frames of each step";
}

TEST_F(TrainWithGraphs, RecipeMayDisableOverlappingCopies) {
  run_alone("plain");
  FakeRuntime runtime;
  run_alone("one_after_the_other", {"speed.overlap_copies=false"});
  EXPECT_EQ(runtime.copied, 0);
  expect_equal_runs("plain", "one_after_the_other");
}

// The device's work, and the readbacks of the host.
TEST_F(TrainWithGraphs, ReadsAStepWhileTheNextOneRuns) {
  FakeRuntime runtime;
  Faults faults;
  std::vector<int64_t> read_before; // events that were waited for before a step's optimizer
  faults.before_step = [&](const std::string&, int64_t, model::Parameters&) {
    read_before.push_back(std::count_if(runtime.log.begin(), runtime.log.end(),
                                        [](const std::string& line) { return line.starts_with("wait for mark"); }));
  };
  run("a", {"checkpoint.every=4"}, {.stage = "align", .replicas = ThreadReplicas::Size{1, 1}, .faults = faults});
  // The fourth and the eighth are read at once: their checkpoints are due.
  EXPECT_THAT(read_before, testing::ElementsAre(0, 0, 1, 2, 4, 4, 5, 6, 8, 8));
}

TEST_F(TrainWithGraphs, ReadsAtOnceWhatMayChangeTheNextStep) {
  FakeRuntime runtime;
  Faults faults;
  int64_t steps = 0;
  faults.before_step = [&](const std::string&, int64_t, model::Parameters&) {
    EXPECT_EQ(std::count_if(runtime.log.begin(), runtime.log.end(),
                            [](const std::string& line) { return line.starts_with("wait for mark"); }),
              steps++);
  };
  run("a", {"guard.rollback=true"}, {.stage = "align", .replicas = ThreadReplicas::Size{1, 1}, .faults = faults});
  EXPECT_EQ(steps, 10);
}

// A pixel of one step and a gradient of another, and a step for which memory runs out.
TEST_F(TrainWithGraphs, BadStepsAreReportedInTheSameLines) {
  const auto go = [&](const std::string& name) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Faults faults;
    faults.before_pack = [&](const std::string& stage, int64_t step, HostPack& pack) {
      if (stage == "align" && step == 2) pack.normalization = &not_a_number();
      if (stage == "align" && step == 7 && pack.samples.size() > 4) throw std::bad_alloc();
    };
    faults.before_step = [&](const std::string& stage, int64_t step, model::Parameters& parameters) {
      if (stage == "align" && (step == 4 || step == 5)) parameters.at("q_static").gradient.fill_(nan);
    };
    run_alone(name, {"log_every=1"}, faults);
  };
  go("plain");
  FakeRuntime runtime;
  go("recorded");
  expect_equal_runs("plain", "recorded");
}

TEST_F(TrainWithGraphs, StoppedAnywhereEndsInTheSameBits) {
  run_alone("whole");
  FakeRuntime runtime;
  for (int part = 0; part < 40; ++part)
    if (!run("parts", {}, {.max_steps = 1 + part % 4, .replicas = ThreadReplicas::Size{1, 1}}).stopped) break;
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainWithGraphs, TooManyBadStepsEndTheRunAtTheSameStep) {
  FakeRuntime runtime;
  Faults faults;
  faults.before_step = [](const std::string&, int64_t step, model::Parameters& parameters) {
    if (step >= 4) parameters.at("q_static").gradient.fill_(std::numeric_limits<float>::infinity());
  };
  try {
    run_alone("a", {"guard.nonfinite_limit=3"}, faults);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("3 steps in a row"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("stage align, step 7"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("step-000003"), std::string::npos) << error.text();
  }
}

TEST_F(TrainWithGraphs, OutOfMemoryIsReportedAfterThePreviousStep) {
  const auto go = [&](const std::string& name) {
    Faults faults;
    faults.before_pack = [&](const std::string&, int64_t step, HostPack&) {
      if (step == 5) throw std::bad_alloc();
    };
    EXPECT_THROW(run_alone(name, {"log_every=1"}, faults), Error);
  };
  go("plain");
  FakeRuntime runtime;
  go("recorded");
  expect_equal_runs("plain", "recorded");
  EXPECT_EQ(metrics(folder("recorded")).back()["step"], 5);
}

// Memory that was captured is not there for a pass of new shapes.
TEST_F(TrainWithGraphs, DropsGraphsBeforePacksAreCut) {
  run_alone("plain", {"log_every=1"});
  FakeRuntime runtime;
  Faults faults;
  faults.before_pack = [&](const std::string&, int64_t step, HostPack&) {
    if (step == 5 && runtime.drops == 0) throw std::bad_alloc();
  };
  run_alone("recorded", {"log_every=1"}, faults);
  EXPECT_EQ(runtime.drops, 1);
  expect_equal_runs("plain", "recorded");
}

TEST_F(TrainWithGraphs, ControlSeesAndDoesTheSame) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.losses = (memory.losses or "") .. " " .. m.loss
    memory.calls = (memory.calls or 0) + 1
    if memory.calls == 2 then return { fvlm.scale_lr(0.5), fvlm.save() } end
    if memory.calls == 4 then return fvlm.stop_stage() end
  end },)");
  run_alone("plain", {"log_every=3"});
  FakeRuntime runtime;
  run_alone("recorded", {"log_every=3"});
  expect_equal_runs("plain", "recorded");
  EXPECT_EQ(read_file(folder("plain") / "journal.jsonl"), read_file(folder("recorded") / "journal.jsonl"));
}

TEST_F(TrainWithGraphs, UncapturableStepRunsEagerly) {
  run_alone("plain");
  FakeRuntime runtime;
  runtime.refuses = true;
  run_alone("refused");
  expect_equal_runs("plain", "refused");
}

TEST_F(TrainWithGraphs, ReferenceInputsAreCapturedToo) {
  change_recipe("fvlm.dpo { beta = 0.1 }", "fvlm.dpo { beta = 0.1, cache_reference = true }");
  run_alone("plain");
  FakeRuntime runtime;
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

// Also of evaluations that let the model answer, and of the samples that they show.
TEST_F(TrainWithGraphs, RecipeMayDisableCapture) {
  change_recipe(R"("/heldout/questions/*.tar" } }, measure = "choice")",
                R"("/heldout/questions/*.tar", fields = { answers = "choices" } } }, measure = "answer", show = 4)");
  FakeRuntime runtime;
  run_alone("plain", {"speed.graphs=false"});
  EXPECT_EQ(runtime.recorded, 0);
}

} // namespace
} // namespace fvlm::train
