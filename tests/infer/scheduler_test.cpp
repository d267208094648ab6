// The scheduler step by step: what a pass has of which prompts, and what they share.
#include "infer/scheduler.h"
#include "model/pack.h"

#include <gtest/gtest.h>

#include <map>

namespace fvlm::infer {
namespace {

Scheduler::Prompt prompt(int64_t number, std::vector<int64_t> rows, int64_t max_tokens,
                         std::vector<std::string> keys = {}) {
  const int64_t length = std::ssize(rows);
  return {number, std::move(rows), length + max_tokens, std::move(keys)};
}
std::vector<int64_t> rows_of(int64_t count, int64_t first = 0) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = first + i;
  return rows;
}

TEST(Scheduler, ALongPromptDoesNotStallOthers) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 8});
  scheduler.resize(64);
  scheduler.add(prompt(0, rows_of(3), 20));
  scheduler.add(prompt(1, rows_of(30, 100), 5));
  std::vector<int64_t> of_long;
  for (int64_t step = 0; step < 5; ++step) {
    const auto pass = scheduler.next();
    ASSERT_EQ(pass.parts.front().number, 0);
    EXPECT_TRUE(pass.parts.front().is_continued) << "it has a token in every step";
    for (const auto& part : pass.parts) {
      if (part.number == 1) of_long.push_back(part.count);
      if (part.is_continued) scheduler.append(part.number, 7);
    }
  }
  EXPECT_EQ(of_long, (std::vector<int64_t>{5, 8, 8, 8, 1}));
}

TEST(Scheduler, MoreRowsOfPromptsAreReadWhereNoAnswerWaits) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 8, .idle_prefill_rows = 20});
  scheduler.resize(64);
  scheduler.add(prompt(0, rows_of(18), 20));
  scheduler.add(prompt(1, rows_of(30, 100), 5));
  EXPECT_EQ(scheduler.next().rows.size(), 20);
  scheduler.append(0, 7);
  EXPECT_EQ(scheduler.next().rows.size(), 9) << "one of the answer";
}

// A page whose last token is not known yet has no content that another prompt could ask for.
TEST(Scheduler, PagesArePublishedWhenTheirTokensAreKnown) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100});
  scheduler.resize(64);
  scheduler.add(prompt(0, rows_of(7), 20));
  (void)scheduler.next();
  ASSERT_TRUE(scheduler.can_run_ahead());
  scheduler.append(0, Scheduler::unknown_token);
  const auto pass = scheduler.next();
  EXPECT_EQ(pass.rows.positions, std::vector<int32_t>{7});
  EXPECT_EQ(pass.rows.tokens, std::vector<int32_t>{0});
  auto same = rows_of(8);
  same.insert(same.end(), {50, 51});
  scheduler.append(0, 7);
  EXPECT_EQ(scheduler.rows(0), rows_of(8));
  scheduler.add(prompt(1, same, 2));
  EXPECT_TRUE(scheduler.can_run_ahead()) << "a prompt that waits may join";
  scheduler.append(0, 8);
  (void)scheduler.next();
  EXPECT_EQ(scheduler.counts().shared_rows, 8);
}

TEST(Scheduler, PromptsThatBeginAlikeShareFullPagesInOnePass) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100});
  scheduler.resize(64);
  for (int64_t i = 0; i < 3; ++i) scheduler.add(prompt(i, rows_of(14), 2));
  const auto pass = scheduler.next();
  ASSERT_EQ(pass.parts.size(), 3u);
  EXPECT_EQ(pass.parts[0].count, 14);
  EXPECT_EQ(pass.parts[1].count, 2) << "12 rows are in three full pages of the first one";
  EXPECT_EQ(pass.parts[2].begin, 12);
  EXPECT_EQ(scheduler.counts().shared_rows, 24);
  EXPECT_EQ(scheduler.counts().pages - scheduler.counts().free_pages, 3 + 3);
}

