// The scheduler beside a decoder whose keys are the rows themselves: a row reads its sequence through the pages that
// the pass names, finds there what it has to find, and the answer follows from it. Schedules are random: prompts that
// begin alike, arrive, are cancelled and continued as the next turn, with fewer pages than they need together.
#include "infer/scheduler.h"
#include "model/pack.h"

#include <fmt/format.h>

#include <map>
#include <random>
#include <set>
namespace fvlm::infer {
namespace {

constexpr uint64_t start = 1469598103934665603u;

// Of all rows up to one.
uint64_t digest(uint64_t before, uint64_t row) {
  before = (before ^ row) * 0x9e3779b97f4a7c15u;
  return before ^ before >> 29;
}
int64_t token_after(uint64_t text) {
  return static_cast<int64_t>(text >> 20) & 7;
}

// What a request is, whatever the scheduler does with it.
struct Request {
  Scheduler::Prompt prompt;
  std::vector<uint64_t> contents; // of its rows: a visual row is what its frame and place are, or like no other
  int64_t max_tokens = 0;
  std::vector<int64_t> answer; // so far
  std::set<int64_t> scored;    // rows

  std::vector<uint64_t> digests() const {
    std::vector<uint64_t> all;
    for (const uint64_t content : contents) all.push_back(digest(all.empty() ? start : all.back(), content));
    for (const int64_t token : answer) all.push_back(digest(all.back(), static_cast<uint64_t>(token)));
    return all;
  }
};

// One request after the other, without pages.
std::vector<int64_t> answer_alone(Request request) {
  uint64_t text = request.digests().back();
  std::vector<int64_t> answer;
  for (int64_t i = 0; i < request.max_tokens; ++i) {
    answer.push_back(token_after(text));
    text = digest(text, static_cast<uint64_t>(answer.back()));
  }
  return answer;
}

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : dice_(seed), limits_{upto(1, 5), upto(1, 12), 0, upto(1, 6)}, scheduler_(limits_) {
    const int64_t pages = upto((most_rows + limits_.page_rows - 1) / limits_.page_rows, 60 / limits_.page_rows);
    scheduler_.resize(pages);
    cells_.resize(static_cast<size_t>((pages + 1) * limits_.page_rows));
    for (auto& base : bases_)
      for (int64_t i = 0; i < 20; ++i) base.push_back(upto(0, 3) == 0 ? visual_placeholder : upto(0, 7));
  }

  // Runs to the end of all requests. Fills in what happened.
  void run() {
    int64_t to_come = upto(1, 7);
    while (to_come > 0 || !open_.empty()) {
      for (; to_come > 0 && upto(0, 2) == 0; --to_come) arrive();
      if (!open_.empty() && upto(0, 14) == 0) cancel();
      const bool had_work = !open_.empty();
      ASSERT_EQ(step(), had_work);
      ASSERT_NO_FATAL_FAILURE(check_accounts());
    }
    ASSERT_TRUE(scheduler_.pages_in_use().empty());
    ASSERT_EQ(scheduler_.pool().available(), scheduler_.pool().total()) << "a page is lost";
  }

  SchedulerCounts counts() const { return scheduler_.counts(); }
  int64_t wrong = 0, finished = 0, cancelled = 0, chunks = 0, accepted = 0, scored = 0;

 private:
  static constexpr int64_t most_rows = 30;

  int64_t upto(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(dice_); }

