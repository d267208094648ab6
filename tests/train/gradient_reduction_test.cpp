// Which buckets of gradients are reduced when: during the backward pass, after one that failed, and without one.
#include "../model/tiny.h"
#include "fake_runtime.h"
#include "recorded_reduction.h"

namespace fvlm::train {
namespace {

using model::Dice, model::Tiny;

// Whose decoder reads the text alone.
constexpr const char* mode = "coarse_only";

class Reduction : public testing::Test {
 protected:
  // Forward and backward; `between` runs when the decoder's backward pass is done and the connector's begins.
  void pass(const std::function<void()>& between = {}) {
    Dice dice(7);
    const model::Pack pack = tiny_.pack({model::random_sample(dice, 2, 9), model::random_sample(dice, 1, 5)});
    ops::Tape tape;
    tape.set_marks(&recorded_.reduction);
    const auto visual = tiny_.model.encode(tape, *tiny_.operations, pack, mode);
    if (between) tape.push(between);
    const auto hidden = tiny_.model.decode(tape, *tiny_.operations, visual.tokens, pack, visual.next);
    model::next_token_loss(tape, *tiny_.operations, tiny_.model, hidden, pack, tiny_.ones(pack));
    tape.backward();
  }

  const std::vector<model::GradientBucket>& buckets() const { return tiny_.model.parameters().gradient_buckets(); }
  size_t buckets_of_the_decoder() const {
    const auto is_of_decoder = [](const ops::Parameter* parameter) { return parameter->name.starts_with("decoder."); };
    const auto end = std::find_if(buckets().begin(), buckets().end(), [&](const model::GradientBucket& bucket) {
      return !std::all_of(bucket.parameters.begin(), bucket.parameters.end(), is_of_decoder);
    });
    return static_cast<size_t>(end - buckets().begin());
  }

  Tiny tiny_;
  RecordedReduction recorded_{tiny_.model.parameters()};
};

TEST_F(Reduction, BucketsCoverTheArenaFromItsEnd) {
  int64_t begin = tiny_.model.parameters().gradients().numel();
  EXPECT_GT(buckets().size(), 3u);
  for (const model::GradientBucket& bucket : buckets()) {
    EXPECT_EQ(bucket.begin + bucket.length, begin);
    begin = bucket.begin;
  }
  EXPECT_EQ(begin, 0);
}

TEST_F(Reduction, BeginsBeforeTheBackwardPassEnds) {
  size_t reduced = 0;
  recorded_.reduction.begin_pass();
  pass([&] { reduced = recorded_.reduced.size(); });
  recorded_.reduction.end_pass();
  EXPECT_GT(reduced, 1u);
  EXPECT_GE(reduced, buckets_of_the_decoder());
  EXPECT_LT(reduced, buckets().size());
  recorded_.expect_final();
}

TEST_F(Reduction, WritesNoGradientThatWasReduced) {
  recorded_.reduction.begin_pass();
  pass();
  EXPECT_THROW(pass(), Error) << "a second pass";
}

TEST_F(Reduction, AddsZerosWithoutAPass) {
  for (ops::Parameter& parameter : tiny_.model.parameters().all()) parameter.gradient.fill_(1); // of an earlier step
  recorded_.reduction.finish();
  recorded_.expect_final();
  for (const at::Tensor& bucket : recorded_.reduced) EXPECT_EQ(bucket.abs().sum().item<double>(), 0);
}

TEST_F(Reduction, FinishesAFailedPass) {
  struct Full {};
  size_t reduced = 0;
  recorded_.reduction.begin_pass();
  const auto fail = [&] {
    reduced = recorded_.reduced.size();
    throw Full();
  };
  EXPECT_THROW(pass(fail), Full);
  ASSERT_GT(reduced, 0u);
  ASSERT_LT(reduced, buckets().size());
  recorded_.reduction.finish();
  EXPECT_EQ(recorded_.reduced.size(), buckets().size()) << "each once";
  recorded_.reduction.finish();
  EXPECT_EQ(recorded_.reduced.size(), buckets().size());
}

TEST_F(Reduction, RepeatsWhatWasOnlyCaptured) {
  struct Capturing : FakeRuntime {
    bool is_capturing() const override { return captures; }
    bool captures = true;
  } runtime;
  recorded_.reduction.begin_pass();
  recorded_.reduction.end_pass(); // and the capture fails
  EXPECT_EQ(recorded_.reduced.size(), buckets().size());
  runtime.captures = false;
  recorded_.reduction.finish();
  EXPECT_EQ(recorded_.reduced.size(), 2 * buckets().size());
}

TEST_F(Reduction, PassesAgainWhenACaptureFailed) {
  model::Parameters& parameters = tiny_.model.parameters();
  const auto before = parameters.gradient_flags();
  for (int run = 0; run < 2; ++run) { // captured, and then without a graph
    parameters.set_gradient_flags(before);
    recorded_.reduced.clear();
    recorded_.reduction.begin_pass();
    pass();
    recorded_.reduction.end_pass();
  }
  recorded_.expect_final();
}

TEST_F(Reduction, BeginsEachStepAnew) {
  for (size_t step = 1; step <= 2; ++step) {
    tiny_.model.parameters().reset_gradients();
    recorded_.reduction.begin_step(1);
    recorded_.reduction.begin_pass();
    pass();
    recorded_.reduction.end_pass();
    recorded_.reduction.set_done(true);
    recorded_.reduction.finish();
    EXPECT_EQ(recorded_.reduced.size(), step * buckets().size());
  }
}

// Gradients in buffers: each pass of a step is reduced by itself, and the parts add up to what an arena has.
class BufferedReduction : public testing::Test {
 protected:
  static model::ArenaOptions options(bool buffers) {
    model::ArenaOptions made{at::kCPU, at::kDouble, at::kDouble};
    made.buffers_gradients = buffers;
    return made;
  }
  static void copy_values(const model::Parameters& from, model::Parameters& to) { to.trained().copy_(from.trained()); }

