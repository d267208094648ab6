// Drafts of a second model: what it proposes depends on the text alone, whatever came before, and answers are the plain
// ones however good or bad its proposals are. Schedules are random.
#include "../model/tiny.h"
#include "infer/generation_batch.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>

namespace fvlm::infer {

using namespace model;

namespace {

// Another model of the same tokens, smaller than the tiny one.
ModelConfig smaller_config() {
  ModelConfig config = tiny_config();
  config.decoder.hidden_size = 12;
  config.decoder.num_attention_heads = 2;
  config.decoder.num_key_value_heads = 1;
  config.decoder.num_hidden_layers = 1;
  return config;
}

std::vector<int64_t> random_tokens(Dice& dice, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(dice.upto(0, 52));
  return tokens;
}

// The draft model beside many texts that grow as it proposes, or differently, that pause, end and begin anew.
class Texts {
 public:
  Texts(Tiny& tiny, uint64_t seed)
      : tiny_(tiny), dice_(seed), limits_{dice_.upto(1, 6), dice_.upto(1, 30)},
        model_(tiny.model, *tiny.operations, limits_, 53) {
    pages_ = (most_rows + limits_.page_rows - 1) / limits_.page_rows + dice_.upto(0, 40 / limits_.page_rows);
    model_.resize(pages_);
  }

  void run() {
    for (int64_t round = 0; round < 25; ++round) {
      if (texts_.size() < 5 && dice_.upto(0, 1) == 0) begin();
      std::vector<DraftModel::Request> requests;
      for (const auto& [number, text] : texts_)
        if (dice_.upto(0, 4) > 0) requests.push_back(request(number, text, dice_.upto(0, 5)));
      const auto drafts = model_.propose(requests);
      for (const DraftModel::Request& each : requests) check(each, drafts);
      for (auto text = texts_.begin(); text != texts_.end();) text = grow(text, drafts);
      ASSERT_NO_FATAL_FAILURE(check_accounts());
    }
    for (const auto& [number, text] : texts_) model_.remove(number);
    const SchedulerCounts counts = model_.counts();
    ASSERT_EQ(counts.free_pages + counts.cached_pages, counts.pages) << "a page is lost";
    preemptions += counts.preemptions, shared_rows += counts.shared_rows;
  }

  int64_t proposed = 0, preemptions = 0, shared_rows = 0, replaced = 0;

 private:
  static constexpr int64_t most_rows = 60;

  struct Text {
    std::vector<int64_t> rows;
    Sampler sampler{Sampling()};
    int64_t drawn = 0;
  };
  using All = std::map<int64_t, Text>;

  void begin() {
    Text text;
    if (texts_.empty() || dice_.upto(0, 1) == 0)
      text.rows = random_tokens(dice_, dice_.upto(1, 25));
    else // as another one
      text.rows = texts_.begin()->second.rows;
    if (std::ssize(text.rows) > most_rows / 2) text.rows.resize(most_rows / 2);
    text.rows.insert(text.rows.begin() + dice_.upto(0, 1), static_cast<size_t>(dice_.upto(0, 3)), visual_placeholder);
    if (dice_.upto(0, 2) == 0) text.sampler = Sampler({.repetition_penalty = 1.1, .temperature = 0.8, .seed = 4});
    texts_.emplace(next_++, std::move(text));
  }

  static DraftModel::Request request(int64_t number, const Text& text, int64_t most) {
    const int64_t left = most_rows - std::ssize(text.rows);
    return {number, text.rows, left, std::min(most, left - 1), text.sampler, text.drawn};
  }

  // By a draft model that has read nothing else and has pages enough.
  void check(const DraftModel::Request& request, const std::map<int64_t, std::vector<int64_t>>& drafts) {
    const auto found = drafts.find(request.number);
    if (found == drafts.end() || found->second.empty()) return;
    DraftModel alone(tiny_.model, *tiny_.operations, {16, 256}, 53);
    alone.resize(8);
    const auto expected = alone.propose({request}).at(request.number);
    ASSERT_LE(found->second.size(), expected.size());
    EXPECT_TRUE(std::equal(found->second.begin(), found->second.end(), expected.begin()))
        << "text " << request.number << " of " << request.rows.size() << " rows";
    proposed += std::ssize(found->second);
  }