  void arrive() {
    Request request;
    std::vector<int64_t>& rows = request.prompt.rows;
    if (!history_.empty() && upto(0, 2) == 0) { // the next turn of a conversation
      const Request& last = history_[static_cast<size_t>(upto(0, std::ssize(history_) - 1))];
      request.prompt = last.prompt;
      request.contents = last.contents;
      rows.insert(rows.end(), last.answer.begin(), last.answer.end());
      request.contents.insert(request.contents.end(), last.answer.begin(), last.answer.end());
      append(request, {upto(0, 7), upto(0, 7)});
    } else {
      const auto& base = bases_[static_cast<size_t>(upto(0, 1))];
      const std::vector<int64_t> begin(base.begin(), base.begin() + upto(0, 18));
      const int64_t visual = std::count(begin.begin(), begin.end(), visual_placeholder);
      each_ = visual % 2 == 0 ? 2 : 1;
      if (upto(0, 2) > 0) // other frames at times
        for (int64_t i = 0; i < visual / each_; ++i)
          request.prompt.visual_keys.push_back(fmt::format("frame {}", upto(0, 9) == 0 ? 99 : i));
      append(request, begin);
      append(request, {upto(0, 7), upto(0, 7)});
    }
    rows.resize(std::min<size_t>(rows.size(), most_rows - 1));
    request.contents.resize(rows.size());
    const int64_t visual = std::count(rows.begin(), rows.end(), visual_placeholder);
    if (visual == 0) request.prompt.visual_keys.clear();
    request.max_tokens = upto(1, std::min<int64_t>(12, most_rows - std::ssize(rows)));
    request.prompt.number = number_++;
    request.prompt.scored_rows = upto(0, 2) == 0 ? std::ssize(rows) - 1 : 0;
    request.prompt.max_rows = std::ssize(rows) + request.max_tokens;
    scheduler_.add(request.prompt);
    open_.emplace(request.prompt.number, std::move(request));
  }

  void append(Request& request, const std::vector<int64_t>& rows) {
    for (const int64_t row : rows) {
      const int64_t visual = std::count(request.prompt.rows.begin(), request.prompt.rows.end(), visual_placeholder);
      uint64_t content = static_cast<uint64_t>(row);
      if (row == visual_placeholder && request.prompt.visual_keys.empty())
        content = 1000000 + unique_++;
      else if (row == visual_placeholder)
        content = 1000 + std::hash<std::string>()(request.prompt.visual_keys[static_cast<size_t>(visual / each_)]) * 2 +
                  static_cast<uint64_t>(visual % each_);
      request.prompt.rows.push_back(row);
      request.contents.push_back(content);
    }
  }

  void cancel() {
    const auto chosen = std::next(open_.begin(), upto(0, std::ssize(open_) - 1));
    ASSERT_TRUE(scheduler_.remove(chosen->first));
    ASSERT_FALSE(scheduler_.remove(chosen->first));
    open_.erase(chosen);
    ++cancelled;
  }

  // What may follow, some of it right.
  void draft() {
    for (const int64_t number : scheduler_.decoding()) {
      const Request& request = open_.at(number);
      const int64_t left = request.max_tokens - std::ssize(request.answer) - 1;
      if (left < 1 || upto(0, 2) == 0) continue;
      Request alone = request;
      alone.answer.clear();
      const auto answer = answer_alone(alone);
      std::vector<int64_t> drafts(answer.begin() + std::ssize(request.answer),
                                  answer.begin() + std::ssize(request.answer) + upto(1, left));
      if (upto(0, 1) == 0) drafts[static_cast<size_t>(upto(0, std::ssize(drafts) - 1))] = upto(0, 7);
      scheduler_.draft(number, drafts);
    }
  }

  bool step() {
    draft();
    const Scheduler::Pass pass = scheduler_.next();
    if (pass.parts.empty()) return false;
    size_t row = 0;
    std::set<int32_t> written;
    for (size_t part = 0; part < pass.parts.size(); ++part) { // all rows are written before any is read
      auto digests = open_.at(pass.parts[part].number).digests();
      const auto& drafts = pass.parts[part].drafts;
      for (const int64_t draft : drafts) digests.push_back(digest(digests.back(), static_cast<uint64_t>(draft)));
      for (int64_t i = 0; i < pass.parts[part].count + std::ssize(drafts); ++i, ++row) {
        EXPECT_EQ(pass.rows.positions[row], pass.parts[part].begin + i);
        EXPECT_EQ(pass.rows.sequences[row], static_cast<int32_t>(part));
        EXPECT_GE(pass.rows.places[row], limits_.page_rows) << "the padding page is nobody's";
        EXPECT_TRUE(written.insert(pass.rows.places[row]).second) << "two rows are written to one place";
        cells_[static_cast<size_t>(pass.rows.places[row])] = digests[static_cast<size_t>(pass.rows.positions[row])];
      }
    }
    row = 0;
    std::vector<int32_t> outputs;
    int64_t all_scored = 0;
    for (size_t part = 0; part < pass.parts.size(); ++part) {
      const auto& [number, begin, count, is_continued, drafts, scored] = pass.parts[part];
      for (int64_t i = 0; i < scored; ++i) {
        outputs.push_back(static_cast<int32_t>(row) + static_cast<int32_t>(i));
        open_.at(number).scored.insert(begin + i);
      }
      all_scored += scored;
      row += static_cast<size_t>(count);
      for (size_t i = 0; is_continued && i <= drafts.size(); ++i) outputs.push_back(static_cast<int32_t>(row + i) - 1);
      const uint64_t text = read(pass.rows.pages[part], open_.at(number), begin + count);
      chunks += !is_continued;
      bool is_right = is_continued && take(number, token_after(text));
      for (size_t i = 0; i < drafts.size(); ++i, ++row) {
        is_right = is_right && open_.at(number).answer.back() == drafts[i];
        if (!is_right) continue;
        ++accepted;
        is_right = take(number, token_after(read(pass.rows.pages[part], open_.at(number),
                                                 begin + count + 1 + static_cast<int64_t>(i))));
      }
    }
    EXPECT_EQ(row, static_cast<size_t>(pass.rows.size()));
    EXPECT_EQ(outputs, pass.rows.outputs);
    EXPECT_LE(all_scored, limits_.scored_rows);
    scored += all_scored;
    return true;
  }

