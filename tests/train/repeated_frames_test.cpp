// Runs on still images that are repeated to several frames, beside videos: encoded once or as often as they are
// repeated.
#include "fake_runtime.h"
#include "small_run.h"
#include "train/stage_data.h"

#include <algorithm>

namespace fvlm::train {
namespace {

class RepeatedFrames : public SmallRun {
 protected:
  RepeatedFrames() {
    const std::string command = std::string(FVLM_MAKE_SHAPES) + " --out " + data().string() +
                                "/more --frames 2 --size 16 --samples stills/questions=160 >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    change_recipe("{ { data .. \"/questions/*.tar\" } }",
                  "{ { data .. \"/questions/*.tar\" }, { data .. \"/more/stills/questions/*.tar\", weight = 3 }, "
                  "replicate_image_frames = 4 }");
    change_recipe("packing or { frames = 16,", "packing or { frames = 24,");
  }
  TrainReport run_alone(const std::string& name, const std::vector<std::string>& sets = {}, TrainRequest request = {}) {
    request.replicas = ThreadReplicas::Size{1, 1};
    return run(name, sets, request);
  }
};

TEST_F(RepeatedFrames, LieInAPackOnce) {
  const plan::Plan plan = resolved().plan;
  const StageData data(plan, plan.stages[1], registry_, {});
  const auto loader = data.loader(data.start());
  int64_t images = 0, videos = 0;
  while (const auto loaded = loader->next()) {
    int64_t frames = 0;
    for (const PackedSample& packed : loaded->pack.samples) {
      const Sample& sample = *packed.sample;
      EXPECT_EQ(sample.frames, sample.copies == 1 ? 2 : 4);
      EXPECT_EQ(sample.distinct_frames(), sample.copies == 1 ? 2 : 1);
      EXPECT_EQ(packed.first_frame, frames);
      frames += sample.distinct_frames();
      ++(sample.copies == 1 ? videos : images);
    }
    EXPECT_EQ(loaded->pack.frame_count, frames);
    EXPECT_EQ(loaded->pack.pixels.size(), static_cast<size_t>(frames * 3 * 16 * 16));
  }
  EXPECT_GT(images, videos);
  EXPECT_GT(videos, 0);
}

// The same packs, and the same numbers but for the order of sums.
TEST_F(RepeatedFrames, TrainAsIfEachWereEncoded) {
  run("once");
  run("each", {"speed.shared_repeated_frames=false"});
  const auto once = metrics(folder("once")), each = metrics(folder("each"));
  ASSERT_EQ(once.size(), each.size());
  bool differ = false;
  for (size_t i = 0; i < once.size(); ++i) {
    ASSERT_EQ(once[i].size(), each[i].size()) << each[i];
    for (const auto& [name, value] : each[i].items()) {
      if (!value.is_number_float() || name.find("flop") != std::string::npos || name == "mfu") continue;
      const double expected = value.get<double>(), actual = once[i].at(name).get<double>();
      EXPECT_NEAR(actual, expected, 1e-3 * std::max(0.1, std::abs(expected))) << name << " in line " << i + 1;
      differ = differ || actual != expected;
    }
    for (const char* counted : {"samples", "frames", "text_tokens", "step"})
      EXPECT_EQ(once[i].value(counted, 0.0), each[i].value(counted, 0.0)) << counted << " in line " << i + 1;
  }
  EXPECT_TRUE(differ) << "sums are in another order";
}

TEST_F(RepeatedFrames, StoppedAnywhereEndInTheSameBits) {
  run_alone("whole");
  for (int part = 0; part < 40; ++part)
    if (!run_alone("parts", {}, {.max_steps = 1 + part % 4}).stopped) break;
  expect_equal_runs("whole", "parts");
}

TEST_F(RepeatedFrames, CapturedStepsEqualEagerOnesToTheBit) {
  for (const char* shared : {"true", "false"}) {
    const std::string set = std::string("speed.shared_repeated_frames=") + shared;
    run_alone(std::string("plain-") + shared, {set});
    FakeRuntime runtime;
    run_alone(std::string("recorded-") + shared, {set});
    expect_equal_runs(std::string("plain-") + shared, std::string("recorded-") + shared);
    EXPECT_GT(runtime.recorded, 5);
  }
}

} // namespace
} // namespace fvlm::train
