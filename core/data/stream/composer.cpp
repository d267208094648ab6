#include "data/stream/composer.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fvlm {
namespace {

bool by_budget(const plan::Batch& batch) {
  return batch.tokens || batch.frames;
}

bool fits(const Sample& sample, const PackSize& room) {
  return sample.frames <= room.frames && sample.rows() <= room.rows;
}

} // namespace

Composer::Composer(const BatchPlan& plan, const Order& order, PackFunction pack, Cursor start,
                   std::function<std::optional<MeasuredSample>()> take)
    : plan_(plan), order_(order), take_(std::move(take)), pack_(std::move(pack)), cursor_(std::move(start)) {
  if (plan_.batch.tokens) plan_.capacity.rows = std::min(plan_.capacity.rows, *plan_.batch.tokens);
  if (plan_.batch.frames) plan_.capacity.frames = std::min(plan_.capacity.frames, *plan_.batch.frames);
  if (!by_budget(plan_.batch) && plan_.ranks > 1 && plan_.every_rank_has_a_pack) {
    const int64_t share = std::max<int64_t>(1, plan_.batch.samples.value_or(1) / plan_.ranks);
    plan_.most_samples = plan_.most_samples > 0 ? std::min(plan_.most_samples, share) : share;
  }
}

Cursor Composer::start(const BatchPlan& plan, const Order& order) {
  Cursor cursor;
  cursor.order = order.begin();
  cursor.fingerprint = fingerprint(plan, order);
  return cursor;
}

bool Composer::matches(const Cursor& cursor, const BatchPlan& plan, const Order& order) {
  return cursor.fingerprint == fingerprint(plan, order) && cursor.order.drawn.size() == order.begin().drawn.size();
}

std::optional<Cursor> Composer::extended(Cursor end, const BatchPlan& plan, const Order& order) {
  if (plan.samples <= end.samples) return {};
  const auto before = order.of_length(end.samples);
  if (!before || !matches(end, plan, *before)) return {};
  end.fingerprint = fingerprint(plan, order);
  return end;
}

void Composer::check(const Cursor& cursor, const BatchPlan& plan, const Order& order) {
  if (matches(cursor, plan, order)) return;
  throw Error(ErrorKind::data,
              "the data differ from what the run read before: other shards, weights, samples, seed or batch")
      .advise("restore them, or train into another folder: --run-dir");
}

uint64_t Composer::fingerprint(const BatchPlan& plan, const Order& order) {
  std::string text = fmt::format("{:x} {} {} {}", order.fingerprint(), plan.batch.samples.value_or(0),
                                 plan.batch.tokens.value_or(0), plan.batch.frames.value_or(0));
  if (plan.documents) text += fmt::format(" rows {} {}", static_cast<int>(*plan.documents), plan.row_tokens);
  return xxh64(text);
}

std::optional<ComposedStep> Composer::next() {
  ComposedStep step;
  if (plan_.documents)
    compose_rows(step);
  else if (by_budget(plan_.batch))
    compose_budget(step);
  else
    compose_samples(step);
  if (step.packs.empty() && step.skipped.empty()) return {};
  if (!step.packs.empty()) ++cursor_.steps;
  cursor_.samples += step.samples;
  step.after = cursor_;
  return step;
}

// Composes a step of a fixed number of samples, in as few packs as the packer finds.
void Composer::compose_samples(ComposedStep& step) {
  do {
    if (!wait_for(plan_.batch.samples.value_or(1), step)) return;
  } while (skip_oversized(step));
  const auto bin_of = bins(plan_.capacity, plan_.most_samples);
  take_bins(bin_of, *std::ranges::max_element(bin_of) + 1, step);
}

// Adds packs until the next one would exceed the budget. Every pack contains the oldest waiting sample.
void Composer::compose_budget(ComposedStep& step) {
  constexpr int64_t any = std::numeric_limits<int64_t>::max();
  PackSize rest{plan_.batch.frames.value_or(any), plan_.batch.tokens.value_or(any)};
  while (true) {
    do {
      if (!wait_for(plan_.window, step)) return;
    } while (skip_oversized(step));
    int64_t most_samples = plan_.most_samples > 0 ? plan_.most_samples : any;
    if (plan_.batch.samples) most_samples = std::min(most_samples, *plan_.batch.samples - step.samples);
    const PackSize room{std::min(rest.frames, plan_.capacity.frames), std::min(rest.rows, plan_.capacity.rows)};
    if (most_samples == 0 || !fits(*waiting_.front().sample, room)) return;
    take_bins(bins(room, most_samples == any ? 0 : most_samples), 1, step);
    for (const MeasuredSample& measured : step.packs.back()) {
      rest.frames -= measured.sample->frames;
      rest.rows -= measured.sample->rows();
    }
  }
}

// Reads until this many samples wait, or the stage or the order ends. Returns false when none waits.
bool Composer::wait_for(int64_t samples, ComposedStep& step) {
  const int64_t before = cursor_.samples + step.samples;
  if (plan_.samples > 0) samples = std::min(samples, plan_.samples - before);
  while (static_cast<int64_t>(waiting_.size()) < samples) {
    auto found = next_usable(step);
    if (!found) break;
    waiting_.push_back(std::move(*found));
  }
  return !waiting_.empty();
}

// Reads up to the next sample that is not skipped; nullopt at the end of the order.
std::optional<MeasuredSample> Composer::next_usable(ComposedStep& step) {
  while (auto found = take_()) {
    const auto place = static_cast<size_t>(found->drawn.position - cursor_.order.position);
    if (place >= cursor_.done.size()) { // otherwise it was counted before a resume
      cursor_.done.resize(place + 1);
      ++cursor_.read;
    }
    count_unusable(*found);
    if (found->sample) return found;
    skip_sample(std::move(found->skipped), step);
  }
  return {};
}

