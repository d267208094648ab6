// Results do not depend on packing: the split of samples into packs, their order, and the padding.
#include "tiny.h"

#include <ATen/ops/concat.h>
#include <fmt/format.h>

#include <array>
#include <gmock/gmock.h>
#include <new>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;
using testing::HasSubstr;

namespace {

// Losses of all labels, sample by sample, and the gradients of their sum.
struct Outcome {
  std::vector<Tensor> losses; // a sample
  std::map<std::string, Tensor> gradients;
};

using Split = std::vector<std::vector<size_t>>; // packs of samples

Outcome run(Tiny& tiny, const std::vector<Sample>& samples, const Split& split, const Capacity* capacity = nullptr) {
  Outcome outcome;
  outcome.losses.resize(samples.size());
  for (const auto& members : split) {
    std::vector<Sample> packed;
    packed.reserve(members.size());
    for (const size_t index : members) packed.push_back(samples[index]);
    const Pack pack = capacity ? tiny.pack(packed, *capacity) : tiny.pack(packed);
    const Tensor losses = tiny.losses(pack, tiny.ones(pack));
    int64_t begin = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      outcome.losses[members[i]] = losses.narrow(0, begin, pack.labels_per_text[i]).clone();
      begin += pack.labels_per_text[i];
    }
  }
  outcome.gradients = tiny.take_gradients();
  return outcome;
}

double relative(const Tensor& a, const Tensor& b) {
  if (b.numel() == 0) return 0;
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), 1e-30);
}

void expect_equal(const Outcome& a, const Outcome& b, double tolerance, const std::string& what) {
  for (size_t i = 0; i < b.losses.size(); ++i) {
    ASSERT_EQ(a.losses[i].sizes(), b.losses[i].sizes()) << what << ": sample " << i;
    EXPECT_LE(relative(a.losses[i], b.losses[i]), tolerance) << what << ": losses of sample " << i;
  }
  double largest = 0; // gradients that are mathematically zero consist of rounding errors
  for (const auto& [name, gradient] : b.gradients) largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : b.gradients) {
    const double off = (a.gradients.at(name) - gradient).abs().max().item<double>();
    EXPECT_LE(off / std::max(gradient.abs().max().item<double>(), 0.01 * largest), tolerance) << what << ": " << name;
  }
}

std::vector<Sample> forty_samples() {
  Dice dice(40);
  std::vector<Sample> samples;
  for (int i = 0; i < 40; ++i) {
    const int64_t frames = i % 7 == 0 ? 0 : i % 7 == 1 ? 1 : i == 2 ? 64 : dice.upto(2, 12);
    samples.push_back(random_sample(dice, frames, i == 3 ? 300 : dice.upto(2, 40)));
  }
  return samples;
}

Split one_by_one(size_t count) {
  Split split;
  for (size_t i = 0; i < count; ++i) split.push_back({i});
  return split;
}

TEST(Packing, AnySplitGivesTheSameLossesAndGradients) {
  Tiny tiny(tiny_config(), at::kFloat);
  const auto samples = forty_samples();
  const Outcome alone = run(tiny, samples, one_by_one(samples.size()));
  Dice dice(7);
  for (const size_t packs : {1u, 3u, 9u}) {
    Split split(packs);
    std::vector<size_t> order(samples.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(dice.upto(0, static_cast<int64_t>(i) - 1))]);
    for (size_t i = 0; i < order.size(); ++i) split[i % packs].push_back(order[i]);
    expect_equal(run(tiny, samples, split), alone, 1e-5, fmt::format("{} packs", packs));
  }
}

TEST(Packing, PaddingChangesNoResult) {
  Tiny tiny;
  Dice dice(3);
  const std::vector<Sample> samples{random_sample(dice, 3, 9), random_sample(dice, 0, 5), random_sample(dice, 1, 4)};
  Capacity wide = Capacity::of(samples, 1);
  wide.frames += 4;
  wide.rows += 11;
  wide.sequences += 2;
  wide.labels += 6;
  wide.longest_sequence += 9;
  wide.longest_video += 5;
  const Split together{{0, 1, 2}};
  expect_equal(run(tiny, samples, together, &wide), run(tiny, samples, together), 1e-12, "with padding");
}

