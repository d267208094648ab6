// The anatomy of a step, on a fake device: before each reading of its clock it reports an activity, unless the test has
// set others.
#include "../train/fake_runtime.h"
#include "bench/anatomy.h"
#include "ops/call_observer.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <gmock/gmock.h>

namespace fvlm::bench {
namespace {

class Watched : public train::FakeRuntime {
 public:
  std::vector<device::Activity> profile(const std::function<void()>& work) override {
    seen_.clear();
    told_ = false;
    work();
    return seen_;
  }
  void launch(const std::vector<device::Activity>& activities) {
    for (const device::Activity& each : activities)
      seen_.push_back({each.name, clock_ + each.begin, clock_ + each.end});
    clock_ = seen_.back().end;
    told_ = true;
  }
  uint64_t now() const override {
    if (!std::exchange(told_, false))
      seen_.push_back({fmt::format("kernel {}", seen_.size() % 3), clock_ + 1, clock_ + 1'000'001});
    return clock_ += 2'000'000;
  }

 private:
  mutable uint64_t clock_ = 0;
  mutable bool told_ = false;
  mutable std::vector<device::Activity> seen_;
};

TEST(Anatomy, PartsAddUpToTheWhole) {
  const c10::InferenceMode without_autograd;
  Watched gpu;
  Registry registry{RegistryOptions{}};
  registry.add_static(ops::reference_manifest(), [] { return ops::reference_entry; });
  SyntheticModels models;
  TrainingSetting setting;
  setting.precision = plan::Precision::fp32;
  setting.speed.graphs = false;
  const Job job = job_of(configuration_named("tiny:2"), setting, 2, 9, "", models, registry, at::kCPU);
  Training training(job.plan, registry, at::kCPU, job.model, job.capacity, job.samples());
  const auto counts = train::counts_of(job.plan.stages.front(), job.packs.front().samples);

  const StepAnatomy anatomy = anatomy_of(training, job, counts, [&, steps = uint64_t{0}]() mutable {
    const uint64_t late = ++steps == 4 ? 0 : 1'000'000; // in all but one
    gpu.launch({{"a", 0, 4'000'000},
                {"b", 3'000'000, 5'000'000},
                {device::copy_to_device, late + 7'000'000, late + 8'000'000},
                {"memcpy", late + 8'000'000, late + 9'000'000}});
  });
  EXPECT_EQ(anatomy.flow.launches, 4);
  EXPECT_DOUBLE_EQ(anatomy.flow.busy, 7);
  EXPECT_DOUBLE_EQ(anatomy.flow.beside, 1);
  EXPECT_DOUBLE_EQ(anatomy.flow.copies, 1);
  EXPECT_DOUBLE_EQ(anatomy.flow.span, 9);
  EXPECT_DOUBLE_EQ(anatomy.flow.gaps(), 2);

  std::vector<std::string> parts;
  for (const auto& part : anatomy.parts) parts.push_back(part.name);
  EXPECT_THAT(parts, testing::ElementsAre("copies", "vision", "coarse", "fine", "decoder", "head", "head backward",
                                          "decoder backward", "fine backward", "coarse backward", "vision backward",
                                          "backward", "optimizer"));

  // Each call is one millisecond, and so is what came before it.
  int64_t calls = 0;
  for (const auto& operation : anatomy.operations) {
    calls += operation.calls;
    EXPECT_DOUBLE_EQ(operation.milliseconds, static_cast<double>(operation.calls)) << operation.name;
    EXPECT_GT(operation.minimal.bytes, 0) << operation.name;
  }
  double kernels = 0;
  for (const auto& kernel : anatomy.kernels) kernels += kernel.milliseconds;
  EXPECT_DOUBLE_EQ(kernels, anatomy.milliseconds());
  EXPECT_DOUBLE_EQ(anatomy.milliseconds(), static_cast<double>(calls) + anatomy.others.milliseconds);
  const auto named = [&](std::string_view name) {
    return std::any_of(anatomy.operations.begin(), anatomy.operations.end(),
                       [&](const auto& operation) { return operation.name == name; });
  };
  for (const char* name : {"linear forward", "linear input gradient", "linear weight gradient", "attention backward",
                           "rmsnorm forward", "layernorm backward", "loss fused", "optimizer step"})
    EXPECT_TRUE(named(name)) << name;
  EXPECT_EQ(ops::call_observer(), nullptr);

  double before = std::numeric_limits<double>::infinity();
  for (const auto& operation : anatomy.operations) {
    const double above = operation.milliseconds - anatomy.minimal_ms(operation);
    EXPECT_LE(above, before) << operation.name;
    before = above;
  }
}

} // namespace
} // namespace fvlm::bench