  // A pass over one of two packs.
  static void pass(Tiny& tiny, model::Model& model, uint64_t seed, ops::GradientMarks* marks) {
    Dice dice(seed);
    const model::Pack pack = tiny.pack({model::random_sample(dice, 2, 9), model::random_sample(dice, 1, 5)});
    ops::Tape tape;
    tape.set_marks(marks);
    const auto visual = model.encode(tape, *tiny.operations, pack, "coarse_fine");
    const auto hidden = model.decode(tape, *tiny.operations, visual.tokens, pack, visual.next);
    model::next_token_loss(tape, *tiny.operations, model, hidden, pack, tiny.ones(pack));
    tape.backward();
  }

  static bool has_memory(const model::GradientBucket& bucket) {
    return bucket.buffer->values().storage().data() != nullptr;
  }
};

TEST_F(BufferedReduction, AddsUpToTheGradientsOfAnArena) {
  Tiny tiny;
  model::Model model(model::tiny_config(), options(true));
  copy_values(tiny.model.parameters(), model.parameters());
  const auto& buckets = model.parameters().gradient_buckets();
  ASSERT_GT(buckets.size(), 3u);
  EXPECT_EQ(model.parameters().gradients().numel(), 0);
  at::Tensor sum = at::zeros({model.parameters().trained().numel()}, at::kDouble);
  size_t most = 0;
  const auto in_memory = [&] { return static_cast<size_t>(std::count_if(buckets.begin(), buckets.end(), has_memory)); };
  GradientReduction::Calls calls;
  calls.reduce = [&](const model::GradientBucket&) {
    most = std::max(most, in_memory());
    return std::make_unique<RecordedReduction::Done>();
  };
  calls.on_reduced = [&](const model::GradientBucket& bucket) {
    sum.narrow(0, bucket.begin, bucket.length).add_(bucket.buffer->values());
  };
  GradientReduction reduction(model.parameters(), calls);
  reduction.begin_step(3); // another rank has three
  for (const uint64_t seed : {7, 8}) {
    ASSERT_NE(reduction.for_pass(false), nullptr);
    reduction.begin_pass();
    pass(tiny, model, seed, &reduction);
    reduction.end_pass();
    reduction.set_done(true);
    EXPECT_EQ(in_memory(), 0u);
    pass(tiny, tiny.model, seed, nullptr);
  }
  reduction.finish();
  EXPECT_LT(most, buckets.size());
  tiny.model.parameters().zero_missing_gradients();
  ops::expect_close(sum, tiny.model.parameters().gradients(), 1e-12, "gradients");
}

// A side stream that gets behind: its work runs when another stream waits for it.
struct SlowSideStream : FakeRuntime {
  void run_on_side_stream(std::function<void()> work, int64_t) override { late.push_back(std::move(work)); }
  void join_side_stream() noexcept override {
    for (const auto& work : std::exchange(late, {})) work();
  }
  std::vector<std::function<void()>> late;
};

TEST_F(BufferedReduction, WaitsForTheSideStreamBeforeItCopiesBiases) {
  Tiny tiny;
  model::Model model(model::tiny_config(), options(true));
  copy_values(tiny.model.parameters(), model.parameters());
  at::Tensor sum = at::zeros({model.parameters().trained().numel()}, at::kDouble);
  pass(tiny, tiny.model, 7, nullptr);
  SlowSideStream gpu;
  GradientReduction::Calls calls;
  calls.reduce = [&](const model::GradientBucket&) {
    gpu.join_side_stream(); // which the communication stream does
    return std::make_unique<RecordedReduction::Done>();
  };
  calls.on_reduced = [&](const model::GradientBucket& bucket) {
    sum.narrow(0, bucket.begin, bucket.length).add_(bucket.buffer->values());
  };
  GradientReduction reduction(model.parameters(), calls);
  reduction.begin_step(1);
  reduction.begin_pass();
  pass(tiny, model, 7, &reduction);
  reduction.end_pass();
  tiny.model.parameters().zero_missing_gradients();
  ops::expect_close(sum, tiny.model.parameters().gradients(), 1e-12, "gradients");
}

TEST_F(BufferedReduction, ReleasesTheBuffersOfAFailedPass) {
  struct Full {};
  Tiny tiny;
  model::Model model(model::tiny_config(), options(true));
  copy_values(tiny.model.parameters(), model.parameters());
  const auto& buckets = model.parameters().gradient_buckets();
  size_t reduced = 0;
  GradientReduction::Calls calls;
  calls.reduce = [&](const model::GradientBucket&) {
    if (++reduced == 3) throw Full();
    return std::make_unique<RecordedReduction::Done>();
  };
  GradientReduction reduction(model.parameters(), calls);
  reduction.begin_step(2);
  reduction.begin_pass();
  EXPECT_THROW(pass(tiny, model, 7, &reduction), Full);
  reduction.finish();
  EXPECT_EQ(reduced, 2 * buckets.size() + 1) << "of two passes, the third once more";
  EXPECT_TRUE(std::none_of(buckets.begin(), buckets.end(), has_memory));
}

} // namespace
} // namespace fvlm::train
