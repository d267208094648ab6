// Answers of a batch: those of the prompts one by one, whatever joins and leaves, and however little room there is.
#include "base/error.h"
#include "batches.h"
#include "carrying_decoder.h"
#include "grammar/json_schema.h"

#include <ATen/ops/log.h>
#include <ATen/ops/softmax.h>

#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>

namespace fvlm::infer {
namespace {

TEST(GenerationBatch, EveryTokenIsTheLikeliestOfAPlainPass) {
  expect_likeliest_tokens(tiny_config());
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

TEST(GenerationBatch, APassIsLaunchedBeforeTheTokensOfTheLastOneAreKnown) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(4, 8);
  for (Prompt& prompt : prompts) prompt.max_tokens = 12;
  const auto free = one_by_one(tiny, prompts, {});
  const int64_t end = free[2][5];
  const auto expected = one_by_one(tiny, prompts, {end});
  train::FakeRuntime device;
  std::vector<int> launched; // passes, at each token of the first answer
  prompts[0].on_token = [&](const GeneratedToken&) {
    launched.push_back(device.marks);
    return true;
  };
  EXPECT_EQ(together(tiny, prompts, {end}, 8192), expected);
  ASSERT_GT(launched.size(), 2U);
  EXPECT_EQ(launched[0], 2) << "the first token is known after the second pass was launched";
  EXPECT_EQ(launched[1], 3);
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

TEST(GenerationBatch, PromptsThatJoinAndAnswersThatAreLongEnoughDoNotStopTheDevice) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(24, 17);
  prompts[0].max_tokens = 60;
  prompts[5].tokens.assign(100, 11); // read in several passes
  const int64_t end = one_by_one(tiny, {prompts[9]}, {}).at(0).back();
  const auto expected = one_by_one(tiny, prompts, {end});
  ASSERT_GT(expected[0].size(), 30U);
  train::FakeRuntime device;
  std::vector<int> launched; // passes, at each token of the first answer
  prompts[0].on_token = [&](const GeneratedToken&) {
    launched.push_back(device.marks);
    return true;
  };
  GenerationBatch batch(tiny.model, *tiny.operations, {end}, {.reserved_rows = 8192, .prefill_rows = 48});
  std::vector<GeneratedAnswer> answers;
  batch.add(prompts[0]);
  for (size_t next = 1; batch.step() || next < prompts.size();) {
    if (next < prompts.size()) batch.add(prompts[next++]);
    for (GeneratedAnswer& answer : batch.take_finished()) answers.push_back(std::move(answer));
  }
  std::sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  EXPECT_EQ(tokens_of(answers), expected);
  for (size_t token = 0; token + 1 < launched.size(); ++token)
    EXPECT_EQ(launched[token], static_cast<int>(token) + 2) << "the pass behind token " << token << " was launched";
}

// Each size that is new is prepared and captured, for which all answers wait.
TEST(GenerationBatch, PassesThatReadPromptsOf64ClientsHaveFewSizes) {
  constexpr int64_t page_rows = 16, prompt = 85;
  std::set<StagedRows::Sizes> sizes;
  for (int64_t answers = 0; answers <= 64; ++answers)
    for (int64_t prompts = 1; prompts * prompt <= 2048 && answers + prompts <= 64; ++prompts) {
      PassRows rows(page_rows);
      const auto add = [&](int64_t length, int64_t read) {
        const std::vector<int32_t> pages(static_cast<size_t>((length + page_rows - 1) / page_rows), 1);
        rows.begin_sequence(pages);
        for (int64_t row = length - read; row < length; ++row) rows.append(5, row);
        rows.mark_output();
      };
      for (int64_t i = 0; i < answers; ++i) add(prompt + 1 + i, 1);
      for (int64_t i = 0; i < prompts; ++i) add(prompt, prompt);
      const auto padded = StagedRows::Sizes::coarse(rows);
      ASSERT_GE(padded.rows, rows.size());
      ASSERT_LT(padded.rows, std::max<int64_t>(65, 2 * rows.size()));
      ASSERT_GE(padded.sequences, answers + prompts);
      ASSERT_GE(padded.outputs, answers + prompts);
      ASSERT_GE(padded.pages, (prompt + answers + page_rows - 1) / page_rows);
      sizes.insert(padded);
    }
  EXPECT_LE(sizes.size(), 12U);
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

TEST(GenerationBatch, AnswersDoNotDependOnPagesPassesAndSharedPrefixes) {
  EXPECT_GT(expect_answers_in_any_pages(tiny_config()).shared_rows, 300);
}

TEST(GenerationBatch, PromptsWithAdaptersHaveTheAnswersOfEachAlone) {
  EXPECT_GT(expect_answers_in_any_pages(tiny_config(), true).shared_rows, 100);
  EXPECT_EQ(expect_answers_in_any_pages(recurrent_config(), true).shared_rows, 0);
}

TEST(GenerationBatch, AnswersOfConvolutionsDoNotDependOnPagesPassesAndSharedPrefixes) {
  EXPECT_GT(expect_answers_in_any_pages(convolving_config()).shared_rows, 300);
}

TEST(GenerationBatch, AnswersOfDeltaRulesDoNotDependOnPagesAndPasses) {
  EXPECT_EQ(expect_answers_in_any_pages(recurrent_config()).shared_rows, 0);
}

TEST(GenerationBatch, TheNextTurnSharesTheRowsOfTheLastOne) {
  Tiny tiny(tiny_config(), at::kFloat);
  Prompt first = mixed_prompts(2, 12)[1];
  ASSERT_TRUE(first.visual.defined());
  first.visual_keys = {"picture"};
  first.max_tokens = 20;
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.reserved_rows = 512, .page_rows = 4});
  batch.add(first);
  Prompt second = first;
  const auto answer = batch.finish().at(0);
  EXPECT_EQ(answer.shared_rows, 0);
  second.tokens.insert(second.tokens.end(), answer.tokens.begin(), answer.tokens.end());
  second.tokens.insert(second.tokens.end(), {4, 5, 6});
  batch.add(second);
  const auto next = batch.finish().at(0);
  const int64_t rows = first.visual.size(0) + std::ssize(first.tokens) + 19; // the last token has not been read
  EXPECT_EQ(next.shared_rows, rows / 4 * 4);
  EXPECT_EQ(next.tokens, one_by_one(tiny, {second}, {}).at(0));
  batch.clear_prefix_cache();
  batch.add(second);
  const auto anew = batch.finish().at(0);
  EXPECT_EQ(anew.shared_rows, 0) << "of weights that may have changed";
  EXPECT_EQ(anew.tokens, next.tokens);
}

TEST(GenerationBatch, SpeculationChangesTheStepsAndNotTheAnswers) {
  Tiny tiny(tiny_config(), at::kFloat);
  auto prompts = mixed_prompts(8, 21);
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].max_tokens = 60; // a model of random weights soon repeats itself
    if (i % 4 == 3) prompts[i].sampling = {.temperature = 0.4, .seed = 5, .answer = i};
  }
  const auto run = [&](int64_t drafts) {
    GenerationBatch batch(tiny.model, *tiny.operations, {}, {.draft_tokens = drafts});
    for (const Prompt& prompt : prompts) batch.add(prompt);
    int64_t steps = 0;
    while (batch.step()) ++steps;
    const auto [proposed, accepted] = batch.draft_counts();
    EXPECT_LE(accepted, proposed);
    EXPECT_EQ(accepted > 0, drafts > 0);
    return std::pair(steps, tokens_of(batch.finish()));
  };
  const auto plain = run(0), speculated = run(4);
  EXPECT_EQ(speculated.second, plain.second);
  EXPECT_LT(speculated.first, plain.first);
}