std::vector<int64_t> numbers_of(const Scheduler::Pass& pass) {
  std::vector<int64_t> numbers;
  for (const Scheduler::Part& part : pass.parts) numbers.push_back(part.number);
  return numbers;
}

TEST(Scheduler, GroupsTakeTurnsAndAdaptersShareNoPages) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100});
  scheduler.resize(64);
  for (int64_t i = 0; i < 6; ++i) {
    scheduler.add(prompt(i, rows_of(14), 5));
    scheduler.add([&] {
      Scheduler::Prompt made = prompt(10 + i, rows_of(14), 5);
      made.adapter = made.group = 1 + i % 2;
      return made;
    }());
  }
  std::vector<std::vector<int64_t>> passes;
  for (int64_t step = 0; step < 6; ++step) {
    const auto pass = scheduler.next();
    EXPECT_FALSE(pass.rows.are_mixed());
    EXPECT_EQ(pass.rows.adapters.front(), step % 3);
    passes.push_back(numbers_of(pass));
    for (const auto& part : pass.parts) scheduler.append(part.number, 7);
  }
  EXPECT_EQ(passes[0], (std::vector<int64_t>{0, 1, 2, 3, 4, 5})) << "past prompts of others that came before";
  EXPECT_EQ(passes[1], (std::vector<int64_t>{10, 12, 14}));
  EXPECT_EQ(passes[2], (std::vector<int64_t>{11, 13, 15}));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(passes[i + 3], passes[i]);
  EXPECT_EQ(scheduler.counts().shared_rows, 12 * (2 + 2 + 5)) << "of the first one of each adapter";
}

TEST(Scheduler, AdaptersOfOneGroupAreInOnePassAndShareNoPages) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100});
  scheduler.resize(64);
  for (int64_t i = 0; i < 6; ++i) {
    Scheduler::Prompt made = prompt(i, rows_of(14), 5);
    made.adapter = i % 3;
    scheduler.add(made);
  }
  for (int64_t step = 0; step < 3; ++step) {
    const auto pass = scheduler.next();
    EXPECT_TRUE(pass.rows.are_mixed());
    EXPECT_EQ(pass.rows.adapters, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(numbers_of(pass), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
    for (const auto& part : pass.parts) scheduler.append(part.number, 7);
  }
  EXPECT_EQ(scheduler.counts().shared_rows, 3 * 12) << "each with the first one of its adapter";
}

// Only where the pages suffice for both, so that none waits for ever.
TEST(Scheduler, APromptThatWaitsForPagesIsNotOvertakenByOtherGroups) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100});
  scheduler.resize(20);
  scheduler.add(prompt(0, rows_of(16), 4));
  EXPECT_EQ(numbers_of(scheduler.next()), std::vector<int64_t>{0});
  scheduler.append(0, 7);
  Scheduler::Prompt large = prompt(1, rows_of(60, 100), 4);
  large.adapter = large.group = 1;
  scheduler.add(large);                         // needs 15 pages, and one more for each that runs
  scheduler.add(prompt(2, rows_of(8, 200), 4)); // has room alone
  EXPECT_EQ(numbers_of(scheduler.next()), std::vector<int64_t>{0});
  scheduler.append(0, 7);
  scheduler.remove(0);
  EXPECT_EQ(numbers_of(scheduler.next()), std::vector<int64_t>{1});
  scheduler.append(1, 7);
  EXPECT_EQ(numbers_of(scheduler.next()), std::vector<int64_t>{2});
}

