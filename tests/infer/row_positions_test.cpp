// M-RoPE in answers: the cells of images have positions on three axes, and what follows goes on behind the largest,
// however the prompt is read and whoever shares its pages.
#include "../model/tiny.h"
#include "../train/fake_runtime.h"
#include "base/error.h"
#include "infer/generation_batch.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <gmock/gmock.h>

namespace fvlm::infer {

using namespace model;
using testing::ElementsAre;

namespace {

constexpr int64_t cell = visual_placeholder;

ModelConfig config_with_axes() {
  ModelConfig config = tiny_config();
  config.decoder.mrope_section = {1, 1, 1};
  config.decoder.tie_word_embeddings = false; // answers are of several tokens
  return config;
}

// Two images between texts, and where their rows are by the definition.
Prompt prompt_of_two_images() {
  Prompt prompt;
  prompt.tokens = {5, cell, cell, cell, cell, cell, cell, 7, 8, cell, cell, 9};
  prompt.grids = {{2, 3}, {2, 1}};
  prompt.visual = ops::random({8, 24}, 3).mul(2);
  prompt.max_tokens = 12;
  return prompt;
}
const std::array<std::vector<int32_t>, 3> positions_of_two_images = {
    {{0, 1, 1, 1, 1, 1, 1, 4, 5, 6, 6, 8}, {0, 1, 1, 1, 2, 2, 2, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 6, 8}}};

// The likeliest tokens by passes over the whole text, without pages.
std::vector<int64_t> plain_answer(Tiny& tiny, const Prompt& prompt,
                                  std::array<std::vector<int32_t>, 3> positions = positions_of_two_images) {
  const at::Tensor embedding = tiny.model.decoder().embedding().value();
  std::vector<at::Tensor> rows;
  int64_t visual = 0;
  for (const int64_t token : prompt.tokens)
    rows.push_back(token == cell ? prompt.visual[visual++].to(embedding.scalar_type()) : embedding[token]);
  std::vector<int64_t> answer;
  while (std::ssize(answer) < prompt.max_tokens) {
    const int64_t length = std::ssize(rows);
    Segments segments = segments_of({length}, 1, length, length, at::kCPU);
    std::vector<at::Tensor> axes;
    for (const auto& axis : positions) axes.push_back(at::tensor(axis, at::kInt));
    segments.positions = at::stack(axes);
    ops::Tape none(ops::Tape::Mode::forward_only);
    const Decoder& decoder = tiny.model.decoder();
    const Value hidden = decoder.forward(none, *tiny.operations, Value(at::stack(rows)), segments);
    const Value last(hidden.data.narrow(0, length - 1, 1));
    answer.push_back(decoder.logits(none, *tiny.operations, last).data[0].argmax().item<int64_t>());
    rows.push_back(embedding[answer.back()]);
    for (auto& axis : positions) axis.push_back(axis.back() + 1);
  }
  return answer;
}

std::vector<std::vector<int64_t>> answers_of(Tiny& tiny, const std::vector<Prompt>& prompts,
                                             const BatchOptions& options = {}) {
  GenerationBatch batch(tiny.model, *tiny.operations, {}, options);
  for (const Prompt& prompt : prompts) batch.add(prompt);
  std::vector<std::vector<int64_t>> all;
  for (const GeneratedAnswer& answer : batch.finish()) all.push_back(answer.tokens);
  return all;
}

TEST(RowPositions, OfAnswersAreThoseOfAPlainPassHoweverThePromptIsRead) {
  Tiny tiny(config_with_axes());
  const Prompt prompt = prompt_of_two_images();
  const auto expected = plain_answer(tiny, prompt);
  Prompt without = prompt;
  without.grids.clear();
  ASSERT_NE(answers_of(tiny, {without})[0], expected) << "the answer depends on the positions";
  Prompt text;
  text.tokens = {3, 1, 4, 1, 5};
  text.max_tokens = 20;
  const auto of_text = answers_of(tiny, {text})[0];
  for (const int64_t rows : {1, 2, 5, 64}) {
    EXPECT_THAT(answers_of(tiny, {prompt, text, prompt}, {.page_rows = 4, .prefill_rows = rows}),
                ElementsAre(expected, of_text, expected))
        << rows << " rows in a pass";
    EXPECT_THAT(answers_of(tiny, {prompt}, {.page_rows = 4, .prefill_rows = rows, .draft_tokens = 3}),
                ElementsAre(expected))
        << rows << " rows in a pass, with drafts";
  }
  EXPECT_THAT(answers_of(tiny, {text, prompt}, {.page_rows = 4, .draft_tokens = 3, .draft_model = &tiny.model}),
              ElementsAre(of_text, expected))
      << "with a draft model";
}

TEST(RowPositions, OfCapturedPassesAreThoseOfTheRowsThatTheyRead) {
  Tiny tiny(config_with_axes(), at::kFloat);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < 9; ++i) {
    Prompt& prompt = prompts.emplace_back(prompt_of_two_images());
    prompt.tokens.insert(prompt.tokens.begin(), static_cast<size_t>(i / 2), 11);
    if (i % 3 == 0) prompt.grids = {{3, 2}, {1, 2}};
    if (i % 3 == 1) prompt.tokens.assign(7, 4 + i), prompt.grids.clear(), prompt.visual.reset();
    prompt.max_tokens = 5 + 3 * i;
  }
  const auto expected = answers_of(tiny, prompts);
  train::FakeRuntime device;
  EXPECT_EQ(answers_of(tiny, prompts, {.reserved_rows = 4096, .prefill_rows = 16}), expected);
  EXPECT_GT(device.recorded, 2) << "sizes that came up twice";
}

// Equal cells do not make equal rows: they lie otherwise in an image of another shape.
TEST(RowPositions, PagesAreSharedByImagesOfTheSameCellsAndShape) {
  Tiny tiny(config_with_axes());
  Prompt first = prompt_of_two_images();
  first.visual_keys = {"a", "b", "c", "d", "e", "f", "g", "h"};
  Prompt other = first;
  other.grids = {{3, 2}, {2, 1}};
  const std::array<std::vector<int32_t>, 3> positions = {{{0, 1, 1, 1, 1, 1, 1, 4, 5, 6, 6, 8},
                                                          {0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8},
                                                          {0, 1, 2, 1, 2, 1, 2, 4, 5, 6, 6, 8}}};
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.page_rows = 2});
  for (const Prompt& prompt : {first, other, first}) batch.add(prompt);
  const auto answers = batch.finish();
  EXPECT_EQ(answers[0].tokens, plain_answer(tiny, first));
  EXPECT_EQ(answers[1].tokens, plain_answer(tiny, other, positions));
  EXPECT_EQ(answers[2].tokens, answers[0].tokens);
  EXPECT_EQ(answers[1].shared_rows, 0);
  EXPECT_EQ(answers[2].shared_rows, 10);
}

