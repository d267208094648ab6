#include "infer/scheduler.h"

#include "base/error.h"
#include "base/hash.h"
#include "model/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fvlm::infer {

namespace {

// The last row that this one attends to, its own or one behind it.
int64_t last_attended_row(const Scheduler::Prompt& prompt, int64_t row) {
  if (prompt.bidirectional_rows == model::BidirectionalRows::prompt) return std::max(row, prompt.length - 1);
  const std::vector<int64_t>& rows = prompt.rows;
  const auto is_visual = [&](int64_t at) {
    return at < std::ssize(rows) && rows[static_cast<size_t>(at)] == visual_placeholder;
  };
  if (prompt.bidirectional_rows == model::BidirectionalRows::none || !is_visual(row)) return row;
  while (is_visual(row + 1)) ++row;
  return row;
}

auto find(auto& sequences, int64_t number) {
  return std::ranges::find_if(sequences, [&](const auto& sequence) { return sequence.prompt.number == number; });
}

} // namespace

void Scheduler::add(Prompt prompt) {
  Sequence& sequence = waiting_.emplace_back();
  sequence.prompt = std::move(prompt);
  sequence.prompt.length = std::ssize(sequence.prompt.rows);
}

const std::string& Scheduler::key_of(Sequence& sequence, int64_t page) const {
  const std::vector<int64_t>& rows = sequence.prompt.rows;
  const std::vector<std::string>& frames = sequence.prompt.visual_keys;
  const int64_t visual_rows = model::placeholders_of(rows);
  const int64_t each = frames.empty() ? 0 : visual_rows / std::ssize(frames);
  while (std::ssize(sequence.keys) <= page) {
    const int64_t begin = std::ssize(sequence.keys) * limits_.page_rows;
    const auto first = rows.begin() + begin;
    std::string content = sequence.keys.empty() ? std::string() : sequence.keys.back();
    if (sequence.keys.empty() && sequence.prompt.adapter > 0) content = fmt::format("{}:", sequence.prompt.adapter);
    bool has_key = sequence.keys.empty() || !content.empty();
    int64_t visual = std::count(rows.begin(), first, visual_placeholder);
    // Rows that attend to some behind the page differ where those do.
    const int64_t last_row = last_attended_row(sequence.prompt, begin + limits_.page_rows - 1);
    for (auto row = first; has_key && row <= rows.begin() + last_row; ++row) {
      content += fmt::format(" {}", *row);
      // Those of rows on a canvas depend on rows behind them.
      const int64_t number = row - rows.begin();
      if (const model::RowPosition position = sequence.prompt.positions.of(number);
          position != model::equal_positions(number))
        content += fmt::format("@{}", fmt::join(position, ","));
      if (*row != visual_placeholder) continue;
      has_key = each > 0;
      if (has_key) content += fmt::format(":{}:{}", frames[static_cast<size_t>(visual / each)], visual % each);
      ++visual;
    }
    sequence.keys.push_back(has_key ? sha256_hex(content) : std::string());
  }
  return sequence.keys[static_cast<size_t>(page)];
}

void Scheduler::give_back(Sequence& sequence) {
  // The last page first, so that it is also the first to be used for something else: without those before it, it could
  // not be shared.
  for (auto page = sequence.pages.rbegin(); page != sequence.pages.rend(); ++page) pool_.release(*page);
  sequence.pages.clear();
  if (sequence.slot > 0) free_slots_.push_back(std::exchange(sequence.slot, 0));
  sequence.computed = sequence.published = 0;
  sequence.drafts.clear();
  std::vector<int64_t>& rows = sequence.prompt.rows;
  rows.resize(rows.size() - static_cast<size_t>(std::exchange(sequence.tentative, 0)));
}

void Scheduler::preempt_youngest() {
  give_back(running_.back());
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++preemptions_;
}

// Pages for so many more rows. False: only by giving its own back, as it is the youngest.
bool Scheduler::make_room(Running::iterator sequence, int64_t rows) {
  while (std::ssize(sequence->pages) < pages_of(sequence->computed + rows)) {
    if (const auto page = pool_.allocate()) {
      sequence->pages.push_back(*page);
      continue;
    }
    const bool is_youngest = std::next(sequence) == running_.end();
    preempt_youngest();
    if (is_youngest) return false;
  }
  return true;
}

