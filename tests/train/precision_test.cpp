// Stages in bf16 and fp16 on the CPU, with fp32 masters, beside the same ones in fp32.
#include "model/weights/safetensors.h"
#include "small_run.h"
#include "train/guard.h"

#include <cmath>
#include <limits>

namespace fvlm::train {
namespace {

class Precision : public SmallRun {
 protected:
  void SetUp() override {
    change_recipe("log_every = 2", "log_every = 1");
    change_recipe("samples = 80,", "samples = 240,");
    change_recipe("lr = 2e-3", "lr = 1e-2");
  }

  std::vector<double> losses(const std::string& precision, const std::string& gradients = "fp32",
                             TrainRequest request = {}) {
    request.stage = "align";
    const std::string name = gradients == "fp32" ? precision : precision + "-gradients";
    run(name, {"precision=" + precision, "gradients=" + gradients}, std::move(request));
    std::vector<double> losses;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") losses.push_back(line["loss"]);
    return losses;
  }

  void expect_follows(const std::string& precision, double tolerance, const std::string& gradients = "fp32") {
    const auto exact = losses("fp32"), rounded = losses(precision, gradients);
    ASSERT_EQ(exact.size(), 30u);
    ASSERT_EQ(rounded.size(), 30u);
    ASSERT_LT(exact.back(), exact.front() - 1) << "there is something to follow";
    double worst = 0;
    for (size_t step = 0; step < exact.size(); ++step) {
      worst = std::max(worst, std::abs(rounded[step] - exact[step]));
      EXPECT_NEAR(rounded[step], exact[step], tolerance) << precision << ", step " << step;
    }
    EXPECT_GT(worst, 1e-6) << "it computes in fp32";
    std::printf("%s: losses differ by at most %.1e\n", precision.c_str(), worst);
  }

  void expect_exact_resume(const std::string& precision) {
    const std::vector<std::string> sets = {"precision=" + precision};
    run("whole", sets);
    for (int part = 0; part < 60; ++part)
      if (!run("parts", sets, {.max_steps = 3 + part % 5}).stopped) break;
    expect_equal_runs("whole", "parts");
    const StageFolder checkpoints(folder("whole") / "align");
    const fs::path last = checkpoints.of(checkpoints.steps().back());
    const auto state = Safetensors::open(last / "training_state" / "optimizer.safetensors");
    EXPECT_EQ(state.at("master").dtype, DType::f32);
    const auto model = Safetensors::open(last / "connector.safetensors");
    EXPECT_EQ(model.at("q_static").dtype, precision == "bf16" ? DType::bf16 : DType::f16);
  }
};

TEST_F(Precision, Bf16FollowsFp32) {
  expect_follows("bf16", 0.03);
}

TEST_F(Precision, GradientsInBf16FollowFp32) {
  expect_follows("bf16", 0.03, "bf16");
  EXPECT_NE(losses("bf16"), losses("bf16", "bf16")) << "they are kept in fp32";
}

// With inner layers, which alone multiply in fp8.
TEST_F(Precision, Fp8FollowsFp32) {
  change_recipe("width = 16, layers = 2, heads = 2, mlp = 32", "width = 64, layers = 4, heads = 2, mlp = 128");
  change_recipe("lr = 1e-2", "lr = 3e-3");
  expect_follows("fp8", 0.03);
  EXPECT_NE(losses("fp8"), losses("bf16")) << "it computes in bf16";
}

TEST_F(Precision, Fp16FollowsFp32) {
  expect_follows("fp16", 3e-3);
}

TEST_F(Precision, Bf16ResumesToTheSameBits) {
  expect_exact_resume("bf16");
}

TEST_F(Precision, Fp16ResumesToTheSameBits) {
  expect_exact_resume("fp16");
}

// An overflow costs one step, and the scale is half of what it was from there on.
TEST_F(Precision, Fp16ScalesLessAfterAnOverflow) {
  std::vector<double> before;
  std::map<int64_t, at::Tensor> weights;
  TrainRequest request;
  request.faults.before_step = [&](const std::string&, int64_t step, model::Parameters& parameters) {
    if (step == 4) parameters.at("q_init").gradient.fill_(std::numeric_limits<float>::infinity());
    if (step == 4 || step == 5) weights[step] = parameters.trained().clone();
  };
  losses("fp16", "fp32", request);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_TRUE(weights[4].equal(weights[5])) << "the step was applied";
  const StageFolder checkpoints(folder("fp16") / "align");
  const RunState state = read_state(checkpoints.of(checkpoints.steps().back()));
  EXPECT_EQ(state.scaler.scale, ScalerState().scale / 2);
  EXPECT_EQ(state.scaler.good_steps, 30 - 5);
  EXPECT_EQ(state.optimizer_steps, 29);
  EXPECT_EQ(state.guard.skipped, 0) << "that is no broken step";
  std::vector<nlohmann::json> overflows, steps;
  for (const auto& line : metrics(folder("fp16"))) {
    if (line["kind"] == "step") steps.push_back(line);
    if (line["kind"] == "event" && line["what"] == "overflow") overflows.push_back(line);
  }
  ASSERT_EQ(overflows.size(), 1u) << "it says so";
  EXPECT_EQ(overflows[0]["step"], 5);
  EXPECT_EQ(steps.front()["loss_scale"], ScalerState().scale);
  EXPECT_EQ(steps.front()["overflowed_steps"], 0);
  EXPECT_EQ(steps.back()["loss_scale"], ScalerState().scale / 2);
  EXPECT_EQ(steps.back()["overflowed_steps"], 1);
}

TEST(LossScale, GrowsAgainAfterManyGoodSteps) {
  ScalerState state{1024, 1998};
  Scaler scaler(true, state);
  scaler.step_done();
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.step_done();
  EXPECT_EQ(scaler.scale(), 2048);
  EXPECT_EQ(state.good_steps, 0);

  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(scaler.reduce_on_overflow(1, 5)) << "nothing overflowed";
  EXPECT_FALSE(scaler.reduce_on_overflow(infinity, infinity)) << "the loss itself is not finite: the guard's affair";
  state.good_steps = 7;
  EXPECT_TRUE(scaler.reduce_on_overflow(1, infinity));
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(state.good_steps, 0);
  state.scale = 1;
  EXPECT_FALSE(scaler.reduce_on_overflow(1, infinity)) << "a scale of 1 is not to blame";

  ScalerState off_state;
  Scaler off(false, off_state);
  EXPECT_EQ(off.scale(), 1);
  EXPECT_FALSE(off.reduce_on_overflow(1, infinity));
}

} // namespace
} // namespace fvlm::train
