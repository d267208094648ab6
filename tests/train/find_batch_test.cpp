// The search for the largest pack, under simulated memory limits, and how running out of memory is recognized.
#include "base/error.h"
#include "small_run.h"
#include "train/find_batch.h"
#include "train/memory.h"
#include "train/tensor_memory.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

constexpr int64_t mebibyte = 1 << 20;

class FindBatch : public SmallRun {
 protected:
  FoundBatch find(const std::string& stage, int64_t memory, double precision = 0,
                  const std::vector<std::string>& sets = {}) {
    const plan::Plan plan = resolved(sets).plan;
    FindBatchRequest request;
    request.memory = memory;
    request.precision = precision;
    request.replicas = ThreadReplicas::Size{1, 1}; // of several, how much they hold at once is for the clock to say
    request.progress = [this](const std::string& doing) { said_.push_back(doing); };
    for (const plan::Stage& each : plan.stages)
      if (each.name == stage) return find_batch(plan, each, registry_, request);
    throw std::logic_error(stage);
  }
  static const PackTry& best(const FoundBatch& found) { return found.tries.at(found.best.value()); }
  // The smallest that was found not to fit.
  static const PackTry* next(const FoundBatch& found) {
    const PackTry* least = nullptr;
    for (const PackTry& one : found.tries)
      if (one.end != PackTry::End::fits && (!least || one.size.rows < least->size.rows)) least = &one;
    return least;
  }
  std::vector<std::string> said_;
};

TEST_F(FindBatch, EndsWhereTheFoundPackFitsAndTheNextDoesNot) {
  const int64_t memory = 12 * mebibyte;
  const FoundBatch found = find("align", memory);
  ASSERT_TRUE(found.best);
  const PackTry& good = best(found);
  EXPECT_LE(good.peak, memory);
  EXPECT_GT(good.peak, memory * 8 / 10) << "the boundary, not a safe distance from it";
  EXPECT_GT(good.seconds, 0);
  EXPECT_GT(good.samples, 0);
  EXPECT_FALSE(said_.empty());
  const PackTry* bad = next(found);
  ASSERT_TRUE(bad);
  EXPECT_LE(bad->size.frames - good.size.frames, 2) << "the recipe's pack of 16 frames has 8 units";
  // The step itself decides; malloc's rounding varies a little.
  const auto again = [&](int64_t limit) { return best(find("align", limit)).size.rows; };
  EXPECT_GE(again(good.peak + good.peak / 200), good.size.rows);
  EXPECT_LT(again(good.peak - good.peak / 100), good.size.rows);
}

TEST_F(FindBatch, IsAsExactAsRequested) {
  const FoundBatch exact = find("align", 12 * mebibyte), rough = find("align", 12 * mebibyte, 0.25);
  EXPECT_LT(rough.tries.size(), exact.tries.size());
  EXPECT_LE(best(rough).size.rows, best(exact).size.rows);
  EXPECT_GT(best(rough).size.rows * 5 / 4 + 64, best(exact).size.rows);
}

TEST_F(FindBatch, SkipsSizesThatCertainlyDoNotFit) {
  const FoundBatch found = find("align", 12 * mebibyte);
  bool passed_over = false;
  for (const PackTry& one : found.tries) {
    if (one.end != PackTry::End::not_tried) continue;
    passed_over = true;
    EXPECT_GT(one.estimated, one.memory);
    EXPECT_EQ(one.peak, 0);
  }
  EXPECT_TRUE(passed_over);
}

TEST_F(FindBatch, GoesBelowTheRecipesOwnPack) {
  const FoundBatch found = find("align", 2 * mebibyte);
  ASSERT_TRUE(found.best);
  EXPECT_LT(best(found).size.frames, 16);
  EXPECT_GE(best(found).size.frames, 2) << "a sample of the mix has 2 frames";
}

TEST_F(FindBatch, GrowsTheBatchWhereAPackIsTheWholeStep) {
  const FoundBatch found = find("align", 12 * mebibyte);
  EXPECT_EQ(found.batch, 8);
  EXPECT_FALSE(found.holds_step);
  EXPECT_EQ(best(found).batch, best(found).segments) << "8 segments hold a batch of 8";
}

TEST_F(FindBatch, StopsWhereTheLargestStepFits) {
  const FoundBatch found =
      find("align", 512 * mebibyte, 0, {"stages.align.batch.samples=64", "stages.align.packing.segments=16"});
  EXPECT_FALSE(found.batch);
  EXPECT_TRUE(found.holds_step);
  EXPECT_EQ(best(found).size.frames, 64 * 2);
  EXPECT_GE(best(found).size.rows, 64 * (2 + 48));
}

// Memory decides how large a pack is; how many samples make a step is the recipe's to say.
TEST_F(FindBatch, LeavesTheBatchOfAPackThatHoldsSeveralSteps) {
  change_recipe("described.packing or { frames = 16, tokens = 512, segments = 8 }", "described.packing");
  const FoundBatch ample = find("align", 512 * mebibyte);
  EXPECT_EQ(best(ample).size.rows, 8192) << "the default";
  EXPECT_TRUE(ample.holds_step);
  const FoundBatch found = find("align", best(ample).peak / 2);
  ASSERT_TRUE(found.best);
  EXPECT_LT(best(found).size.rows, 8192);
  EXPECT_GE(best(found).samples, 8) << "what fits still holds a step";
  EXPECT_FALSE(found.batch);
  EXPECT_EQ(best(found).batch, 0) << "the recipe's 8, and not a share of it";
}