// As many drafts remain as have room without anyone else losing a page.
void Scheduler::make_room_for_drafts(Sequence& sequence) {
  const int64_t rows = sequence.computed + 1;
  while (std::ssize(sequence.pages) < pages_of(rows + std::ssize(sequence.drafts))) {
    const auto page = pool_.allocate();
    if (!page) break;
    sequence.pages.push_back(*page);
  }
  const int64_t room = std::ssize(sequence.pages) * limits_.page_rows - rows;
  if (std::ssize(sequence.drafts) > room) sequence.drafts.resize(static_cast<size_t>(room));
}

int64_t Scheduler::with_bidirectional_rows(const Sequence& sequence, int64_t count) {
  if (count == 0) return 0;
  return last_attended_row(sequence.prompt, sequence.computed + count - 1) + 1 - sequence.computed;
}

void Scheduler::take(Pass& pass, Sequence& sequence, int64_t count) {
  const std::vector<int64_t>& rows = sequence.prompt.rows;
  pass.parts.push_back({sequence.prompt.number,
                        sequence.computed,
                        count,
                        count == sequence.remaining(),
                        {},
                        std::min(sequence.unscored(), count)});
  if (!pass.parts.back().is_continued || count > 1) sequence.drafts.clear();
  make_room_for_drafts(sequence);
  pass.rows.begin_sequence(sequence.pages, sequence.slot, static_cast<int32_t>(sequence.prompt.adapter));
  int64_t last = -1; // row that the one before attends to, and the next one as well where that is behind it
  const auto append = [&](int64_t token) {
    const int64_t row = sequence.computed++;
    if (row > last) last = last_attended_row(sequence.prompt, row);
    const Scheduler::Prompt& prompt = sequence.prompt;
    const bool sees_whole_prompt = prompt.bidirectional_rows == model::BidirectionalRows::prompt && row < prompt.length;
    pass.rows.append(std::max<int64_t>(0, token), row, prompt.positions.of(row), last, sees_whole_prompt ? 0 : row);
  };
  for (int64_t i = 0; i < count; ++i) {
    append(rows[static_cast<size_t>(sequence.computed)]);
    if (i < pass.parts.back().scored) pass.rows.mark_output();
  }
  if (pass.parts.back().is_continued) pass.rows.mark_output();
  pass.parts.back().drafts = std::exchange(sequence.drafts, {});
  // The rest may be wrong, and is not published; nor is a token that is not known yet.
  const int64_t read = sequence.computed - (rows[static_cast<size_t>(sequence.computed - 1)] == unknown_token),
                known = std::min(read, std::ssize(rows) - sequence.tentative);
  for (const int64_t draft : pass.parts.back().drafts) {
    append(draft);
    pass.rows.mark_output();
  }
  publish(sequence, known);
}

// The pages that so many rows fill.
void Scheduler::publish(Sequence& sequence, int64_t known) {
  if (has_states()) return;
  for (; (sequence.published + 1) * limits_.page_rows <= known; ++sequence.published) {
    const std::string& key = key_of(sequence, sequence.published);
    if (!key.empty()) pool_.publish(sequence.pages[static_cast<size_t>(sequence.published)], key);
  }
}

