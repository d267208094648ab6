// Prompts for batches of a tiny model, and what their answers are held to.
#pragma once
#include "../model/tiny.h"
#include "../train/fake_runtime.h"
#include "infer/generation_batch.h"

#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace fvlm::infer {

using namespace model;

// Prompts of many lengths: texts alone, and behind or around visual rows. Answers of many lengths.
inline std::vector<Prompt> mixed_prompts(int64_t count, uint64_t seed) {
  Dice dice(seed);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    const int64_t visual = i % 3 == 0 ? 0 : dice.upto(1, 9);
    for (int64_t token = dice.upto(1, 40); token > 0; --token) prompt.tokens.push_back(dice.upto(0, 52));
    if (visual > 0) prompt.visual = ops::random({visual, 24}, seed + static_cast<uint64_t>(i));
    if (i % 3 == 2) prompt.tokens.insert(prompt.tokens.begin() + 1, static_cast<size_t>(visual), visual_placeholder);
    prompt.max_tokens = dice.upto(1, 30);
  }
  return prompts;
}

inline std::vector<std::vector<int64_t>> tokens_of(const std::vector<GeneratedAnswer>& answers) {
  std::vector<std::vector<int64_t>> all;
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].number, static_cast<int64_t>(i));
    all.push_back(answers[i].tokens);
  }
  return all;
}

inline std::vector<std::vector<int64_t>> one_by_one(Tiny& tiny, const std::vector<Prompt>& prompts,
                                                    const std::vector<int64_t>& ends) {
  std::vector<std::vector<int64_t>> all;
  for (const Prompt& prompt : prompts) {
    GenerationBatch batch(tiny.model, *tiny.operations, ends);
    batch.add(prompt);
    all.push_back(tokens_of(batch.finish()).at(0));
  }
  return all;
}

inline std::vector<std::vector<int64_t>> together(Tiny& tiny, const std::vector<Prompt>& prompts,
                                                  const std::vector<int64_t>& ends, int64_t cache_rows) {
  GenerationBatch batch(tiny.model, *tiny.operations, ends, {.cache_rows = cache_rows});
  for (const Prompt& prompt : prompts) batch.add(prompt);
  return tokens_of(batch.finish());
}

// A pass over a whole text, without a cache: the logits of the token behind each row.
inline at::Tensor rows_of_a_plain_pass(Tiny& tiny, const Prompt& prompt, const std::vector<int64_t>& answer) {
  std::vector<at::Tensor> rows;
  int64_t visual = 0;
  const auto embedding = tiny.model.decoder().embedding().value();
  if (prompt.visual.defined() && placeholders_of(prompt.tokens) == 0)
    while (visual < prompt.visual.size(0)) rows.push_back(prompt.visual[visual++]);
  for (const auto& tokens : {prompt.tokens, answer})
    for (const int64_t token : tokens)
      rows.push_back(token == visual_placeholder ? prompt.visual[visual++] : embedding[token]);
  const int64_t length = std::ssize(rows);
  std::vector<int64_t> lengths{length};
  ops::Tape none(ops::Tape::Mode::forward_only);
  const Value hidden =
      tiny.model.decoder().forward(none, *tiny.operations, Value(at::stack(rows).to(embedding.scalar_type())),
                                   segments_of(lengths, 1, length, length, at::kCPU));
  return tiny.model.decoder().logits(none, *tiny.operations, hidden).data;
}

inline at::Tensor logits_of_a_plain_pass(Tiny& tiny, const Prompt& prompt, const std::vector<int64_t>& answer) {
  return rows_of_a_plain_pass(tiny, prompt, answer)[-1];
}

inline void expect_likeliest_tokens(const ModelConfig& config) {
  Tiny tiny(config);
  const auto prompts = mixed_prompts(6, 5);
  const auto answers = together(tiny, prompts, {}, BatchOptions().cache_rows);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(std::ssize(answers[i]), prompts[i].max_tokens);
    for (size_t count = 0; count < answers[i].size(); ++count)
      EXPECT_EQ(answers[i][count],
                logits_of_a_plain_pass(tiny, prompts[i],
                                       {answers[i].begin(), answers[i].begin() + static_cast<std::ptrdiff_t>(count)})
                    .argmax()
                    .item<int64_t>())
          << "prompt " << i << ", token " << count;
  }
}

// Prompts that begin alike arrive while others are answered or cancelled, in pages and passes of any size. Returns how
// often rows were shared and pages given back.
inline SchedulerCounts expect_answers_in_any_pages(const ModelConfig& config, bool has_adapters = false) {
  const c10::InferenceMode no_autograd; // as in a server
  Tiny tiny(config, at::kFloat), adapted(config, at::kFloat);
  for (ops::Parameter& parameter : adapted.model.parameters().all()) // other weights of the same size
    if (parameter.value.dim() > 1) parameter.value.copy_(parameter.value.flip({0}));
  int64_t changed = 0;
  const bool carries_state = tiny.model.decoder().carries_state();
  SchedulerCounts all;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    auto prompts = mixed_prompts(3, seed);
    for (Prompt& prompt : prompts) prompt.max_tokens = dice.upto(1, 12);
    if (prompts[1].visual.defined()) prompts[1].visual_keys = {"one picture"};
    for (int64_t i = 0; i < 3; ++i) { // the same beginning, and another end
      Prompt prompt = prompts[static_cast<size_t>(dice.upto(0, 2))];
      prompt.tokens.push_back(dice.upto(0, 52));
      prompts.push_back(prompt);
    }
    auto expected = one_by_one(tiny, prompts, {});
    for (size_t i = 0; has_adapters && i < prompts.size(); ++i) {
      if (dice.upto(0, 1) == 0) continue;
      const auto other = one_by_one(adapted, {prompts[i]}, {}).front();
      changed += other != expected[i];
      expected[i] = other;
      prompts[i].adapter = 1;
    }
    const BatchOptions options{.cache_rows = dice.upto(1, 100),
                               .max_sequences = dice.upto(1, 4),
                               .page_rows = dice.upto(1, 16),
                               .prefill_rows = dice.upto(1, 40),
                               .draft_tokens = carries_state ? 0 : dice.upto(0, 1) * 4,
                               .adapted = {{&adapted.model}},
                               .outlives_long_prompts = seed % 3 == 0};
    std::optional<train::FakeRuntime> device; // where passes are launched ahead
    if (seed % 2 == 0) device.emplace();
    GenerationBatch batch(tiny.model, *tiny.operations, {}, options);
    const int64_t cancelled = dice.upto(0, 5);
    for (size_t i = 0; i < prompts.size(); ++i) {
      batch.add(prompts[i]);
      for (int64_t steps = dice.upto(0, 6); steps > 0; --steps) batch.step();
    }
    batch.cancel(cancelled);
    for (const GeneratedAnswer& answer : batch.finish())
      EXPECT_EQ(answer.tokens, expected[static_cast<size_t>(answer.number)])
          << "prompt " << answer.number << ", schedule " << seed;
    const SchedulerCounts counts = batch.counts();
    EXPECT_EQ(counts.free_pages + counts.cached_pages, counts.pages);
    EXPECT_EQ(counts.free_slots, counts.slots);
    all.shared_rows += counts.shared_rows, all.preemptions += counts.preemptions;
  }
  EXPECT_GT(all.preemptions, 0);
  EXPECT_EQ(changed > 50, has_adapters);
  return all;
}

} // namespace fvlm::infer
