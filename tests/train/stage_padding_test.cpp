// What `data stats` says of padding is what training pads.
#include "small_run.h"
#include "train/stage_padding.h"

namespace fvlm::train {
namespace {

struct StagePadding : SmallRun {
  PackPadding padding(at::Device device) {
    const auto plan = resolved().plan;
    const StageData data(plan, plan.stages[0], registry_, {});
    return padding_of(plan, data, device);
  }
};

TEST_F(StagePadding, HasTheClassesOfTheModelThatTrains) {
  const std::vector<int64_t> samples{200, 100};
  EXPECT_EQ(padding(at::kCUDA).rows(samples, 512), 320) << "small frames: eighths";
  change_recipe("fvlm.dinov2 { width = 16, layers = 2, heads = 2", "fvlm.dinov2 { width = 256, layers = 8, heads = 4");
  EXPECT_EQ(padding(at::kCUDA).rows(samples, 512), 384) << "the encoder is most of the work: quarters";
  const PackPadding on_cpu = padding(at::kCPU);
  EXPECT_EQ(on_cpu.row_classes, 32);
  EXPECT_EQ((PackPadding{.row_classes = 32}).rows(samples, 512), 304);
}

} // namespace
} // namespace fvlm::train