// Lets a prompt that waits run, if the pages that its rows need are there, and one more for each sequence that
// runs, so that it is not preempted at once; and a slot where it has states.
bool Scheduler::admit(std::deque<Sequence>::iterator waiting, const Overtaken& overtaken) {
  Sequence& sequence = *waiting;
  if (has_states() && std::ssize(free_slots_) <= overtaken.slots) return false;
  const int64_t length = std::ssize(sequence.prompt.rows);
  const bool may_share = sequence.prompt.scored_rows == 0 && !has_states();
  // Its last row is computed in any case.
  for (int64_t page = 0; may_share && (page + 1) * limits_.page_rows < length; ++page) {
    const std::string& key = key_of(sequence, page);
    const auto found = key.empty() ? std::nullopt : pool_.find(key);
    if (!found) break;
    pool_.share(*found);
    sequence.pages.push_back(*found);
  }
  const int64_t shared = std::ssize(sequence.pages), reserve = running_.empty() ? 0 : std::ssize(running_) + 1;
  if (pages_of(length) - shared + reserve + overtaken.pages > pool_.available()) {
    give_back(sequence);
    return false;
  }
  sequence.computed = shared * limits_.page_rows;
  sequence.published = shared;
  if (has_states()) {
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  if (!sequence.shared) shared_rows_ += sequence.shared.emplace(sequence.computed);
  running_.push_back(std::move(sequence));
  waiting_.erase(waiting);
  return true;
}

std::vector<int64_t> Scheduler::turns() const {
  std::set<int64_t> groups;
  for (const Sequence& sequence : running_) groups.insert(sequence.prompt.group);
  for (const Sequence& sequence : waiting_) groups.insert(sequence.prompt.group);
  std::vector<int64_t> turns(groups.begin(), groups.end());
  std::ranges::rotate(turns, std::ranges::upper_bound(turns, group_));
  return turns;
}

int64_t Scheduler::turn() const {
  const std::vector<int64_t> order = turns();
  return order.empty() ? 0 : order.front();
}

Scheduler::Pass Scheduler::next(const std::function<bool(int64_t number)>& takes) {
  Pass pass{{}, model::PassRows(limits_.page_rows, has_states())};
  for (const int64_t group : turns()) {
    pass = next_of(group, takes);
    if (pass.parts.empty()) continue;
    group_ = group;
    break;
  }
  return pass;
}

Scheduler::Pass Scheduler::next_of(int64_t group, const std::function<bool(int64_t number)>& takes) {
  const auto may_take = [&](const Sequence& sequence) {
    return sequence.prompt.group == group && (!takes || takes(sequence.prompt.number));
  };
  Pass pass{{}, model::PassRows(limits_.page_rows, has_states())};
  const bool is_idle = limits_.idle_prefill_rows > 0 && decoding().empty();
  int64_t budget = is_idle ? limits_.idle_prefill_rows : limits_.prefill_rows, scores = limits_.scored_rows;
  const auto rows_of = [&](const Sequence& sequence) {
    const int64_t rows = std::min(budget, sequence.remaining());
    return with_bidirectional_rows(sequence, sequence.unscored() > 0 ? std::clamp<int64_t>(scores, 0, rows) : rows);
  };
  for (Sequence& sequence : running_) // drafts that were wrong
    sequence.computed = std::min(sequence.computed, std::ssize(sequence.prompt.rows) - 1);
  // The oldest first. Who is preempted is younger than all that the pass has so far.
  for (auto sequence = running_.begin(); sequence != running_.end(); ++sequence) {
    const bool is_prefill = sequence->remaining() > 1;
    const int64_t count = is_prefill ? rows_of(*sequence) : 1;
    if (count == 0 || !may_take(*sequence)) continue;
    if (!make_room(sequence, count)) break;
    take(pass, *sequence, count);
    if (is_prefill) budget = std::max<int64_t>(0, budget - count);
    scores -= pass.parts.back().scored;
  }
  const auto has_scores = [&](const Sequence& sequence) { return scores > 0 || sequence.unscored() == 0; };
  Overtaken overtaken;
  for (size_t i = 0; budget > 0 && i < waiting_.size();) {
    const Sequence& first = waiting_[i];
    if (first.prompt.group != group) {
      overtaken.pages += pages_of(std::ssize(first.prompt.rows)) + 1;
      ++overtaken.slots, ++i;
      continue;
    }
    if (!has_scores(first) || !may_take(first) || !admit(waiting_.begin() + static_cast<std::ptrdiff_t>(i), overtaken))
      break;
    const auto sequence = std::prev(running_.end());
    const int64_t count = rows_of(*sequence);
    if (!make_room(sequence, count))
      throw Error(ErrorKind::internal, "a prompt was admitted for which there are no pages");
    take(pass, *sequence, count);
    budget -= count;
    scores -= pass.parts.back().scored;
  }
  return pass;
}

const Scheduler::Sequence& Scheduler::running(int64_t number) const {
  const auto found = find(running_, number);
  if (found == running_.end()) throw Error(ErrorKind::internal, "sequence {} does not run", number);
  return *found;
}

std::vector<int64_t> Scheduler::decoding() const {
  std::vector<int64_t> numbers;
  for (const Sequence& sequence : running_)
    if (sequence.computed > 0 && sequence.computed + 1 >= std::ssize(sequence.prompt.rows))
      numbers.push_back(sequence.prompt.number);
  return numbers;
}

void Scheduler::draft(int64_t number, std::vector<int64_t> tokens) {
  find(running_, number)->drafts = std::move(tokens);
}

void Scheduler::append(int64_t number, int64_t token) {
  Sequence& sequence = *find(running_, number);
  std::vector<int64_t>& rows = sequence.prompt.rows;
  if (rows.back() != unknown_token) {
    rows.push_back(token);
    return;
  }
  rows.back() = token;
  publish(sequence, sequence.computed);
}

bool Scheduler::can_run_ahead() const {
  int64_t needed = 0;
  for (const Sequence& sequence : running_)
    needed += std::max<int64_t>(0, pages_of(std::ssize(sequence.prompt.rows) + 1) - std::ssize(sequence.pages));
  return needed <= pool_.available();
}

void Scheduler::append_tentative(int64_t number, int64_t token) {
  append(number, token);
  ++find(running_, number)->tentative;
}

void Scheduler::settle(int64_t number, std::span<const int64_t> tokens) {
  const auto running = find(running_, number);
  Sequence& sequence = running != running_.end() ? *running : *find(waiting_, number);
  std::vector<int64_t>& rows = sequence.prompt.rows;
  const auto tentative = rows.end() - std::exchange(sequence.tentative, 0);
  const auto [wrong, rest] = std::mismatch(tentative, rows.end(), tokens.begin(), tokens.end());
  sequence.computed = std::min<int64_t>(sequence.computed, wrong - rows.begin());
  rows.erase(wrong, rows.end());
  rows.insert(rows.end(), rest, tokens.end());
}

bool Scheduler::remove(int64_t number) {
  if (const auto found = find(running_, number); found != running_.end()) {
    give_back(*found);
    running_.erase(found);
    return true;
  }
  const auto found = find(waiting_, number);
  if (found == waiting_.end()) return false;
  waiting_.erase(found);
  return true;
}

const std::vector<int64_t>& Scheduler::rows(int64_t number) const {
  return running(number).prompt.rows;
}

int64_t Scheduler::shared_rows(int64_t number) const {
  const auto waiting = find(waiting_, number);
  return (waiting != waiting_.end() ? *waiting : running(number)).shared.value_or(0);
}

int64_t Scheduler::needed_pages() const {
  if (waiting_.empty()) return 0;
  const Prompt& first = waiting_.front().prompt;
  return pages_of(std::min(std::ssize(first.rows) + 1, first.max_rows));
}

int64_t Scheduler::max_needed_pages() const {
  return waiting_.empty() ? 0 : pages_of(waiting_.front().prompt.max_rows);
}

int64_t Scheduler::wanted_pages() const {
  int64_t pages = 0;
  for (const Sequence& sequence : waiting_) pages += pages_of(sequence.prompt.max_rows);
  return pages;
}

void Scheduler::resize(int64_t pages, int64_t slots) {
  if (is_running()) throw Error(ErrorKind::internal, "pages are in use");
  pool_ = PagePool(pages);
  slots_ = slots;
  free_slots_.clear();
  for (int64_t slot = slots; slot > 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
}

SchedulerCounts Scheduler::counts() const {
  return {pool_.total(), pool_.free(), pool_.cached(), shared_rows_, preemptions_, slots_, std::ssize(free_slots_)};
}

std::vector<int32_t> Scheduler::pages_in_use() const {
  std::vector<int32_t> pages;
  for (const Sequence& sequence : running_) pages.insert(pages.end(), sequence.pages.begin(), sequence.pages.end());
  return pages;
}

} // namespace fvlm::infer