// Those of a prompt that is read in both directions, also its last one by itself; rows of the answer have windows.
TEST(Scheduler, RowsOfAWholePromptHaveNoWindow) {
  Scheduler scheduler({.page_rows = 2, .prefill_rows = 3});
  scheduler.resize(64);
  for (const int64_t number : {0, 1}) {
    Scheduler::Prompt made = prompt(number, {1, 2, 3, 4, 5}, 3);
    made.bidirectional_rows = model::BidirectionalRows::prompt;
    scheduler.add(std::move(made));
    const auto pass = scheduler.next();
    EXPECT_EQ(pass.parts.back().begin, 4 * number) << "the second one takes two pages of the first";
    EXPECT_TRUE(pass.rows.has_ranges);
    EXPECT_EQ(pass.rows.first, std::vector<int32_t>(static_cast<size_t>(pass.rows.size()), 0));
    scheduler.append(number, 7);
    const auto answer = scheduler.next();
    EXPECT_EQ(answer.rows.first, std::vector<int32_t>{5});
    EXPECT_FALSE(answer.rows.has_ranges);
    scheduler.remove(number);
  }
}

// Visual rows side by side are read in one pass, in which each attends to the last of them.
TEST(Scheduler, RowsThatAttendToEachOtherAreNotDivided) {
  const int64_t v = visual_placeholder;
  const auto mutual = [&](int64_t number, std::vector<std::string> frames) {
    Scheduler::Prompt made = prompt(number, {1, 2, v, v, v, v, 3, v, v, 4}, 2, std::move(frames));
    made.bidirectional_rows = model::BidirectionalRows::visual;
    return made;
  };
  Scheduler scheduler({.page_rows = 2, .prefill_rows = 3});
  scheduler.resize(64);
  scheduler.add(mutual(0, {"a", "b", "c"}));
  const auto first = scheduler.next(), second = scheduler.next();
  EXPECT_EQ(first.rows.lengths, (std::vector<int32_t>{1, 2, 6, 6, 6, 6})) << "three rows, and those of the image";
  EXPECT_TRUE(first.rows.has_ranges);
  EXPECT_EQ(second.rows.lengths, (std::vector<int32_t>{7, 9, 9})) << "what ends with an image";
  scheduler.add(mutual(1, {"a", "d", "c"}));
  (void)scheduler.next();
  (void)scheduler.next();
  EXPECT_EQ(scheduler.shared_rows(1), 2) << "rows of the frame a attend to those of the frame beside it";
  Scheduler whole({.page_rows = 4, .prefill_rows = 100});
  whole.resize(64);
  whole.add(mutual(0, {"a", "b", "c"}));
  whole.add(mutual(1, {"a", "b", "c"}));
  const auto both = whole.next();
  EXPECT_EQ(both.parts[1].begin, 8) << "in the middle of an image";
  EXPECT_EQ(both.rows.lengths, (std::vector<int32_t>{1, 2, 6, 6, 6, 6, 7, 9, 9, 10, 9, 10}));
}

TEST(Scheduler, ScoredPromptsShareNothingOfOthers) {
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100, .scored_rows = 10});
  scheduler.resize(64);
  scheduler.add(prompt(0, rows_of(14), 2));
  scheduler.add(prompt(1, rows_of(14), 2));
  Scheduler::Prompt scored = prompt(2, rows_of(14), 2);
  scored.scored_rows = 13;
  scheduler.add(scored);
  scheduler.add(prompt(3, rows_of(14), 2));
  const auto first = scheduler.next();
  ASSERT_EQ(first.parts.size(), 4u);
  EXPECT_EQ(first.parts[1].count, 2) << "the others do";
  EXPECT_EQ(std::pair(first.parts[2].begin, first.parts[2].scored), std::pair(int64_t{0}, int64_t{10}));
  EXPECT_FALSE(first.parts[2].is_continued);
  for (const int64_t number : {0, 1, 3}) scheduler.append(number, 7);
  const auto second = scheduler.next();
  EXPECT_EQ(second.parts[2].scored, 3);
  EXPECT_EQ(second.parts[2].outputs(), 4) << "and the token that continues it";
}

