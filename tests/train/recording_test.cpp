// Recorded steps, with a device of our own: what it "records" it runs when it is told to replay.
#include "device/runtime.h"
#include "small_run.h"
#include "train/recorder.h"

#include <stdexcept>

namespace fvlm::train {
namespace {

class Memoir : public device::Recording {
 public:
  explicit Memoir(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }
  int64_t kernels() const override { return 7; }

 private:
  std::function<void()> work_;
};

class OwnRuntime : public device::Runtime {
 public:
  OwnRuntime() { device::use_runtime(this); }
  ~OwnRuntime() override { device::use_runtime(nullptr); }
  std::unique_ptr<device::Recording> record(const std::function<void()>& work) override {
    if (refuses) throw std::runtime_error("something waits for the device");
    ++recorded;
    return std::make_unique<Memoir>(work);
  }
  bool is_recording() const override { return false; }
  void beside(std::function<void()> work, int64_t) override { work(); }
  void join() noexcept override {}
  void synchronize() override {}
  std::vector<device::Activity> watch(const std::function<void()>& work) override {
    return work(), std::vector<device::Activity>();
  }
  uint64_t now() const override { return 0; }

  int recorded = 0;
  bool refuses = false;
};

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