TEST_F(FindBatch, SupportsEveryObjective) {
  for (const char* stage : {"instruct", "prefer"}) {
    const FoundBatch found = find(stage, 6 * mebibyte, 0.25);
    ASSERT_TRUE(found.best) << stage;
    EXPECT_LE(best(found).peak, 6 * mebibyte) << stage;
  }
}

TEST_F(FindBatch, ReportsWhereTheModelDoesNotFit) {
  try {
    find("align", mebibyte / 16);
    FAIL() << "64 KiB hold no model";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_THAT(error.what(), testing::HasSubstr("does not hold the model and its optimizer"));
  }
}

TEST_F(FindBatch, ReportsWhereNoPackFits) {
  const FoundBatch found = find("align", mebibyte / 2);
  EXPECT_FALSE(found.best);
  EXPECT_FALSE(found.tries.empty());
}

// A step that runs out of memory during an operation is repeated in halves.
TEST_F(FindBatch, TrainingUnderALimitContinuesWithSmallerPacks) {
  const auto train_within = [&](const std::string& name, int64_t limit) {
    TensorMemory memory(limit);
    TrainRequest request;
    request.stage = "align";
    request.max_steps = 1;
    request.replicas = ThreadReplicas::Size{1, 1}; // of several, how much they hold at once is for the clock to say
    EXPECT_EQ(run(name, {}, request).steps, 1);
    return memory.peak();
  };
  const int64_t whole = train_within("whole", 0);
  EXPECT_LE(train_within("halves", whole * 8 / 10), whole * 8 / 10);
  const std::string lines = read_file(folder("halves") / "metrics.jsonl");
  EXPECT_THAT(lines, testing::HasSubstr("\"out_of_memory\""));
  EXPECT_THAT(read_file(folder("whole") / "metrics.jsonl"), testing::Not(testing::HasSubstr("\"out_of_memory\"")));
}

TEST(TensorMemory, CountsHeldBytesAndEnforcesItsLimit) {
  constexpr double a_page = 4096;
  TensorMemory memory(1000000);
  const int64_t before = memory.live();
  {
    const at::Tensor held = at::empty({100000}, at::kFloat);
    EXPECT_NEAR(static_cast<double>(memory.live() - before), 400000, a_page);
    try {
      (void)at::empty({200000}, at::kFloat);
      FAIL() << "800,000 bytes more are beyond the limit";
    } catch (const std::exception& error) {
      EXPECT_TRUE(is_out_of_memory(error)) << error.what();
    }
  }
  EXPECT_EQ(memory.live(), before);
  EXPECT_NEAR(static_cast<double>(memory.peak() - before), 400000, a_page);
  memory.limit_to(0);
  EXPECT_EQ(at::empty({200000}, at::kFloat).numel(), 200000);
}

TEST(OutOfMemory, IsRecognizedInPluginErrors) {
  EXPECT_TRUE(is_out_of_memory(Error(ErrorKind::plugin, "linear forward: FVLM_ERROR_INTERNAL: can't allocate memory")));
  EXPECT_FALSE(is_out_of_memory(Error(ErrorKind::plugin, "linear forward: FVLM_ERROR_INTERNAL: no such thing")));
  EXPECT_FALSE(is_out_of_memory(Error(ErrorKind::data, "can't allocate memory")));
}

class AvailableMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((scratch_.path() / path).parent_path());
    write_file_atomic(scratch_.path() / path, text);
  }
  uint64_t available() const { return available_memory(scratch_.path()); }
  ScratchFolder scratch_;
};

TEST_F(AvailableMemory, IsTheMachinesWithoutACgroupLimit) {
  write("proc/meminfo", "MemTotal:       2000 kB\nMemFree:          10 kB\nMemAvailable:    1000 kB\n");
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available(), 1000u << 10);
}

TEST_F(AvailableMemory, IsTheRestOfTheCgroupAndItsParents) {
  write("proc/meminfo", "MemAvailable:    1000 kB\n");
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/mine/memory.current", "100\n");
  EXPECT_EQ(available(), 1000u << 10);
  write("sys/fs/cgroup/jobs/memory.max", "500000\n");
  write("sys/fs/cgroup/jobs/memory.current", "300000\n");
  write("sys/fs/cgroup/jobs/memory.stat", "anon 250000\ninactive_file 40000\n");
  EXPECT_EQ(available(), 240000u) << "what is cached of files is given up first";
}

TEST_F(AvailableMemory, SupportsCgroupV1) {
  write("proc/meminfo", "MemAvailable:    1000 kB\n");
  write("proc/self/cgroup", "7:cpu:/a\n4:memory:/a\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "310000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 60000\n");
  EXPECT_EQ(available(), 50000u) << "a container sees its own group at the top";
}

} // namespace
} // namespace fvlm::train