// Kernels for uniform lengths may run on the first but not on the second, so they must not share a captured graph.
TEST(Packing, UniformVideoLengthsHaveAnotherShapeKey) {
  Tiny tiny;
  Dice dice(5);
  const auto packed = [&](int64_t first) {
    return tiny.pack(
        {random_sample(dice, first, 5), random_sample(dice, 4, 5)},
        {.frames = 8, .rows = 20, .sequences = 2, .labels = 10, .longest_sequence = 10, .longest_video = 4});
  };
  Pack even = packed(4), again = packed(4), other = packed(3);
  EXPECT_EQ(even.shape(), again.shape());
  EXPECT_NE(even.shape(), other.shape());
}

// Whatever was in the memory before: keys that differ are a captured graph each.
TEST(Packing, PacksWithoutFramesHaveOneShapeKey) {
  const auto key_over = [](int filled) {
    alignas(Pack) std::array<std::byte, sizeof(Pack)> memory;
    memory.fill(static_cast<std::byte>(filled));
    Pack* const pack = new (memory.data()) Pack;
    const auto key = pack->shape();
    pack->~Pack();
    return key;
  };
  EXPECT_EQ(key_over(0x00), key_over(0xA5));
}

TEST(Packing, TextsAreUniformOnlyIfEqualAndFilled) {
  Tiny tiny;
  Dice dice(4);
  const std::vector<Sample> equal{random_sample(dice, 2, 7), random_sample(dice, 3, 6)}, // 9 rows each
      other{random_sample(dice, 2, 7), random_sample(dice, 3, 5)};
  EXPECT_TRUE(tiny.pack(equal).texts.uniform_lengths);
  EXPECT_FALSE(tiny.pack(equal).maps.segments.at("videos").uniform_lengths);
  EXPECT_FALSE(tiny.pack(other).texts.uniform_lengths);
  for (int64_t Capacity::*size : {&Capacity::rows, &Capacity::longest_sequence}) {
    Capacity wide = Capacity::of(equal, 1);
    wide.*size += 1;
    EXPECT_FALSE(tiny.pack(equal, wide).texts.uniform_lengths);
  }
  Capacity spare = Capacity::of(equal, 1);
  spare.sequences += 3;
  EXPECT_TRUE(tiny.pack(equal, spare).texts.uniform_lengths);
}

TEST(Packing, ChosenAndRejectedShareTheirFrames) {
  Tiny tiny;
  Dice dice(5);
  const Sample both = random_sample(dice, 3, 6, 2);
  Sample chosen = both, rejected = both;
  chosen.texts.pop_back();
  rejected.texts.erase(rejected.texts.begin());
  const Pack shared = tiny.pack({both});
  EXPECT_EQ(shared.frames.size(0), 3);
  const Tensor losses = tiny.losses(shared, tiny.ones(shared));
  const auto gradients = tiny.take_gradients();
  const Outcome apart = run(tiny, {chosen, rejected}, {{0}, {1}});
  EXPECT_LE(relative(losses, at::concat(apart.losses)), 1e-12);
  for (const auto& [name, gradient] : apart.gradients)
    EXPECT_LE((gradients.at(name) - gradient).abs().max().item<double>(), 1e-10) << name;
}

TEST(Packing, RefusesOverflowWithTheReason) {
  Tiny tiny;
  Dice dice(1);
  const std::vector<Sample> samples{random_sample(dice, 3, 9)};
  const Capacity exact = Capacity::of(samples, 1);
  const auto error_with = [&](int64_t Capacity::*size) {
    Capacity small = exact;
    small.*size -= 1;
    try {
      tiny.pack(samples, small);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("none");
  };
  EXPECT_THAT(error_with(&Capacity::frames), HasSubstr("need 3 frame slots, the pack has 2"));
  EXPECT_THAT(error_with(&Capacity::rows), HasSubstr("need 12 rows, the pack has 11"));
  EXPECT_THAT(error_with(&Capacity::longest_sequence), HasSubstr("rows in one sequence"));
  EXPECT_THAT(error_with(&Capacity::longest_video), HasSubstr("frames in one sample"));
  EXPECT_THAT(error_with(&Capacity::labels), HasSubstr("labels"));
}

} // namespace
