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

TEST_F(Reduction, BeginsEachStepAnew) {
  for (size_t step = 1; step <= 2; ++step) {
    tiny_.model.parameters().reset_gradients();
    recorded_.reduction.begin_step();
    recorded_.reduction.begin_pass();
    pass();
    recorded_.reduction.end_pass();
    recorded_.reduction.set_done(true);
    recorded_.reduction.finish();
    EXPECT_EQ(recorded_.reduced.size(), step * buckets().size());
  }
}

} // namespace
} // namespace fvlm::train
