// Frames that are encoded as graphs, in sizes that are padded: the visual tokens of each frame alone.
#include "../model/tiny.h"
#include "../train/fake_runtime.h"
#include "infer/frame_graphs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <new>

namespace fvlm::infer {

using namespace model;

namespace {

std::vector<at::Tensor> frames_of_seed(int64_t count, uint64_t seed) {
  std::vector<at::Tensor> frames;
  for (int64_t i = 0; i < count; ++i)
    frames.push_back(ops::random({3, 8, 8}, 100 * seed + static_cast<uint64_t>(i)).to(at::kFloat));
  return frames;
}

// As the first frame of a video, whose second one needs the decoder.
at::Tensor first_of_two(Tiny& tiny, const at::Tensor& frame) {
  ops::Tape none(ops::Tape::Mode::forward_only);
  const Sample video{at::stack({frame, frame}), {{{1}, {false}}}};
  return tiny.model.encode(none, *tiny.operations, tiny.pack({video}), "autoregressive").tokens.data.narrow(0, 0, 1);
}

TEST(FrameGraphs, VisualTokensAreThoseOfEachFrameAsTheFirstOfAVideo) {
  Tiny tiny(tiny_config(), at::kFloat);
  train::FakeRuntime device;
  FrameGraphs graphs(tiny.model, *tiny.operations);
  for (const int64_t count : {1, 3, 1, 4, 9, 2, 70, 1, 16}) {
    const auto frames = frames_of_seed(count, static_cast<uint64_t>(count));
    const at::Tensor tokens = graphs.encode(frames);
    ASSERT_EQ(tokens.size(0), count);
    for (const int64_t frame : {int64_t{0}, count - 1}) {
      const at::Tensor expected = first_of_two(tiny, frames[static_cast<size_t>(frame)]);
      EXPECT_LT((tokens.narrow(0, frame, 1) - expected).abs().max().item<double>(), 1e-5)
          << count << " frames, number " << frame;
    }
  }
  EXPECT_EQ(device.recorded, 3) << "of 1, 4 and 16 frames, which came again";
}

TEST(FrameGraphs, NoneIsCapturedForFramesThatWerePreparedFor) {
  Tiny tiny(tiny_config(), at::kFloat);
  train::FakeRuntime device;
  FrameGraphs graphs(tiny.model, *tiny.operations);
  graphs.prepare(8, 8);
  const int64_t prepared = device.recorded;
  EXPECT_EQ(prepared, 6);
  for (const int64_t count : {1, 3, 8, 11, 30, 64, 70, 2}) {
    const auto frames = frames_of_seed(count, static_cast<uint64_t>(count));
    const at::Tensor last = graphs.encode(frames).narrow(0, count - 1, 1);
    EXPECT_LT((last - first_of_two(tiny, frames.back())).abs().max().item<double>(), 1e-5) << count;
  }
  EXPECT_EQ(device.recorded, prepared);
}

TEST(FrameGraphs, PreparesTheSizesThatFitIntoMemory) {
  struct SmallDevice : train::FakeRuntime {
    std::unique_ptr<device::CapturedGraph> capture(const std::function<void()>& work) override {
      if (refused < 2) {
        ++refused;
        throw std::bad_alloc();
      }
      return FakeRuntime::capture(work);
    }
    int refused = 0;
  } device;
  Tiny tiny(tiny_config(), at::kFloat);
  FrameGraphs graphs(tiny.model, *tiny.operations);
  graphs.prepare(8, 8);
  EXPECT_EQ(device.recorded, 4) << "64 and 32 at once do not fit";
  (void)graphs.encode(frames_of_seed(16, 1));
  EXPECT_EQ(device.recorded, 4);
}

TEST(FrameGraphs, TokensStayWhenOthersAreEncoded) {
  Tiny tiny(tiny_config(), at::kFloat);
  train::FakeRuntime device;
  FrameGraphs graphs(tiny.model, *tiny.operations);
  const at::Tensor tokens = graphs.encode(frames_of_seed(2, 1)), before = tokens.clone();
  for (uint64_t seed = 2; seed < 5; ++seed) (void)graphs.encode(frames_of_seed(2, seed));
  EXPECT_TRUE(tokens.equal(before));
}

} // namespace
} // namespace fvlm::infer
