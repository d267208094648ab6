// The floating-point operations of a step are those of the frames that its encoder reads.
#include "../model/encoded_frames.h"
#include "bench/job.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace fvlm::bench {
namespace {

constexpr int64_t samples = 4, frames = 4;

// A step of four samples of four frames, `stills` of which are one repeated image each.
struct Counted {
  int64_t counted = 0, encoded = 0; // frames, by the engine's own account and by its calls
  double flops = 0;
};

class StepFlops : public testing::Test {
 protected:
  StepFlops() {
    registry_.add_static(ops::reference_manifest(), [] { return ops::reference_entry; });
    setting_.precision = plan::Precision::fp32;
  }

  Counted step(int64_t stills, const std::string& reference = "") {
    const c10::InferenceMode without_autograd;
    Job job = job_of(configuration_named("tiny:4"), setting_, frames, 9, reference, models_, registry_, at::kCPU);
    train::SyntheticPack& pack = job.packs.front();
    int64_t images = 0;
    for (size_t i = 0; i < pack.samples.size(); ++i) {
      auto sample = std::make_shared<Sample>(*pack.samples[i]);
      if (static_cast<int64_t>(i) < stills) sample->copies = sample->frames;
      pack.host.samples[i].first_frame = std::exchange(images, images + sample->distinct_frames());
      pack.host.samples[i].sample = pack.samples[i] = std::move(sample);
    }
    Training training(job.plan, registry_, at::kCPU, job.model, job.capacity, job.samples());
    const auto counts = train::counts_of(job.plan.stages.front(), pack.samples);
    const auto staged = training.gradient_computer().stage(pack.host, counts, 1);
    Counted step{training.gradient_computer().encoded_frames(), 0, training.flops(pack.samples)};
    model::EncodedFrames encoded(job.plan.model.image_size, training.trained_model().config().vision.patch_size);
    PartTimes times;
    training.forward_backward(*staged, times);
    step.encoded = encoded.take();
    return step;
  }

  Registry registry_{RegistryOptions{}};
  SyntheticModels models_;
  TrainingSetting setting_;
};

TEST_F(StepFlops, CountFramesAsThePackIsEncoded) {
  const Counted videos = step(0), fell_back = step(1), two = step(2), shared = step(4);
  EXPECT_EQ(videos.encoded, samples * frames);
  EXPECT_EQ(fell_back.encoded, samples * frames) << "one still saves less than a quarter";
  EXPECT_EQ(two.encoded, 10);
  EXPECT_EQ(shared.encoded, 4);
  for (const Counted& each : {videos, fell_back, two, shared}) EXPECT_EQ(each.counted, each.encoded);
  EXPECT_EQ(fell_back.flops, videos.flops);
  const double six_frames = videos.flops - two.flops;
  EXPECT_GT(six_frames, 0.1 * videos.flops);
  EXPECT_NEAR(videos.flops - shared.flops, 2 * six_frames, 1e-9 * videos.flops) << "of twelve frames";
}

TEST_F(StepFlops, CountEveryCopyWhereNoneIsShared) {
  const Counted videos = step(0);
  setting_.speed.shared_repeated_frames = false;
  const Counted apart = step(4);
  EXPECT_EQ(apart.encoded, samples * frames);
  EXPECT_EQ(apart.counted, apart.encoded);
  EXPECT_EQ(apart.flops, videos.flops);
}

TEST_F(StepFlops, CountFramesOfPairsForEachAnswerThatDoesNotShareThem) {
  const Counted together = step(0, "live");
  setting_.speed.shared_preference_frames = false;
  const Counted apart = step(0, "live");
  EXPECT_EQ(together.counted, samples * frames);
  EXPECT_EQ(apart.counted, 2 * samples * frames);
  EXPECT_GT(apart.flops, 1.3 * together.flops);
}

} // namespace
} // namespace fvlm::bench
