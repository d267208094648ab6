// The scheduler beside a decoder whose keys are the rows themselves: a row reads its sequence through the pages that
// the pass names, finds there what it has to find, and the answer follows from it. Schedules are random: prompts that
// begin alike, arrive, are cancelled and continued as the next turn, with fewer pages than they need together. And one
// beside a decoder that carries the same from row to row in slots, fewer than there are sequences.
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
    const uint64_t begin = start + static_cast<uint64_t>(prompt.adapter);
    for (const uint64_t content : contents) all.push_back(digest(all.empty() ? begin : all.back(), content));
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
  explicit Schedule(uint64_t seed, bool has_states = false, int64_t adapters = 0)
      : adapters_(adapters), dice_(seed), limits_{upto(1, 5), upto(1, 12), 0, upto(1, 6)}, scheduler_(limits_) {
    const int64_t pages = upto((most_rows + limits_.page_rows - 1) / limits_.page_rows, 60 / limits_.page_rows);
    if (has_states) states_.resize(static_cast<size_t>(1 + upto(1, 4)));
    scheduler_.resize(pages, std::max<int64_t>(0, std::ssize(states_) - 1));
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
    ASSERT_EQ(counts().free_slots, counts().slots) << "a slot is lost";
  }

  SchedulerCounts counts() const { return scheduler_.counts(); }
  int64_t wrong = 0, finished = 0, cancelled = 0, chunks = 0, accepted = 0, scored = 0, restarted = 0, full = 0;

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
    if (adapters_ > 0) request.prompt.adapter = upto(0, adapters_), request.prompt.group = request.prompt.adapter / 2;
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
    if (!states_.empty()) return;
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
      const Request& request = open_.at(pass.parts[part].number);
      EXPECT_EQ(request.prompt.adapter, pass.rows.adapters[part]);
      EXPECT_EQ(request.prompt.group, open_.at(pass.parts[0].number).prompt.group);
      auto digests = request.digests();
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
    if (!states_.empty()) carry(pass);
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
    EXPECT_EQ(pass.rows.has_states, !states_.empty());
    EXPECT_EQ(outputs, pass.rows.outputs);
    EXPECT_LE(all_scored, limits_.scored_rows);
    scored += all_scored;
    return true;
  }

  // Goes on with the state that each sequence has left in its slot, by its rows of this pass.
  void carry(const Scheduler::Pass& pass) {
    std::set<int32_t> slots;
    for (size_t part = 0; part < pass.parts.size(); ++part) {
      const auto& [number, begin, count, is_continued, drafts, scored] = pass.parts[part];
      const int32_t slot = pass.rows.slots[part];
      EXPECT_TRUE(slots.insert(slot).second) << "two sequences have one slot";
      ASSERT_GT(slot, 0) << "the padding's slot is nobody's";
      const auto digests = open_.at(number).digests();
      uint64_t& state = states_.at(static_cast<size_t>(slot));
      if (begin > 0)
        wrong += state != digests[static_cast<size_t>(begin - 1)];
      else if (!begun_.insert(number).second)
        ++restarted;
      state = digests[static_cast<size_t>(begin + count - 1)];
    }
    full += scheduler_.counts().free_slots == 0 && scheduler_.is_waiting();
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

  int64_t adapters_; // besides the model without any
  std::mt19937_64 dice_;
  SchedulerLimits limits_;
  Scheduler scheduler_;
  std::vector<uint64_t> cells_;  // of all pages
  std::vector<uint64_t> states_; // by slot; empty where none are carried
  std::set<int64_t> begun_;      // numbers, where states are carried
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

TEST(Scheduler, NoScheduleSharesPagesOfOneAdapterWithAnother) {
  int64_t finished = 0, preemptions = 0, shared = 0, full = 0;
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    const bool has_states = seed % 4 == 0;
    Schedule schedule(seed, has_states, 2);
    ASSERT_NO_FATAL_FAILURE(schedule.run()) << "schedule " << seed;
    ASSERT_EQ(schedule.wrong, 0) << "rows of another sequence or adapter; schedule " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "schedule " << seed;
    finished += schedule.finished, full += schedule.full;
    preemptions += schedule.counts().preemptions, shared += schedule.counts().shared_rows;
  }
  EXPECT_GT(finished, 10000);
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(shared, 1000);
  EXPECT_GT(full, 100);
}

// Each state is that of its sequence's rows, each of them once and in order.
TEST(Scheduler, NoScheduleLosesASlotOrChangesAState) {
  int64_t finished = 0, cancelled = 0, chunks = 0, scored = 0, restarted = 0, full = 0;
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    Schedule schedule(seed, true);
    ASSERT_NO_FATAL_FAILURE(schedule.run()) << "schedule " << seed;
    ASSERT_EQ(schedule.wrong, 0) << "a state of other rows; schedule " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "schedule " << seed;
    ASSERT_EQ(schedule.counts().shared_rows, 0) << "pages do not say what a state was";
    ASSERT_EQ(schedule.counts().cached_pages, 0);
    finished += schedule.finished, cancelled += schedule.cancelled, chunks += schedule.chunks;
    scored += schedule.scored, restarted += schedule.restarted, full += schedule.full;
  }
  EXPECT_GT(finished, 10000);
  EXPECT_GT(cancelled, 1000);
  EXPECT_GT(chunks, 5000);
  EXPECT_GT(scored, 20000);
  EXPECT_GT(restarted, 100);
  EXPECT_GT(full, 1000);
}

} // namespace
} // namespace fvlm::infer
