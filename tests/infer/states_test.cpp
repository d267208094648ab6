// Decoders that carry a state from row to row: what a pass says of its sequences, and answers and frames that depend on
// states.
#include "base/error.h"
#include "batches.h"
#include "carrying_decoder.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/concat.h>

#include <gmock/gmock.h>

namespace fvlm::infer {

using testing::ElementsAre, testing::HasSubstr;

namespace {

std::vector<int> values(const at::Tensor& tensor) {
  const at::Tensor listed = tensor.contiguous();
  return {listed.const_data_ptr<int>(), listed.const_data_ptr<int>() + listed.numel()};
}

// One sequence for each pair of the row that it begins with and the number of its rows, with the slots 7, 8, ...
PassRows pass_of(const std::vector<std::pair<int64_t, int64_t>>& parts, bool has_states = true) {
  PassRows rows(16, has_states);
  int32_t slot = 7;
  for (const auto& [begin, count] : parts) {
    const std::vector<int32_t> pages(static_cast<size_t>((begin + count + 15) / 16), slot);
    rows.begin_sequence(pages, slot++);
    for (int64_t row = begin; row < begin + count; ++row) rows.append(5, row);
    rows.mark_output();
  }
  return rows;
}

TEST(StagedStates, SayWhereEachSequenceBeginsAndWhetherItsStateDoes) {
  const PassRows first = pass_of({{0, 3}, {9, 1}, {16, 5}}), second = pass_of({{3, 2}, {0, 6}, {21, 1}});
  StagedRows staged(first, at::kCPU, StagedRows::Sizes::coarse(first));
  std::vector<int> bounds(17, 9), slots(16, 0), starts(16, 0);
  std::ranges::copy(std::array{0, 3, 4}, bounds.begin());
  std::ranges::copy(std::array{7, 8, 9}, slots.begin());
  starts[0] = 1;
  EXPECT_EQ(values(staged.row_bounds), bounds) << "padding has no rows";
  EXPECT_EQ(values(staged.slots), slots);
  EXPECT_EQ(values(staged.starts), starts);
  EXPECT_EQ(staged.longest_run(), 16);
  const void* const memory = staged.row_bounds.const_data_ptr();
  staged.restage(second);
  EXPECT_EQ(staged.row_bounds.const_data_ptr(), memory);
  std::ranges::copy(std::array{0, 2, 8}, bounds.begin());
  std::swap(starts[0], starts[1]);
  EXPECT_EQ(values(staged.row_bounds), bounds);
  EXPECT_EQ(values(staged.starts), starts);
  for (const at::Tensor& each : {staged.row_bounds, staged.slots, staged.starts})
    EXPECT_EQ(each.storage_offset() % 64, 0) << "aligned as an allocation of its own";
}

TEST(StagedStates, TheLongestRunHasFewSizes) {
  const auto run = [](int64_t rows) { return StagedRows::Sizes::of(pass_of({{4, 20}, {0, rows}})).longest_run; };
  const auto coarse = [](int64_t rows) { return StagedRows::Sizes::coarse(pass_of({{4, 1}, {0, rows}})).longest_run; };
  EXPECT_THAT((std::array{run(1), run(32), run(33), run(100)}), ElementsAre(24, 32, 56, 128))
      << "of 21, 52, 53 and 120 rows, which are 24, 56, 56 and 128 with padding";
  EXPECT_THAT((std::array{coarse(1), coarse(2), coarse(17), coarse(65)}), ElementsAre(1, 16, 32, 128));
  EXPECT_EQ(StagedRows::Sizes::of(pass_of({{4, 1}, {9, 1}})).longest_run, 1);
}

TEST(StagedStates, AreNotThereForDecodersWithoutThem) {
  const PassRows without = pass_of({{0, 3}, {9, 1}}, false), with = pass_of({{0, 3}, {9, 1}});
  const StagedRows staged(without, at::kCPU);
  EXPECT_FALSE(staged.row_bounds.defined());
  EXPECT_FALSE(staged.slots.defined());
  EXPECT_FALSE(staged.starts.defined());
  EXPECT_EQ(staged.longest_run(), 0);
  auto sizes = StagedRows::Sizes::of(with);
  sizes.longest_run = 0;
  EXPECT_EQ(sizes, StagedRows::Sizes::of(without)) << "nothing else differs";
}

TEST(States, EveryTokenIsTheLikeliestOfAPlainPass) {
  expect_likeliest_tokens(carrying_config());
}

// With fewer slots than prompts, in several passes of a prompt, and again from row 0 where others needed the pages.
TEST(States, AnswersDoNotDependOnPagesPassesAndSlots) {
  EXPECT_EQ(expect_answers_in_any_pages(carrying_config()).shared_rows, 0);
}

TEST(States, AreMadeForThePromptsThatWaitAndNoMoreThanAllowed) {
  Tiny tiny(carrying_config(), at::kFloat);
  const auto prompts = mixed_prompts(5, 7);
  const auto expected = one_by_one(tiny, prompts, {});
  const auto answer = [&](const BatchOptions& options, size_t count) {
    GenerationBatch batch(tiny.model, *tiny.operations, {}, options);
    for (size_t i = 0; i < count; ++i) batch.add(prompts[i]);
    EXPECT_EQ(tokens_of(batch.finish()), std::vector(expected.begin(), expected.begin() + static_cast<int64_t>(count)));
    return std::pair(batch.counts().slots, batch.cache_bytes());
  };
  EXPECT_EQ(answer({}, 1).first, 1);
  EXPECT_EQ(answer({}, 5).first, 5);
  EXPECT_EQ(answer({.max_sequences = 2}, 5).first, 2);
  const auto few = answer({.reserved_rows = 512, .max_sequences = 2}, 5),
             many = answer({.reserved_rows = 512, .reserved_sequences = 9}, 5);
  EXPECT_EQ(many.first, 9);
  EXPECT_EQ(many.second - few.second, 7 * 24 * 4) << "a row of 24 numbers for each";
}

TEST(States, GrowWhereMorePromptsWaitThanBefore) {
  Tiny tiny(carrying_config(), at::kFloat);
  const auto prompts = mixed_prompts(4, 2);
  const auto expected = one_by_one(tiny, prompts, {});
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.reserved_rows = 512});
  batch.add(prompts[0]);
  EXPECT_EQ(batch.finish().at(0).tokens, expected[0]);
  const SchedulerCounts before = batch.counts();
  for (size_t i = 1; i < 4; ++i) batch.add(prompts[i]);
  for (const GeneratedAnswer& answer : batch.finish())
    EXPECT_EQ(answer.tokens, expected[static_cast<size_t>(answer.number)]);
  EXPECT_EQ(before.slots, 1);
  EXPECT_EQ(batch.counts().slots, 3);
  EXPECT_EQ(batch.counts().pages, before.pages);
}

