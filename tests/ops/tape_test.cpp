// Accumulation of gradients, and activation checkpointing: how often blocks run and what they save.
#include "ops/operations.h"
#include "tools.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

TEST(Tape, AddsGradientsWithoutWritingToSharedMemory) {
  Gradient gradient;
  Tensor first = at::ones({2}), second = at::full({2}, 2.0);
  gradient.add(first);
  gradient.add(second);
  gradient.add(at::full({2}, 4.0));
  EXPECT_TRUE(at::equal(first, at::ones({2}))) << first;
  EXPECT_TRUE(at::equal(second, at::full({2}, 2.0))) << second;
  EXPECT_TRUE(at::equal(gradient.take(), at::full({2}, 7.0)));
}

TEST(Tape, ReleasesKeptTensorsWhenDoneOrDestroyed) {
  const auto kept = std::make_shared<int>();
  const auto keep = [&] { return kept; };
  std::vector<int64_t> observed;
  {
    Tape tape;
    tape.hold_until_done(keep);
    tape.hold_until_done([]() -> std::shared_ptr<int> { throw std::logic_error("the first alone"); });
    tape.push([&] { observed.push_back(kept.use_count()); });
    tape.backward();
    EXPECT_EQ(observed, (std::vector<int64_t>{2})) << "while steps run";
    EXPECT_EQ(kept.use_count(), 1);
    tape.hold_until_done(keep);
  }
  EXPECT_EQ(kept.use_count(), 1);
  Tape none(Tape::Mode::discard);
  none.hold_until_done(keep);
  EXPECT_EQ(kept.use_count(), 1) << "no step will come";
}

// y = weight x, in a block that counts its runs and saves a tensor of its own.
struct Recomputed : testing::Test {
  Recomputed() {
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
    OperationsOptions options;
    options.dtype = options.gradient_dtype = at::kDouble;
    ops.emplace(registry, options);
    parameter.value = random({4, 4}, 1);
  }
  void train() { parameter.gradient = at::full({4, 4}, std::nan(""), at::kDouble); }

  std::vector<Value> run(Tape& tape, const std::vector<Value>& inputs) {
    return checkpointed(tape, inputs, [this](Tape& inner, const std::vector<Value>& in) {
      ++runs;
      const Value y = ops->linear(inner, in[0], Weight(parameter));
      const auto saved = std::make_shared<int>(runs);
      saved_in_a_run.push_back(saved);
      inner.push([saved] {});
      flags.push_back({inner.records(), y.requires_grad()});
      return std::vector{y, in[0]};
    });
  }

  Registry registry{RegistryOptions{}};
  std::optional<Operations> ops;
  Parameter parameter;
  int runs = 0;
  std::vector<std::weak_ptr<int>> saved_in_a_run;
  std::vector<std::pair<bool, bool>> flags; // of each run: whether it is recorded, whether the result wants a gradient
};

TEST_F(Recomputed, RunsAgainWhenAGradientComesBack) {
  train();
  Tape tape;
  const Value x(random({3, 4}, 2), true);
  const auto outputs = run(tape, {x});
  EXPECT_EQ(runs, 1);
  outputs[0].gradient->add(at::ones({3, 4}, at::kDouble));
  tape.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(x.gradient->take().defined());
  EXPECT_FALSE(parameter.gradient.isnan().any().item<bool>()) << parameter.gradient;
  ASSERT_EQ(flags.size(), 2);
  EXPECT_EQ(flags[0], flags[1]) << "the first run is to ask for the same kernels as the second";
}

TEST_F(Recomputed, DoesNotRunAgainWithoutAGradient) {
  train();
  Tape tape;
  const Value x(random({3, 4}, 2), true);
  const auto outputs = run(tape, {x});
  EXPECT_TRUE(outputs[0].requires_grad());
  tape.backward();
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(x.gradient->empty());
  EXPECT_TRUE(parameter.gradient.isnan().all().item<bool>()) << "nothing is to be written: " << parameter.gradient;
}

TEST_F(Recomputed, RequiresNoGradientWhereNothingTrains) {
  Tape tape;
  const auto outputs = run(tape, {Value(random({3, 4}, 2))});
  for (const Value& output : outputs) EXPECT_FALSE(output.requires_grad());
  tape.backward();
  EXPECT_EQ(runs, 1);
}

TEST_F(Recomputed, DistinguishesOutputsThatRequireAGradient) {
  train();
  Tape tape;
  const auto outputs = run(tape, {Value(random({3, 4}, 2))});
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[1].requires_grad()) << "an input that wants none, passed on";
}

TEST_F(Recomputed, KeepsNothingThatARunSaved) {
  train();
  Tape tape;
  const auto outputs = run(tape, {Value(random({3, 4}, 2), true)});
  ASSERT_EQ(saved_in_a_run.size(), 1);
  EXPECT_TRUE(saved_in_a_run[0].expired());
  outputs[0].gradient->add(at::ones({3, 4}, at::kDouble));
  tape.backward();
  ASSERT_EQ(saved_in_a_run.size(), 2);
  EXPECT_TRUE(saved_in_a_run[1].expired());
}

TEST_F(Recomputed, NestedRunsOnceMorePerPass) {
  train();
  Tape tape;
  const Value x(random({3, 4}, 2), true);
  const auto outputs =
      checkpointed(tape, {x}, [this](Tape& inner, const std::vector<Value>& in) { return run(inner, in); });
  EXPECT_EQ(runs, 1);
  outputs[0].gradient->add(at::ones({3, 4}, at::kDouble));
  tape.backward();
  EXPECT_EQ(runs, 3) << "the outer's first run, its second, and the inner's second";
  expect_close(x.gradient->take(), at::ones({3, 4}, at::kDouble).mm(parameter.value), 1e-12, "d_x");
}

TEST_F(Recomputed, WithoutGradientsIsTheBlockItself) {
  train();
  Tape none(Tape::Mode::forward_only);
  EXPECT_FALSE(run(none, {Value(random({3, 4}, 2), true)})[0].requires_grad());
  none.backward();
  EXPECT_EQ(runs, 1);
}

// The fused loss must not write gradients when backward steps are discarded.
TEST_F(Recomputed, FusedLossWritesItsGradientOnce) {
  train();
  const Tensor targets = at::tensor({1, 3, 0}, at::kLong), weights = at::ones({3}, at::kDouble);
  const Tensor x = random({3, 4}, 2);
  const auto gradient_of = [&](const std::function<void(Tape&, const Value&)>& loss) {
    parameter.has_gradient = false;
    Tape tape;
    const Value in(x, true);
    loss(tape, in);
    tape.backward();
    return parameter.gradient.clone();
  };
  const Tensor expected = gradient_of(
      [&](Tape& tape, const Value& in) { ops->weighted_cross_entropy(tape, in, Weight(parameter), targets, weights); });
  const Tensor actual = gradient_of([&](Tape& tape, const Value& in) {
    const auto outputs = checkpointed(tape, {in}, [&](Tape& inner, const std::vector<Value>& values) {
      ops->weighted_cross_entropy(inner, values[0], Weight(parameter), targets, weights);
      return values;
    });
    outputs[0].gradient->add(at::zeros({3, 4}, at::kDouble));
  });
  expect_close(actual, expected, 1e-12, "d_weight");
}

} // namespace
