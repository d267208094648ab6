// Answers of a batch: those of the prompts one by one, whatever joins and leaves, and however little room there is.
#include "../model/tiny.h"
#include "../train/fake_runtime.h"
#include "base/error.h"
#include "infer/generation_batch.h"

#include <ATen/ops/stack.h>

#include <gmock/gmock.h>
#include <map>
#include <set>

namespace fvlm::infer {

using namespace model;

namespace {

// Prompts of many lengths: texts alone, and behind or around visual rows. Answers of many lengths.
std::vector<Prompt> mixed_prompts(int64_t count, uint64_t seed) {
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

std::vector<std::vector<int64_t>> tokens_of(const std::vector<GeneratedAnswer>& answers) {
  std::vector<std::vector<int64_t>> all;
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].number, static_cast<int64_t>(i));
    all.push_back(answers[i].tokens);
  }
  return all;
}

std::vector<std::vector<int64_t>> one_by_one(Tiny& tiny, const std::vector<Prompt>& prompts,
                                             const std::vector<int64_t>& ends) {
  std::vector<std::vector<int64_t>> all;
  for (const Prompt& prompt : prompts) {
    GenerationBatch batch(tiny.model, *tiny.operations, ends);
    batch.add(prompt);
    all.push_back(tokens_of(batch.finish()).at(0));
  }
  return all;
}

std::vector<std::vector<int64_t>> together(Tiny& tiny, const std::vector<Prompt>& prompts,
                                           const std::vector<int64_t>& ends, int64_t cache_rows) {
  GenerationBatch batch(tiny.model, *tiny.operations, ends, {.cache_rows = cache_rows});
  for (const Prompt& prompt : prompts) batch.add(prompt);
  return tokens_of(batch.finish());
}

// A pass over a whole text, without a cache: the likeliest next token.
int64_t next_of_a_plain_pass(Tiny& tiny, const Prompt& prompt, const std::vector<int64_t>& answer) {
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
  const Value last(hidden.data.narrow(0, length - 1, 1));
  return tiny.model.decoder().logits(none, *tiny.operations, last).data.argmax().item<int64_t>();
}

TEST(GenerationBatch, EveryTokenIsTheLikeliestOfAPlainPass) {
  Tiny tiny;
  const auto prompts = mixed_prompts(6, 5);
  const auto answers = together(tiny, prompts, {}, BatchOptions().cache_rows);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(std::ssize(answers[i]), prompts[i].max_tokens);
    for (size_t count = 0; count < answers[i].size(); ++count)
      EXPECT_EQ(answers[i][count],
                next_of_a_plain_pass(tiny, prompts[i],
                                     {answers[i].begin(), answers[i].begin() + static_cast<std::ptrdiff_t>(count)}))
          << "prompt " << i << ", token " << count;
  }
}

TEST(GenerationBatch, AnswersAreThoseOfOneByOneHoweverManyFit) {
  Tiny tiny(tiny_config(), at::kFloat);
  const auto prompts = mixed_prompts(40, 9);
  std::map<int64_t, int64_t> later; // tokens that are not an answer's first: in how many answers
  for (const auto& answer : one_by_one(tiny, prompts, {}))
    for (const int64_t token : std::set<int64_t>(answer.begin() + 1, answer.end())) ++later[token];
  const int64_t end =
      std::max_element(later.begin(), later.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
  const auto expected = one_by_one(tiny, prompts, {end});
  std::set<size_t> ended;
  for (const auto& answer : expected)
    if (answer.back() == end) ended.insert(answer.size());
  EXPECT_GT(ended.size(), 2U) << "answers should end at different steps";
  for (const int64_t rows : {int64_t{1}, int64_t{256}, int64_t{3 * 256}, int64_t{8192}, int64_t{1} << 20})
    EXPECT_EQ(together(tiny, prompts, {end}, rows), expected) << "a cache of " << rows << " rows";
}

// On a device that captures what is enqueued and runs it again in each replay.
TEST(GenerationBatch, CapturedPassesGiveTheSameAnswers) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(16, 21);
  for (size_t i = 0; i < prompts.size(); i += 4) {
    prompts[i].sampling.temperature = 0.8; // these need logits
    prompts[i].sampling.answer = i;
  }
  const auto expected = together(tiny, prompts, {}, 1024);
  train::FakeRuntime device;
  EXPECT_EQ(together(tiny, prompts, {}, 1024), expected);
  EXPECT_GT(device.recorded, 4) << "sizes that came up twice";
}

TEST(GenerationBatch, PromptsJoinWhileOthersAreAnswered) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(12, 3);
  prompts[7].tokens.assign(300, 11); // more rows than the cache has been made for
  const auto expected = one_by_one(tiny, prompts, {});
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.cache_rows = 4 * 256});
  std::vector<GeneratedAnswer> answers;
  EXPECT_FALSE(batch.step()) << "there is no prompt";
  for (size_t next = 0; batch.step() || next < prompts.size();) {
    for (int64_t i = 0; i < 2 && next < prompts.size(); ++i) batch.add(prompts[next++]);
    for (GeneratedAnswer& answer : batch.take_finished()) answers.push_back(std::move(answer));
  }
  std::sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  EXPECT_EQ(tokens_of(answers), expected);
  EXPECT_TRUE(batch.take_finished().empty());
}

TEST(GenerationBatch, CallbackSeesEveryTokenButTheEndAndMayStop) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(3, 4);
  for (Prompt& prompt : prompts) prompt.max_tokens = 20;
  const auto free = one_by_one(tiny, prompts, {});
  const int64_t end = free[1][4];
  std::vector<std::vector<int64_t>> seen(3);
  for (size_t i = 0; i < 3; ++i)
    prompts[i].on_token = [&seen, i](const GeneratedToken& token) {
      seen[i].push_back(token.id);
      return i != 2 || seen[i].size() < 3;
    };
  GenerationBatch batch(tiny.model, *tiny.operations, {end});
  for (const Prompt& prompt : prompts) batch.add(prompt);
  const auto answers = batch.finish();
  EXPECT_TRUE(answers[1].ended);
  EXPECT_EQ(answers[1].tokens.back(), end);
  EXPECT_EQ(seen[1], std::vector<int64_t>(answers[1].tokens.begin(), answers[1].tokens.end() - 1));
  EXPECT_LE(answers[2].tokens.size(), 3U);
  for (const GeneratedAnswer& answer : answers) {
    const auto& whole = free[static_cast<size_t>(answer.number)];
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), whole.begin())) << answer.number;
    EXPECT_GT(answer.seconds, 0);
  }
}

TEST(GenerationBatch, DrawsDependOnSeedAndAnswerAlone) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(8, 6);
  for (size_t i = 0; i < prompts.size(); ++i)
    if (i % 2 == 0) prompts[i].sampling = {.temperature = 1, .top_p = 0.9, .seed = 3, .answer = i};
  EXPECT_EQ(together(tiny, prompts, {}, 8192), one_by_one(tiny, prompts, {}));
  prompts[3].sampling.temperature = -1;
  GenerationBatch batch(tiny.model, *tiny.operations, {});
  EXPECT_THROW(batch.add(prompts[3]), Error);
}

} // namespace
} // namespace fvlm::infer