  // As drafted, for a while; or a text ends.
  All::iterator grow(All::iterator text, const std::map<int64_t, std::vector<int64_t>>& drafts) {
    const auto found = drafts.find(text->first);
    std::vector<int64_t> tokens = found == drafts.end() ? std::vector<int64_t>() : found->second;
    if (dice_.upto(0, 2) > 0 && !tokens.empty()) {
      tokens.resize(static_cast<size_t>(dice_.upto(0, std::ssize(tokens) - 1)));
      ++replaced;
    }
    tokens.push_back(dice_.upto(0, 52));
    Text& grown = text->second;
    grown.rows.insert(grown.rows.end(), tokens.begin(), tokens.end());
    grown.drawn += std::ssize(tokens);
    if (std::ssize(grown.rows) < most_rows - 6 && dice_.upto(0, 15) > 0) return std::next(text);
    model_.remove(text->first);
    return texts_.erase(text);
  }

  void check_accounts() {
    const SchedulerCounts counts = model_.counts();
    ASSERT_EQ(counts.pages, pages_);
    ASSERT_LE(counts.free_pages + counts.cached_pages, counts.pages);
  }

  Tiny& tiny_;
  Dice dice_;
  SchedulerLimits limits_;
  DraftModel model_;
  int64_t pages_, next_ = 0;
  All texts_;
};

TEST(DraftModel, ProposesByTheTextAlone) {
  Tiny small(smaller_config(), at::kFloat);
  int64_t proposed = 0, preemptions = 0, shared_rows = 0, replaced = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Texts texts(small, seed);
    ASSERT_NO_FATAL_FAILURE(texts.run());
    proposed += texts.proposed, preemptions += texts.preemptions, shared_rows += texts.shared_rows;
    replaced += texts.replaced;
  }
  EXPECT_GT(proposed, 2000);
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(shared_rows, 100);
  EXPECT_GT(replaced, 300);
}

// Prompts behind, around and without visual rows, greedy and drawn.
std::vector<Prompt> mixed_prompts(int64_t count, uint64_t seed) {
  Dice dice(seed);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    prompt.tokens = random_tokens(dice, dice.upto(1, 40));
    const int64_t visual = i % 3 == 2 ? dice.upto(1, 9) : 0;
    if (visual > 0) prompt.visual = ops::random({visual, 24}, seed + static_cast<uint64_t>(i));
    prompt.max_tokens = dice.upto(1, 25);
    if (i % 2 == 1) prompt.sampling = {.temperature = 0.7, .seed = seed, .answer = static_cast<uint64_t>(i)};
  }
  return prompts;
}

struct Outcome {
  std::map<int64_t, std::vector<int64_t>> answers;
  int64_t steps = 0;
  GenerationBatch::DraftCounts drafts;
  SchedulerCounts of_model, of_draft_model;
};

// Prompts arrive while others are answered; one is cancelled.
Outcome answer(Tiny& tiny, const std::vector<Prompt>& prompts, const BatchOptions& options, uint64_t seed,
               std::optional<int64_t> cancelled = {}) {
  Dice dice(seed);
  GenerationBatch batch(tiny.model, *tiny.operations, {7}, options);
  Outcome outcome;
  for (const Prompt& prompt : prompts) {
    batch.add(prompt);
    for (int64_t steps = dice.upto(0, 4); steps > 0; --steps) outcome.steps += batch.step() ? 1 : 0;
  }
  if (cancelled) batch.cancel(*cancelled);
  while (batch.step()) ++outcome.steps;
  for (const GeneratedAnswer& one : batch.finish()) outcome.answers[one.number] = one.tokens;
  outcome.drafts = batch.draft_counts();
  outcome.of_model = batch.counts();
  outcome.of_draft_model = batch.draft_model_counts().value_or(SchedulerCounts());
  return outcome;
}