TEST(GenerationBatch, LogprobsAreThoseOfAPlainPass) {
  Tiny tiny;
  auto prompts = mixed_prompts(3, 7);
  for (Prompt& prompt : prompts) prompt.max_tokens = 4;
  prompts[1].top_logprobs = 3;
  prompts[2].top_logprobs = 0;
  GenerationBatch batch(tiny.model, *tiny.operations, {});
  for (const Prompt& prompt : prompts) batch.add(prompt);
  const auto answers = batch.finish();
  EXPECT_TRUE(answers[0].logprobs.empty());
  for (size_t i = 1; i < 3; ++i) {
    ASSERT_EQ(answers[i].logprobs.size(), 4u);
    for (size_t token = 0; token < 4; ++token) {
      const auto& tokens = answers[i].tokens;
      const at::Tensor expected =
          logits_of_a_plain_pass(tiny, prompts[i],
                                 {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(token)})
              .softmax(0)
              .log();
      const TokenLogprobs& found = answers[i].logprobs[token];
      EXPECT_NEAR(found.chosen, expected[tokens[token]].item<double>(), 1e-9);
      ASSERT_EQ(std::ssize(found.top), *prompts[i].top_logprobs);
      for (const auto& [id, logprob] : found.top) EXPECT_LE(logprob, found.chosen) << "greedy";
      for (const auto& [id, logprob] : found.top) EXPECT_NEAR(logprob, expected[id].item<double>(), 1e-9);
    }
  }
}

