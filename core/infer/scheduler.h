// Scheduler: which rows of which sequences the next pass of the decoder reads, and in which pages their keys and values
// are. It decides by numbers alone and knows no tensors.
//
// Every pass has the newest row of each sequence that is being continued, and of prompts as many rows as a budget
// allows, in the order in which they came; so a long prompt takes several passes and stalls nobody. A sequence takes
// pages as it grows. When none is left, the youngest sequence gives its pages back and waits to be computed again. The
// oldest does so only where it is alone, and needs more pages than there are.
//
// A full page is published under a hash of all rows up to its end, once its rows are part of a pass. A prompt that
// begins with the same rows shares such pages instead of computing them, even in the same pass. What is behind the last
// full page is computed again, never copied. Pages of sequences that ended remain published until others need them.
//
// Sequences may be of several adapters of one model. Those that cannot be computed in one pass are of different groups,
// which take turns: a pass has rows of one group. Pages of one adapter are not shared with another.
//
// Behind its newest row a sequence may have drafts, tokens that are supposed to follow. The pass reads them too, so
// that it continues the sequence behind each; those that turn out to be wrong are overwritten.
//
// The scheduler of a draft model, which makes such drafts, appends them to its own sequences as tentative rows. What
// was decided replaces them: as far as it is the same, their keys and values stay. Pages with tentative rows are not
// shared.
//
// Where the decoder carries states, each sequence that runs has a slot for its own, until it ends or gives its pages
// back. No page says what a state was, so that nothing is shared, and a state does not go back, so that there are no
// drafts: passes have each row of a sequence once and in order, from row 0 on whenever it begins to run.
#pragma once
#include "infer/page_pool.h"
#include "model/decoder/kv_pages.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

namespace fvlm::infer {

struct SchedulerLimits {
  int64_t page_rows = 16;
  int64_t prefill_rows = 512;    // rows of prompts in one pass
  int64_t idle_prefill_rows = 0; // the same where no answer waits for the pass; 0: as many
  int64_t scored_rows = 512;     // of them, that have outputs
};

struct SchedulerCounts {
  int64_t pages = 0, free_pages = 0, cached_pages = 0; // the others are in use
  int64_t shared_rows = 0;                             // of prompts, that were in pages already, since the beginning
  int64_t preemptions = 0;                             // since the beginning
  int64_t slots = 0, free_slots = 0;                   // for states; 0 where none are carried
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits), pool_(0) {}

  // A prompt of at least one row. No two have the same number.
  struct Prompt {
    int64_t number = 0;
    std::vector<int64_t> rows; // tokens; visual_placeholder where a visual row stands
    int64_t max_rows = 0;      // with its whole answer
    // Digests of the frames whose visual rows these are, as many rows of each. Empty: pages with visual rows and those
    // behind them are not shared.
    std::vector<std::string> visual_keys;
    model::SequencePositions positions = {};
    // Of its first rows, each of which has an output: what the model says follows it. Such a prompt shares no pages of
    // others, whose outputs are gone.
    int64_t scored_rows = 0;
    // Rows that attend to each other are read in one pass.
    model::BidirectionalRows bidirectional_rows = model::BidirectionalRows::none;
    int64_t adapter = 0; // 0: the model without any
    int64_t group = 0;   // whose sequences may be in one pass
    int64_t length = 0;  // without its answer; add() sets it
  };
  void add(Prompt prompt);

  // The rows `begin` to `begin + count` of a sequence, the first `scored` of which have outputs of their own. If they
  // are its last ones, the pass continues it with a token, and as many drafts as there are follow them.
  struct Part {
    int64_t number, begin, count;
    bool is_continued;
    std::vector<int64_t> drafts;
    int64_t scored = 0;