void expect_plain_answers(const ModelConfig& config) {
  Tiny tiny(config, at::kFloat), small(smaller_config(), at::kFloat);
  int64_t accepted = 0, rejected = 0, preemptions = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Dice dice(seed);
    const auto prompts = mixed_prompts(6, seed);
    const auto plain = answer(tiny, prompts, {}, seed);
    BatchOptions options{.cache_rows = dice.upto(1, 100),
                         .page_rows = dice.upto(1, 16),
                         .prefill_rows = dice.upto(1, 40),
                         .draft_tokens = dice.upto(1, 6),
                         .outlives_long_prompts = seed % 3 == 0};
    options.draft_model = seed % 2 == 0 ? &small.model : &tiny.model;
    const int64_t cancelled = dice.upto(0, 5);
    const auto drafted = answer(tiny, prompts, options, seed, cancelled);
    for (const auto& [number, tokens] : drafted.answers)
      EXPECT_EQ(tokens, plain.answers.at(number)) << "prompt " << number << ", schedule " << seed;
    EXPECT_GE(drafted.answers.size(), prompts.size() - 1);
    for (const SchedulerCounts& counts : {drafted.of_model, drafted.of_draft_model})
      EXPECT_EQ(counts.free_pages + counts.cached_pages, counts.pages) << "schedule " << seed;
    EXPECT_EQ(drafted.of_draft_model.pages, drafted.of_model.pages);
    accepted += drafted.drafts.accepted, rejected += drafted.drafts.proposed - drafted.drafts.accepted;
    preemptions += drafted.of_draft_model.preemptions;
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(rejected, 300);
  EXPECT_GT(preemptions, 0);
}

TEST(DraftModel, AnswersAreThePlainOnesTokenForToken) {
  expect_plain_answers(tiny_config());
}

TEST(DraftModel, AnswersOfConvolutionsAreThePlainOnesTokenForToken) {
  expect_plain_answers(convolving_config());
}

// By the model itself, of texts without visual rows: also where tokens are drawn, since the same numbers draw drafts.
TEST(DraftModel, DraftsOfTheModelItselfAreAllAccepted) {
  Tiny tiny(tiny_config(), at::kFloat);
  std::vector<Prompt> prompts;
  Dice dice(3);
  for (uint64_t i = 0; i < 4; ++i) {
    Prompt& prompt = prompts.emplace_back();
    prompt.tokens = random_tokens(dice, 12);
    prompt.max_tokens = 41;
    if (i % 2 == 1)
      prompt.sampling = {.repetition_penalty = 1.2, .temperature = 0.9, .top_p = 0.95, .seed = 2, .answer = i};
  }
  GenerationBatch batch(tiny.model, *tiny.operations, {}, {.draft_tokens = 4, .draft_model = &tiny.model});
  for (const Prompt& prompt : prompts) batch.add(prompt);
  int64_t steps = 0;
  while (batch.step()) ++steps;
  EXPECT_EQ(batch.draft_counts().accepted, batch.draft_counts().proposed);
  EXPECT_EQ(batch.draft_counts().proposed, 4 * 32);
  EXPECT_EQ(steps, 1 + 8) << "the prompts, and 40 tokens by five";
}

// Tokens that only one of the two has, as where vocabularies are padded differently.
TEST(DraftModel, VocabulariesMayDiffer) {
  Tiny tiny(tiny_config(), at::kFloat);
  for (const int64_t vocabulary : {20, 80}) {
    ModelConfig config = smaller_config();
    config.decoder.vocab_size = vocabulary;
    Tiny small(config, at::kFloat);
    const auto prompts = mixed_prompts(6, 8);
    const auto drafted = answer(tiny, prompts, {.draft_tokens = 3, .draft_model = &small.model}, 8);
    EXPECT_EQ(drafted.answers, answer(tiny, prompts, {}, 8).answers) << vocabulary;
  }
}

} // namespace
} // namespace fvlm::infer