// In any number of passes, beside prompts that are not scored, and where their pages are taken by others.
void expect_scores_of_plain_passes(const ModelConfig& config, int64_t draft_tokens) {
  Tiny tiny(config, at::kFloat);
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Dice dice(seed);
    auto prompts = mixed_prompts(6, seed);
    std::map<size_t, std::vector<GeneratedToken>> scores;
    for (size_t i = 0; i < prompts.size(); i += 3) { // of text alone
      prompts[i].top_logprobs = 2;
      prompts[i].tokens.insert(prompts[i].tokens.end(), 20, dice.upto(0, 52));
    }
    const auto expected = one_by_one(tiny, prompts, {});
    std::optional<train::FakeRuntime> device;
    if (seed % 2 == 0) device.emplace();
    GenerationBatch batch(tiny.model, *tiny.operations, {},
                          {.cache_rows = dice.upto(1, 100),
                           .page_rows = dice.upto(1, 16),
                           .prefill_rows = dice.upto(1, 40),
                           .draft_tokens = dice.upto(0, 1) * draft_tokens,
                           .outlives_long_prompts = seed % 3 == 0});
    for (size_t i = 0; i < prompts.size(); ++i) {
      Prompt prompt = prompts[i];
      if (i % 3 == 0)
        prompt.on_scores = [&scores, i](std::vector<GeneratedToken> tokens) {
          EXPECT_TRUE(scores.emplace(i, std::move(tokens)).second) << "once";
        };
      batch.add(prompt);
      for (int64_t steps = dice.upto(0, 3); steps > 0; --steps) batch.step();
    }
    EXPECT_EQ(tokens_of(batch.finish()), expected) << "schedule " << seed;
    preemptions += batch.counts().preemptions;
    for (size_t i = 0; i < prompts.size(); i += 3) {
      const std::vector<int64_t>& tokens = prompts[i].tokens;
      ASSERT_EQ(scores[i].size() + 1, tokens.size()) << "schedule " << seed;
      const at::Tensor rows = rows_of_a_plain_pass(tiny, prompts[i], {}).log_softmax(1);
      for (size_t place = 1; place < tokens.size(); ++place) {
        const at::Tensor plain = rows[static_cast<int64_t>(place) - 1];
        const GeneratedToken& scored = scores[i][place - 1];
        EXPECT_EQ(scored.id, tokens[place]);
        EXPECT_NEAR(scored.logprobs->chosen, plain[tokens[place]].item<double>(), 1e-4) << "schedule " << seed;
        ASSERT_EQ(scored.logprobs->top.size(), 2u);
        EXPECT_NEAR(scored.logprobs->top[0].second, plain.max().item<double>(), 1e-4);
      }
    }
  }
  EXPECT_GT(preemptions, 0);
}

TEST(GenerationBatch, ScoresOfAPromptAreThoseOfPlainPasses) {
  expect_scores_of_plain_passes(tiny_config(), 4);
}

TEST(GenerationBatch, ScoresOfAPromptWithStatesAreThoseOfPlainPasses) {
  expect_scores_of_plain_passes(carrying_config(), 0);
}

