#include "base/error.h"
#include "small_run.h"

#include <csignal>

namespace fvlm::train {
namespace {

// A preference stage with a cached reference, compared with the same stage with a live reference model.
class RememberedReference : public SmallRun {
 protected:
  void SetUp() override {
    change_recipe("log_every = 2", "log_every = 1");
    change_recipe("objective = fvlm.dpo { beta = 0.1 }, samples = 48,",
                  R"(objective = fvlm.dpo { beta = 0.1, cache_reference = fvlm.arg("cached", "no") == "yes" },
                  samples = fvlm.arg("samples", 48),)");
    run("start", {}, {.stage = "align"});
  }

  TrainReport prefer(const std::string& name, TrainRequest request = {}) {
    args_["cached"] = name == "live" ? "no" : "yes";
    request.stage = "prefer";
    request.from = folder("start") / "align" / "step-000010";
    request.faults.before_reference = [&](const std::string&, const HostPack& pack) {
      asked_ += std::ssize(pack.samples);
      if (on_pack_) on_pack_();
    };
    return run(name, {}, std::move(request));
  }

  fs::path file(const std::string& name) const { return folder(name) / "prefer" / "reference.bin"; }

  std::vector<double> losses(const std::string& name) const {
    std::vector<double> losses;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") losses.push_back(line["loss"]);
    return losses;
  }

  int64_t asked_ = 0; // pairs that a reference model computed
  std::function<void()> on_pack_;
};

TEST_F(RememberedReference, ChangesNoBit) {
  prefer("live");
  EXPECT_EQ(asked_, 0);
  EXPECT_FALSE(fs::exists(file("live")));
  prefer("cached");
  EXPECT_EQ(asked_, 48);
  EXPECT_EQ(losses("live").size(), 6u);
  expect_equal_runs("live", "cached");
}

TEST_F(RememberedReference, IsComputedOnceHoweverOftenTheRunStops) {
  prefer("live");
  for (int part = 0; part < 8; ++part)
    if (!prefer("cached", {.max_steps = 1}).stopped) break;
  EXPECT_EQ(asked_, 48);
  expect_equal_runs("live", "cached");
}

TEST_F(RememberedReference, CoversEveryPairOnceInAllEpochs) {
  args_["samples"] = "200"; // of 80 pairs
  prefer("live");
  prefer("cached");
  EXPECT_GE(asked_, 80);
  EXPECT_LE(asked_, 80 + 8) << "and what shares a pack with the last of them";
  const auto live = losses("live"), cached = losses("cached");
  ASSERT_EQ(live.size(), 25u);
  ASSERT_EQ(cached.size(), live.size());
  for (size_t step = 0; step < live.size(); ++step) EXPECT_NEAR(cached[step], live[step], 1e-6) << "step " << step;
}

// Without sets of preferences nothing but the file is needed, not even what the reference was made from.
TEST_F(RememberedReference, IsNotLoadedByAResumedRun) {
  change_recipe(R"(
    evaluation = { fvlm.evaluation "pairs" { data = mix { { data .. "/heldout/pairs/*.tar" } }, measure = "preference" } },)",
                "");
  prefer("live");
  prefer("cached", {.max_steps = 2});
  fs::rename(folder("start"), folder("gone"));
  fs::rename(file("cached"), folder("aside"));
  EXPECT_THROW(prefer("cached"), Error) << "without the file it wants the model";
  fs::rename(folder("aside"), file("cached"));
  EXPECT_FALSE(prefer("cached").stopped);
  EXPECT_EQ(asked_, 48);
  expect_equal_runs("live", "cached");
}

TEST_F(RememberedReference, IsTheSameForOtherPackSizes) {
  prefer("live");
  TrainRequest request;
  request.faults.before_pack = [](const std::string&, int64_t, HostPack& pack) {
    if (pack.samples.size() > 3) throw std::bad_alloc();
  };
  prefer("cached", request);
  const auto live = losses("live"), cached = losses("cached");
  ASSERT_EQ(cached.size(), live.size());
  for (size_t step = 0; step < live.size(); ++step) EXPECT_NEAR(cached[step], live[step], 1e-6) << "step " << step;
}

TEST_F(RememberedReference, DamagedOrForeignOneIsComputedAgain) {
  prefer("live");
  prefer("cached", {.max_steps = 1});
  const std::string whole = read_file(file("cached"));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 4;
  const Order order = Order::once({1});
  ReferenceLogProbCache anothers(order, folder("anothers"));
  anothers.open("another plan and other weights");
  anothers.write(true);
  const std::string short_one = whole.substr(0, whole.size() - 24), other = read_file(folder("anothers"));
  for (const std::string& damaged : {flipped, short_one, other, std::string()}) {
    write_file_atomic(file("cached"), damaged);
    asked_ = 0;
    testing::internal::CaptureStderr();
    prefer("cached", {.max_steps = 1});
    EXPECT_NE(testing::internal::GetCapturedStderr().find("computed again"), std::string::npos);
    EXPECT_EQ(asked_, 48);
    EXPECT_EQ(read_file(file("cached")), whole);
  }
  prefer("cached");
  expect_equal_runs("live", "cached");
}

TEST_F(RememberedReference, InterruptedOneContinues) {
  prefer("live");
  int packs = 0;
  on_pack_ = [&] {
    if (++packs == 2) std::raise(SIGTERM);
  };
  const auto report = prefer("cached");
  EXPECT_TRUE(report.stopped);
  EXPECT_EQ(report.steps, 0);
  EXPECT_EQ(asked_, 16);
  // A process that is killed there leaves no files and damages none.
  on_pack_ = [] { throw std::runtime_error("dead"); };
  EXPECT_THROW(prefer("cached"), std::runtime_error);
  on_pack_ = {};
  asked_ = 0;
  EXPECT_FALSE(prefer("cached").stopped);
  EXPECT_EQ(asked_, 48 - 16);
  expect_equal_runs("live", "cached");
}

} // namespace
} // namespace fvlm::train