  // What the last of so many rows finds in its sequence's pages.
  uint64_t read(const std::vector<int32_t>& pages, const Request& request, int64_t rows) {
    const auto expected = request.digests();
    uint64_t found = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const auto page = static_cast<size_t>(i / limits_.page_rows);
      found = cells_[static_cast<size_t>(pages[page] * limits_.page_rows + i % limits_.page_rows)];
      wrong += found != expected[static_cast<size_t>(i)];
    }
    return found;
  }

  // Returns whether the answer goes on.
  bool take(int64_t number, int64_t token) {
    Request& request = open_.at(number);
    request.answer.push_back(token);
    EXPECT_EQ(std::ssize(request.scored), request.prompt.scored_rows) << "before the first token of the answer";
    scheduler_.append(number, token);
    if (std::ssize(request.answer) < request.max_tokens) return true;
    Request alone = request;
    alone.answer.clear();
    EXPECT_EQ(request.answer, answer_alone(alone));
    EXPECT_TRUE(scheduler_.remove(number));
    history_.push_back(std::move(request));
    open_.erase(number);
    ++finished;
    return false;
  }

  void check_accounts() {
    std::map<int32_t, int64_t> held;
    for (const int32_t page : scheduler_.pages_in_use()) ++held[page];
    const PagePool& pool = scheduler_.pool();
    ASSERT_EQ(std::ssize(held) + pool.free() + pool.cached(), pool.total());
    for (int32_t page = 1; page <= pool.total(); ++page)
      ASSERT_EQ(pool.references(page), held.contains(page) ? held[page] : 0) << "page " << page;
  }

  std::mt19937_64 dice_;
  SchedulerLimits limits_;
  Scheduler scheduler_;
  std::vector<uint64_t> cells_; // of all pages
  std::array<std::vector<int64_t>, 2> bases_;
  int64_t each_ = 1; // visual rows of a frame
  std::map<int64_t, Request> open_;
  std::vector<Request> history_;
  int64_t number_ = 0;
  uint64_t unique_ = 0;
};

TEST(Scheduler, NoScheduleLosesAPageOrChangesAnAnswer) {
  int64_t finished = 0, cancelled = 0, chunks = 0, preemptions = 0, shared = 0, accepted = 0, scored = 0;
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    Schedule schedule(seed);
    ASSERT_NO_FATAL_FAILURE(schedule.run()) << "schedule " << seed;
    ASSERT_EQ(schedule.wrong, 0) << "rows read from another sequence's pages; schedule " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "schedule " << seed;
    accepted += schedule.accepted, scored += schedule.scored;
    finished += schedule.finished, cancelled += schedule.cancelled, chunks += schedule.chunks;
    preemptions += schedule.counts().preemptions, shared += schedule.counts().shared_rows;
  }
  // Otherwise the schedules would not have met what they are for.
  EXPECT_GT(finished, 20000);
  EXPECT_GT(cancelled, 2000);
  EXPECT_GT(chunks, 10000);
  EXPECT_GT(preemptions, 300);
  EXPECT_GT(shared, 10000);
  EXPECT_GT(accepted, 10000);
  EXPECT_GT(scored, 50000);
}

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