// Beside the likeliest tokens of plain passes that may follow.
TEST(GenerationBatch, StopRulesSayWhatEndsAnAnswer) {
  Tiny tiny;
  auto prompts = mixed_prompts(9, 12);
  for (Prompt& prompt : prompts) prompt.max_tokens = 14;
  const auto free = one_by_one(tiny, prompts, {});
  const int64_t end = free[0][4], other = free[1][6];
  for (size_t i = 0; i < prompts.size(); ++i)
    prompts[i].stop = {i % 3 == 1, i % 3 == 2 ? 10 : 0, i % 2 == 1 ? std::vector{other} : std::vector<int64_t>()};
  const auto expected = [&](const Prompt& prompt) {
    const auto ends = [&](int64_t token) {
      return (token == end && !prompt.stop.ignore_eos) || (token == other && !prompt.stop.stop_token_ids.empty());
    };
    std::vector<int64_t> answer;
    while (std::ssize(answer) < prompt.max_tokens && (answer.empty() || !ends(answer.back()))) {
      at::Tensor logits = logits_of_a_plain_pass(tiny, prompt, answer);
      if (std::ssize(answer) < prompt.stop.min_tokens)
        for (const int64_t token : {end, other})
          if (ends(token)) logits[token].fill_(-1e9);
      answer.push_back(logits.argmax().item<int64_t>());
    }
    return answer;
  };
  std::vector<std::vector<int64_t>> all;
  for (const Prompt& prompt : prompts) all.push_back(expected(prompt));
  EXPECT_NE(all, free);
  EXPECT_EQ(together(tiny, prompts, {end}, 8192), all);
  GenerationBatch speculating(tiny.model, *tiny.operations, {end}, {.draft_tokens = 3});
  for (const Prompt& prompt : prompts) speculating.add(prompt);
  EXPECT_EQ(tokens_of(speculating.finish()), all);
  train::FakeRuntime device;
  EXPECT_EQ(together(tiny, prompts, {end}, 8192), all) << "while passes run ahead";
}

TEST(GenerationBatch, StopRulesOfTokensThatAreNoneAreRefused) {
  Tiny tiny(tiny_config(), at::kFloat);
  std::vector<int64_t> every(53);
  std::iota(every.begin(), every.end(), 0);
  for (const auto& tokens : {std::vector<int64_t>{53}, {-1}, every}) {
    Prompt prompt{.tokens = {1}, .stop = {.stop_token_ids = tokens}};
    GenerationBatch batch(tiny.model, *tiny.operations, {});
    EXPECT_THROW(batch.add(prompt), Error);
  }
}

// Inside of a string nothing changes from token to token.
TEST(GenerationBatch, MasksAreCopiedOncePerStateOfTheGrammar) {
  Tiny tiny;
  const std::string letters = "\"abcdefghijklmnopqrstuvwxyz0123456789 ,.:;{}[]ABCDEFG";
  const auto table = std::make_shared<const grammar::TokenTable>(
      53, [&](int64_t id) { return std::string_view(letters).substr(static_cast<size_t>(id), 1); });
  const auto texts = std::make_shared<grammar::ConstrainedTexts>(
      table,
      std::make_shared<const grammar::Grammar>(grammar::of_json_schema(nlohmann::ordered_json{{"type", "string"}})));
  Prompt prompt{.tokens = {4, 8}, .max_tokens = 24, .sampling = {.temperature = 1.5, .seed = 2}};
  GenerationBatch batch(tiny.model, *tiny.operations, {});
  for (uint64_t answer = 0; answer < 3; ++answer) {
    prompt.constraint = std::make_shared<grammar::TokenConstraint>(texts);
    prompt.sampling.answer = answer;
    batch.add(prompt);
  }
  int64_t tokens = 0;
  for (const auto& answer : tokens_of(batch.finish())) {
    grammar::TokenConstraint followed(texts);
    for (const int64_t token : answer) {
      EXPECT_TRUE(followed.allowed()[static_cast<size_t>(token)]);
      followed.advance(token);
    }
    tokens += std::ssize(answer);
  }
  EXPECT_GT(tokens, 30);
  EXPECT_LE(batch.masks_copied(), 2) << "before the string and inside of it";
}

} // namespace
} // namespace fvlm::infer