    int64_t outputs() const { return scored + (is_continued ? 1 + std::ssize(drafts) : 0); }
  };
  struct Pass {
    std::vector<Part> parts;
    model::PassRows rows; // with the outputs of each part: of scored rows, then of the last one, then of drafts
  };
  // The next pass, without parts if nothing can be computed: see needed_pages(). `takes`: whether a sequence may be
  // part of it; a prompt that waits and may not holds up those behind it. Empty: all may.
  Pass next(const std::function<bool(int64_t number)>& takes = {});
  // The group of the next pass, unless it has no rows that can be computed.
  int64_t turn() const;
  // The sequences that run and have one row that no pass has read, and drafts for one of them. No other sequence loses
  // a page to a draft. None may have any where states are carried.
  std::vector<int64_t> decoding() const;
  void draft(int64_t number, std::vector<int64_t> tokens);
  // The token that the pass continued a sequence with. Further ones, of its drafts that were right, may follow.
  void append(int64_t number, int64_t token);
  // The next pass may be made before the tokens of the last one are known, if each sequence has room for its next row.
  // Then unknown_token is appended first; the token itself takes its place.
  bool can_run_ahead() const;
  static constexpr int64_t unknown_token = -2;
  // The same for a token that may turn out to be wrong. A sequence that loses its pages forgets it.
  void append_tentative(int64_t number, int64_t token);
  // The tokens that follow the rows before the tentative ones, which they replace. Of a sequence that runs or waits.
  void settle(int64_t number, std::span<const int64_t> tokens);
  // Forgets a sequence whose answer is over, or not wanted any more, and gives its pages back. False: there is none.
  bool remove(int64_t number);

  const std::vector<int64_t>& rows(int64_t number) const; // so far; of a sequence that runs
  int64_t shared_rows(int64_t number) const;              // of its prompt, that were in pages when it began to run
  bool is_running() const { return !running_.empty(); }
  bool is_waiting() const { return !waiting_.empty(); }
  int64_t first_waiting() const { return waiting_.front().prompt.number; }
  // Of the first prompt that waits, alone: for its rows so far and the next one, and for its whole answer.
  int64_t needed_pages() const;
  int64_t max_needed_pages() const;
  int64_t wanted_pages() const; // of all that wait, together, with their whole answers
  int64_t wanted_slots() const { return std::ssize(waiting_); }
  // New pages, without content, and new slots: the sequences that may run at once where states are carried; 0: none
  // are. Nothing may run.
  void resize(int64_t pages, int64_t slots = 0);

  SchedulerCounts counts() const;
  const PagePool& pool() const { return pool_; }
  // Of all that run, each page as often as sequences have it.
  std::vector<int32_t> pages_in_use() const;

 private:
  struct Sequence {
    Prompt prompt;                 // with its answer so far
    std::vector<int32_t> pages;    // that hold its rows
    int32_t slot = 0;              // of its states, while it runs and where it has any
    std::vector<std::string> keys; // of its full pages, as far as they were asked for
    int64_t computed = 0;          // rows that passes have read
    std::vector<int64_t> drafts;   // for the next pass
    int64_t tentative = 0;         // of its last rows
    int64_t published = 0;         // of its pages
    std::optional<int64_t> shared; // rows that it found in pages when it was first admitted

    int64_t remaining() const { return std::ssize(prompt.rows) - computed; }
    int64_t unscored() const { return std::max<int64_t>(0, prompt.scored_rows - computed); }
  };
  using Running = std::list<Sequence>;

  bool has_states() const { return slots_ > 0; }
  int64_t pages_of(int64_t rows) const { return (rows + limits_.page_rows - 1) / limits_.page_rows; }
  // Empty for a page whose content has no key.
  const std::string& key_of(Sequence& sequence, int64_t page) const;
  // Prompts of other groups that a prompt overtakes, none of which thereby waits for room.
  struct Overtaken {
    int64_t pages = 0, slots = 0;
  };
  // The groups of all sequences, in the order of their turns.
  std::vector<int64_t> turns() const;
  Pass next_of(int64_t group, const std::function<bool(int64_t number)>& takes);
  bool admit(std::deque<Sequence>::iterator waiting, const Overtaken& overtaken);
  bool make_room(Running::iterator sequence, int64_t rows);
  void preempt_youngest();
  // So many of its next rows, and those that they attend to besides.
  static int64_t with_bidirectional_rows(const Sequence& sequence, int64_t count);
  void take(Pass& pass, Sequence& sequence, int64_t count);
  void publish(Sequence& sequence, int64_t known);
  void make_room_for_drafts(Sequence& sequence);
  void give_back(Sequence& sequence);
  const Sequence& running(int64_t number) const;

  SchedulerLimits limits_;
  PagePool pool_;
  int64_t slots_ = 0; // numbers 1 to this one; slot 0 is for padding
  std::vector<int32_t> free_slots_;
  int64_t group_ = -1;           // of the last pass; -1: there was none
  Running running_;              // in the order in which they began
  std::deque<Sequence> waiting_; // first those that had to give their pages back, then by number
  int64_t shared_rows_ = 0, preemptions_ = 0;
};

} // namespace fvlm::infer