const CanvasTokens canvas_tokens{20, 21, 22, 23, 24};

std::array<std::vector<int32_t>, 3> positions_on_canvas(const Prompt& prompt) {
  const RowPositions found =
      positions_of(prompt.tokens, prompt.grids, {.axes = RowAxes::canvas, .canvas = canvas_tokens});
  std::array<std::vector<int32_t>, 3> all;
  for (const RowPosition& row : found.rows)
    for (size_t axis = 0; axis < 3; ++axis) all[axis].push_back(row[axis]);
  return all;
}

// An image of 2 x 3 cells and under it two parts of 1 x 4.
TEST(RowPositions, OfAnImageAndItsPartsAreThoseOfOneCanvas) {
  Prompt prompt;
  prompt.tokens = {5,    20,   cell, cell, cell, cell, cell, cell, 21,   22, cell, cell,
                   cell, cell, 23,   24,   22,   cell, cell, cell, cell, 23, 9,    24};
  prompt.grids = {{2, 3}, {1, 4}, {1, 4}};
  EXPECT_THAT(
      positions_on_canvas(prompt),
      ElementsAre(std::vector<int32_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6, 7},
                  std::vector<int32_t>{0, 0, 1, 1, 1, 2, 2, 2, 3, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 6, 7},
                  std::vector<int32_t>{0, 0, 1, 3, 4, 1, 3, 4, 5, 1, 1, 2, 3, 4, 4, 5, 1, 1, 2, 3, 4, 4, 6, 7}));
  prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + 2);
  try {
    (void)positions_on_canvas(prompt);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), testing::HasSubstr("an image of 2 x 3 cells has no token before it"));
  }
}