// Though a pass has more outputs than its limit then.
TEST(Scheduler, ScoredRowsThatAttendToEachOtherAreNotDivided) {
  const int64_t v = visual_placeholder;
  Scheduler scheduler({.page_rows = 4, .prefill_rows = 100, .scored_rows = 3});
  scheduler.resize(64);
  Scheduler::Prompt scored = prompt(0, {1, 2, v, v, v, v, 3, 4, 5}, 2);
  scored.bidirectional_rows = model::BidirectionalRows::visual;
  scored.scored_rows = 8;
  scheduler.add(scored);
  const auto first = scheduler.next();
  EXPECT_EQ(first.rows.lengths, (std::vector<int32_t>{1, 2, 6, 6, 6, 6}));
  EXPECT_EQ(first.parts[0].scored, 6);
  EXPECT_EQ(scheduler.next().rows.lengths, (std::vector<int32_t>{7, 8, 9}));
}

// All rows of a prompt attend to its last one, those of the answer to none behind them.
TEST(Scheduler, PromptsThatAttendToAllOfThemselvesAreReadAtOnce) {
  const auto whole = [&](int64_t number, std::vector<int64_t> rows) {
    Scheduler::Prompt made = prompt(number, std::move(rows), 20);
    made.bidirectional_rows = model::BidirectionalRows::prompt;
    return made;
  };
  Scheduler scheduler({.page_rows = 2, .prefill_rows = 3});
  scheduler.resize(64);
  scheduler.add(whole(0, rows_of(5)));
  EXPECT_EQ(scheduler.next().rows.lengths, (std::vector<int32_t>(5, 5)));
  scheduler.append(0, 7);
  EXPECT_EQ(scheduler.next().rows.lengths, std::vector<int32_t>{6});
  scheduler.add(whole(1, rows_of(5)));
  scheduler.add(whole(2, rows_of(6)));
  (void)scheduler.next();
  (void)scheduler.next();
  EXPECT_EQ(scheduler.shared_rows(1), 4);
  EXPECT_EQ(scheduler.shared_rows(2), 0) << "the same rows before another end";
}

TEST(Scheduler, VisualRowsAreSharedByFrameAndNotByPlace) {
  const int64_t v = visual_placeholder;
  const auto shared_with = [&](const std::vector<std::string>& first, const std::vector<std::string>& second) {
    Scheduler scheduler({.page_rows = 2, .prefill_rows = 100});
    scheduler.resize(64);
    scheduler.add(prompt(0, {1, 2, v, v, v, v, 3, 4, 5}, 2, first));
    scheduler.add(prompt(1, {1, 2, v, v, v, v, 3, 4, 5}, 2, second));
    (void)scheduler.next();
    return scheduler.counts().shared_rows;
  };
  EXPECT_EQ(shared_with({"a", "b"}, {"a", "b"}), 8);
  EXPECT_EQ(shared_with({"a", "b"}, {"a", "c"}), 4);
  EXPECT_EQ(shared_with({"a", "b"}, {"b", "a"}), 2);
  EXPECT_EQ(shared_with({}, {}), 2) << "without keys nobody knows what they are";
}

TEST(Scheduler, TheYoungestGivesItsPagesBackAndIsComputedAgain) {
  Scheduler scheduler({.page_rows = 2, .prefill_rows = 100});
  scheduler.resize(7);
  scheduler.add(prompt(0, rows_of(4), 8));
  scheduler.add(prompt(1, rows_of(3, 50), 8));
  std::map<int64_t, std::vector<int64_t>> tokens;
  for (int64_t step = 0; step < 40; ++step) {
    const auto pass = scheduler.next();
    if (pass.parts.empty()) break;
    for (const auto& part : pass.parts) {
      if (!part.is_continued) continue;
      auto& answer = tokens[part.number];
      EXPECT_EQ(part.begin + part.count, (part.number == 0 ? 4 : 3) + std::ssize(answer));
      answer.push_back(step);
      scheduler.append(part.number, step);
      if (answer.size() == 8) scheduler.remove(part.number);
    }
  }
  EXPECT_EQ(tokens[0], rows_of(8)) << "the oldest one is never held up";
  EXPECT_EQ(tokens[1].size(), 8u);
  EXPECT_GT(scheduler.counts().preemptions, 0);
}

} // namespace
} // namespace fvlm::infer
