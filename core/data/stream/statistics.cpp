#include "data/stream/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fvlm {
namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

constexpr int64_t step_of_capacity = 8; // frames; what tensor cores and allocators like

} // namespace

int64_t Distribution::sum() const {
  return std::accumulate(values_.begin(), values_.end(), int64_t{0});
}

double Distribution::mean() const {
  return values_.empty() ? 0 : static_cast<double>(sum()) / static_cast<double>(count());
}

int64_t Distribution::min() const {
  return values_.empty() ? 0 : *std::ranges::min_element(values_);
}

int64_t Distribution::max() const {
  return values_.empty() ? 0 : *std::ranges::max_element(values_);
}

int64_t Distribution::quantile(double share) const {
  if (values_.empty()) return 0;
  std::vector<int64_t> values = values_;
  const double place = std::ceil(share * static_cast<double>(values.size())) - 1;
  const auto at = values.begin() + std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(place), 0,
                                                              static_cast<std::ptrdiff_t>(values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<Distribution::Bar> Distribution::histogram(size_t bars) const {
  if (values_.empty()) return {};
  const int64_t from = min(), width = (max() - from) / static_cast<int64_t>(bars) + 1;
  std::vector<Bar> all;
  for (int64_t at = from; at <= max(); at += width) all.push_back({at, std::min(at + width - 1, max()), 0});
  for (int64_t value : values_) ++all[static_cast<size_t>((value - from) / width)].count;
  return all;
}

double DataStatistics::fill_of_frames() const {
  return share(filled.frames, packs * capacity.frames);
}

double DataStatistics::fill_of_rows() const {
  return share(filled.rows, packs * capacity.rows);
}

double DataStatistics::padding_waste() const {
  return share(padded_rows - filled.rows, padded_rows);
}

double DataStatistics::packing_waste() const {
  return computed_rows > 0 ? 1 - share(filled.rows, computed_rows) : 0;
}

PackSize DataStatistics::suggestion() const {
  if (rows.sum() == 0) return capacity;
  const bool roomy = fullest.rows < capacity.rows || fullest.frames < capacity.frames;
  if (packs > 0 && packs_a_step.max() == 1 && roomy) return fullest;
  const double frames = static_cast<double>(capacity.rows) * share(all.frames.sum(), rows.sum());
  const auto rounded = static_cast<int64_t>(std::ceil(frames / step_of_capacity)) * step_of_capacity;
  return {std::max(rounded, all.frames.max()), std::max(capacity.rows, rows.max())};
}

void DataStatistics::add(const MeasuredSample& measured, const std::string& source) {
  const Sample& sample = *measured.sample;
  int64_t tokens = 0, answers = 0;
  for (const auto& part : packed_parts(measured.sample))
    for (const SampleText& text : part->texts) {
      tokens += text.tokens();
      longest_text = std::max(longest_text, text.tokens());
      answers += std::ranges::count(text.answer_mask, 1);
    }
  for (const SampleText& text : sample.teacher_texts) longest_text = std::max(longest_text, text.tokens());
  for (SourceStatistics* of : {&all, &sources[sample.source.empty() ? source : sample.source]}) {
    of->frames.add(sample.frames);
    of->tokens.add(tokens);
    of->answer_tokens.add(answers);
    of->cut += sample.truncated_tokens > 0;
    of->truncated_tokens += sample.truncated_tokens;
    of->cut_answer += sample.truncated_answer_tokens;
  }
  rows.add(sample.rows());
}

void DataStatistics::add(const ComposedStep& step, const std::vector<std::string>& names) {
  for (const SkippedSample& skipped : step.skipped) {
    ++(skipped.broken ? broken : left_out);
    if (reasons.size() < most_reasons) reasons.push_back(fmt::format("{}: {}", place_of(skipped), skipped.reason));
  }
  if (step.packs.empty()) return;
  ++steps;
  packs += static_cast<int64_t>(step.packs.size());
  packs_a_step.add(static_cast<int64_t>(step.packs.size()));
  int64_t longest = 0;
  for (const auto& pack : step.packs) {
    PackSize sum;
    std::vector<int64_t> of_samples;
    samples_a_pack.add(static_cast<int64_t>(pack.size()));
    for (const MeasuredSample& measured : pack) {
      add(measured, names.at(measured.drawn.source));
      sum.frames += measured.sample->frames;
      sum.rows += measured.sample->rows();
      of_samples.push_back(measured.sample->rows());
      longest = std::max(longest, measured.sample->rows());
    }
    computed_rows += computed ? computed(of_samples) : capacity.rows;
    filled = {filled.frames + sum.frames, filled.rows + sum.rows};
    fullest = {std::max(fullest.frames, sum.frames), std::max(fullest.rows, sum.rows)};
  }
  padded_rows += longest * step.samples;
}

} // namespace fvlm