// The same rows of an image have other positions where other parts follow.
TEST(RowPositions, PagesAreSharedByImagesOfTheSameCanvas) {
  ModelConfig config = config_with_axes();
  config.vision.canvas = canvas_tokens;
  Tiny tiny(config);
  Prompt alone;
  alone.tokens = {5, 20, cell, cell, cell, cell, 21, 9, 8, 7};
  alone.grids = {{2, 2}};
  alone.visual = ops::random({8, 24}, 3).mul(2);
  alone.visual_keys = {"a", "b", "c", "d"};
  alone.max_tokens = 12;
  Prompt with_parts = alone;
  with_parts.tokens = {5, 20, cell, cell, cell, cell, 21, 22, cell, cell, 23, 22, cell, cell, 23, 9, 8, 7};
  with_parts.grids = {{2, 2}, {1, 2}, {1, 2}};
  with_parts.visual_keys = {"a", "b", "c", "d", "e", "f", "g", "h"};
  alone.visual = alone.visual.narrow(0, 0, 4);
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.page_rows = 2});
  for (const Prompt& prompt : {alone, with_parts, with_parts, alone}) batch.add(prompt);
  const auto answers = batch.finish();
  EXPECT_EQ(answers[0].tokens, plain_answer(tiny, alone, positions_on_canvas(alone)));
  EXPECT_EQ(answers[1].tokens, plain_answer(tiny, with_parts, positions_on_canvas(with_parts)));
  EXPECT_EQ(answers[2].tokens, answers[1].tokens);
  EXPECT_EQ(answers[3].tokens, answers[0].tokens);
  EXPECT_EQ(answers[1].shared_rows, 2) << "those before the image";
  EXPECT_EQ(answers[2].shared_rows, 16);
  EXPECT_EQ(answers[3].shared_rows, 8);
}

// Lines and columns begin anew in each step, and the text goes on behind them, whatever the time.
TEST(RowPositions, OfAVideoGrowWithTime) {
  const std::vector<int64_t> rows{5, cell, cell, cell, cell, cell, cell, cell, cell, 9};
  const std::vector<ImageGrid> grids{{1, 2, 4, 2, 0.5}};
  const auto positions = [&](int64_t tokens_per_second) {
    const SequencePositions of(rows, grids, {.axes = RowAxes::mrope, .tokens_per_second = tokens_per_second});
    std::array<std::vector<int32_t>, 3> all;
    for (int64_t row = 0; row < std::ssize(rows) + 1; ++row)
      for (size_t axis = 0; axis < 3; ++axis) all[axis].push_back(of.of(row)[axis]);
    return all;
  };
  EXPECT_THAT(positions(0), ElementsAre(std::vector<int32_t>{0, 1, 1, 2, 2, 3, 3, 4, 4, 3, 4},
                                        std::vector<int32_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4},
                                        std::vector<int32_t>{0, 1, 2, 1, 2, 1, 2, 1, 2, 3, 4}));
  EXPECT_THAT(positions(3)[0], ElementsAre(0, 1, 1, 2, 2, 4, 4, 5, 5, 3, 4)) << "1.5 numbers a step, cut off";
  EXPECT_EQ(positions(3)[1], positions(0)[1]);
}

TEST(RowPositions, TextInsideAnImageIsRefused) {
  Tiny tiny(config_with_axes());
  Prompt prompt = prompt_of_two_images();
  std::swap(prompt.tokens[3], prompt.tokens[7]);
  GenerationBatch batch(tiny.model, *tiny.operations, {});
  try {
    batch.add(prompt);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), testing::HasSubstr("an image of 2 x 3 cells are interrupted behind 2"));
  }
}

// Also where rows attend to those behind them, so that they attend to more rows than they are the last of.
TEST(RowPositions, StagedRowsKnowTheirPlacesInTheirSequences) {
  const auto indices = [](bool has_ranges) {
    PassRows rows(2);
    rows.begin_sequence(std::vector<int32_t>{3, 1});
    rows.append(7, 2, equal_positions(2), has_ranges ? 3 : 2, 2);
    rows.append(8, 3);
    rows.begin_sequence(std::vector<int32_t>{2});
    rows.append(9, 0);
    StagedRows staged(rows, at::kCPU);
    const at::Tensor before = staged.indices().clone();
    PassRows next(2);
    next.begin_sequence(std::vector<int32_t>{3, 1});
    next.append(7, 1, equal_positions(1), has_ranges ? 3 : 1, 1);
    next.append(8, 2);
    next.append(8, 3);
    staged.restage(next);
    std::vector<int> all;
    for (const at::Tensor& each : {before, staged.indices()})
      for (int64_t row = 0; row < 3; ++row) all.push_back(each[row].item<int>());
    return all;
  };
  EXPECT_THAT(indices(false), ElementsAre(2, 3, 0, 1, 2, 3));
  EXPECT_THAT(indices(true), ElementsAre(2, 3, 0, 1, 2, 3));
}

} // namespace
} // namespace fvlm::infer
