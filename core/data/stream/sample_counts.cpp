#include "data/stream/sample_counts.h"

#include "base/error.h"
#include "base/text.h"
#include "data/stream/cursor.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

namespace fvlm {

const char* name_of(SkipReason reason) {
  static constexpr std::array<const char*, skip_reasons> names = {"text",      "media",     "overlong",
                                                                  "no_answer", "too_large", "frames"};
  return names.at(static_cast<size_t>(reason));
}

const char* words_of(SkipReason reason) {
  static constexpr std::array<const char*, skip_reasons> words = {
      "text or fields",       "image or video", "text too long", "no answer, or none left by max_text_tokens",
      "too large for a pack", "too many frames"};
  return words.at(static_cast<size_t>(reason));
}

std::string SampleCounts::text() const {
  std::string text = fmt::format("{} read, {} used", counted(read, "sample"), grouped(used));
  if (all_skipped() > 0) {
    std::vector<std::string> reasons;
    for (size_t i = 0; i < skip_reasons; ++i)
      if (skipped[i] > 0) reasons.push_back(fmt::format("{} {}", grouped(skipped[i]), words_of(SkipReason(i))));
    text += fmt::format(", {} skipped ({})", grouped(all_skipped()), join(reasons, ", "));
  }
  if (cut > 0) text += fmt::format(", {} truncated to max_text_tokens", grouped(cut));
  return text;
}

std::vector<std::pair<std::string, double>> numbers_of(const SampleCounts& counts) {
  std::vector<std::pair<std::string, double>> all = {{"samples_read", static_cast<double>(counts.read)},
                                                     {"samples_used", static_cast<double>(counts.used)},
                                                     {"samples_truncated", static_cast<double>(counts.cut)}};
  for (size_t i = 0; i < skip_reasons; ++i)
    if (counts.skipped[i] > 0)
      all.emplace_back(fmt::format("skipped.{}", name_of(SkipReason(i))), static_cast<double>(counts.skipped[i]));
  return all;
}

bool take_number(SampleCounts& counts, std::string_view name, double number) {
  const auto take = [&](int64_t& count) {
    count = std::llround(number);
    return true;
  };
  if (name == "samples_read") return take(counts.read);
  if (name == "samples_used") return take(counts.used);
  if (name == "samples_truncated") return take(counts.cut);
  if (!name.starts_with("skipped.")) return false;
  for (size_t i = 0; i < skip_reasons; ++i)
    if (name.substr(8) == name_of(SkipReason(i))) return take(counts.skipped[i]);
  return false;
}

SampleCounts sample_counts(const Cursor& cursor) {
  SampleCounts counts;
  counts.skipped = cursor.skipped;
  counts.cut = cursor.cut;
  counts.used = cursor.samples - cursor.undecodable;
  counts.read = counts.used + std::accumulate(cursor.skipped.begin(), cursor.skipped.end(), int64_t{0});
  return counts;
}

void require_used(const Cursor& cursor, const std::string& stage) {
  const SampleCounts counts = sample_counts(cursor);
  if (counts.used > 0) return;
  throw Error(ErrorKind::data, "there is no sample to learn from: " + counts.text())
      .at("stage " + stage)
      .advise("fvlm-engine data check RECIPE lists what is wrong with each");
}

} // namespace fvlm