// Composes a step of rows of equal length, which need no packer.
void Composer::compose_rows(ComposedStep& step) {
  constexpr int64_t any = std::numeric_limits<int64_t>::max();
  int64_t rows = std::min(plan_.batch.samples.value_or(any), plan_.batch.tokens.value_or(any) / plan_.row_tokens);
  if (plan_.samples > 0) rows = std::min(rows, plan_.samples - cursor_.samples);
  int64_t of_pack = std::max<int64_t>(1, plan_.capacity.rows / plan_.row_tokens);
  if (plan_.most_samples > 0) of_pack = std::min(of_pack, plan_.most_samples);
  while (step.samples < rows) {
    auto row = next_row(step);
    if (!row) return;
    row->drawn.position = cursor_.samples + step.samples;
    if (step.samples % of_pack == 0) step.packs.emplace_back();
    step.packs.back().push_back(std::move(*row));
    ++step.samples;
  }
}

// The next row, named after its first document; nullopt at the end of the order.
std::optional<MeasuredSample> Composer::next_row(ComposedStep& step) {
  DocumentRow row(*plan_.documents, plan_.row_tokens);
  std::optional<MeasuredSample> first;
  while (!row.is_full()) {
    if (!document_) document_ = next_usable(step);
    if (!document_) break;
    if (!first) first = document_;
    const SampleText& text = document_->sample->texts.front();
    cursor_.offset = row.append(text, cursor_.offset);
    if (cursor_.offset < std::ssize(text.ids)) break; // the row is full
    done_with(document_->drawn.position);
    document_.reset();
    cursor_.offset = 0;
  }
  if (row.is_empty()) return {};
  auto sample = std::make_shared<Sample>(*first->sample);
  sample->texts = row.take();
  first->sample = std::move(sample);
  return first;
}

// Sources without a limit on epochs never end, so without this check unusable data would loop forever.
void Composer::count_unusable(const MeasuredSample& found) {
  if (found.sample && (plan_.documents || fits(*found.sample, plan_.capacity))) {
    consecutive_unusable_ = 0;
    return;
  }
  if (++consecutive_unusable_ < order_.most_unusable()) return;
  throw Error(ErrorKind::data, "none of {} samples drawn in a row can be used; the last of them:\n  {}: {}",
              grouped(consecutive_unusable_), place_of(found.skipped),
              found.sample ? too_large(*found.sample) : found.skipped.reason)
      .advise("correct what the stage says of its data: shards or text, fields, objective, max_text_tokens, packing");
}

std::vector<int32_t> Composer::bins(const PackSize& capacity, int64_t most_items) const {
  std::vector<int64_t> sizes;
  for (const MeasuredSample& measured : waiting_) {
    sizes.push_back(measured.sample->frames);
    sizes.push_back(measured.sample->rows());
  }
  return pack_(sizes, capacity, most_items, plan_.seed + static_cast<uint64_t>(cursor_.steps));
}

// Returns true when it skipped one. Packs of a Plan hold the longest sample of its mix; other capacities may not.
bool Composer::skip_oversized(ComposedStep& step) {
  const auto large = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const MeasuredSample& measured) {
    return fits(*measured.sample, plan_.capacity);
  });
  if (large == waiting_.end()) return false;
  const std::vector<MeasuredSample> all(large, waiting_.end());
  waiting_.erase(large, waiting_.end());
  for (const MeasuredSample& measured : all) {
    SkippedSample skipped = measured.skipped;
    skipped.reason = too_large(*measured.sample);
    skipped.skip = SkipReason::too_large;
    skip_sample(std::move(skipped), step);
  }
  return true;
}

std::string Composer::too_large(const Sample& sample) const {
  return fmt::format("{} frames and {} rows are more than a pack of {} and {} holds", sample.frames, sample.rows(),
                     plan_.capacity.frames, plan_.capacity.rows);
}

// Turns the first `count` bins into packs; samples in other bins keep waiting.
void Composer::take_bins(const std::vector<int32_t>& bin_of, int32_t count, ComposedStep& step) {
  const size_t first = step.packs.size();
  step.packs.resize(first + static_cast<size_t>(count));
  std::deque<MeasuredSample> rest;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (bin_of[i] < 0 || bin_of[i] >= count) { // -1: larger than what a budget has left for a pack
      rest.push_back(std::move(waiting_[i]));
      continue;
    }
    done_with(waiting_[i].drawn.position);
    ++step.samples;
    cursor_.cut += waiting_[i].sample->truncated_tokens > 0;
    step.packs[first + static_cast<size_t>(bin_of[i])].push_back(std::move(waiting_[i]));
  }
  waiting_ = std::move(rest);
}

void Composer::skip_sample(SkippedSample skipped, ComposedStep& step) {
  done_with(skipped.position);
  ++(skipped.broken ? cursor_.broken : cursor_.left_out);
  ++cursor_.skipped[static_cast<size_t>(skipped.skip)];
  step.skipped.push_back(std::move(skipped));
}

void Composer::done_with(int64_t position) {
  cursor_.done[static_cast<size_t>(position - cursor_.order.position)] = true;
  const auto first = std::ranges::find(cursor_.done, false);
  for (auto passed = first - cursor_.done.begin(); passed > 0; --passed) order_.next(cursor_.order);
  cursor_.done.erase(cursor_.done.begin(), first);
}

} // namespace fvlm