TEST(States, GoWithNoDrafts) {
  Tiny carrying(carrying_config(), at::kFloat), plain(tiny_config(), at::kFloat);
  const auto refusal = [](Tiny& tiny, const BatchOptions& options) -> std::string {
    try {
      const GenerationBatch batch(tiny.model, *tiny.operations, {}, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.text();
    }
    return "";
  };
  EXPECT_THAT(refusal(carrying, {.draft_tokens = 3}),
              testing::AllOf(HasSubstr("speculation does not go with a decoder 'carrying'"), HasSubstr("--speculate")));
  EXPECT_THAT(refusal(carrying, {.draft_tokens = 3, .draft_model = &plain.model}),
              HasSubstr("speculation does not go"));
  EXPECT_THAT(refusal(plain, {.draft_tokens = 3, .draft_model = &carrying.model}),
              HasSubstr("a decoder 'carrying' cannot draft"));
  EXPECT_EQ(refusal(carrying, {}), "");
  EXPECT_EQ(refusal(plain, {.draft_tokens = 3, .draft_model = &plain.model}), "");
}

// The decoder reads the frames of several videos, one of each in a pass, to make the queries of the next ones.
TEST(States, OfVideosThatAreReadTogetherAreThoseOfEachAlone) {
  Tiny tiny(carrying_config());
  Dice dice(4);
  std::vector<Sample> samples;
  for (const int64_t frames : {3, 1, 4}) samples.push_back(random_sample(dice, frames, 2));
  const auto tokens_of_frames = [&](const std::vector<Sample>& read) {
    ops::Tape none(ops::Tape::Mode::forward_only);
    return tiny.model.encode(none, *tiny.operations, tiny.pack(read), "autoregressive").tokens.data;
  };
  std::vector<at::Tensor> alone;
  for (const Sample& sample : samples) alone.push_back(tokens_of_frames({sample}));
  const at::Tensor together = tokens_of_frames(samples), expected = at::concat(alone);
  ASSERT_EQ(together.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(together, expected, 1e-9, 1e-9)) << (together - expected).abs().max().item<double>();
}

} // namespace
} // namespace fvlm::infer
