#include "train/stage_length.h"

#include "base/log.h"
#include "base/text.h"
#include "data/preprocess.h"
#include "data/shards/shard_set.h"
#include "model/weights/visual_rows.h"
#include "recipe/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace fvlm::train {
namespace {

constexpr int64_t any_number = std::numeric_limits<int64_t>::max();

int64_t product(int64_t epochs, int64_t samples) {
  int64_t all = 0;
  return __builtin_mul_overflow(epochs, samples, &all) ? any_number : all;
}

// Warns of sources that are used up well before the stage is over, by the expected number of draws from each.
void warn_of_spent_sources(const plan::Stage& stage, const plan::Mix& mix, const std::vector<int64_t>& available) {
  constexpr int64_t parts = 1000, end = 980;
  const double length = static_cast<double>(stage.samples) / static_cast<double>(parts);
  std::vector<double> drawn(available.size(), 0);
  for (int64_t part = 0; part < end; ++part) {
    const std::vector<double> shares = mix.shares(static_cast<double>(part) / static_cast<double>(parts));
    const auto is_left = [&](size_t i) { return drawn[i] < static_cast<double>(available[i]); };
    double sum = 0;
    for (size_t i = 0; i < shares.size(); ++i) sum += is_left(i) ? shares[i] : 0;
    if (sum <= 0) return;
    const std::vector<double> before = drawn;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (before[i] >= static_cast<double>(available[i])) continue;
      drawn[i] += length * shares[i] / sum;
      if (is_left(i)) continue;
      log_warning("stage {}: '{}' is used up after about {} of {} samples, since it has epochs = {}; from there on the "
                  "other sources take its share",
                  stage.name, mix.sources[i].patterns().front(),
                  grouped(static_cast<int64_t>(length * static_cast<double>(part + 1))), grouped(stage.samples),
                  mix.sources[i].epochs);
    }
  }
}

} // namespace

plan::Stage with_length(const plan::Plan& plan, const plan::Stage& stage, bool warns) {
  const auto& sources = stage.data.sources;
  const bool spent = std::ranges::all_of(sources, [](const plan::Source& source) { return source.epochs > 0; });
  const bool ends = std::ranges::any_of(sources, [](const plan::Source& source) { return source.epochs > 0; });
  if (!stage.epochs && !ends) return stage;
  const plan::Mix mix = resolve_preprocessed_mix(plan, stage.data, visual_rows(plan.model));
  int64_t in_one = 0, until_spent = spent ? 0 : any_number;
  std::vector<int64_t> available;
  for (size_t i = 0; i < sources.size(); ++i) {
    const plan::Source& source = mix.sources[i];
    const int64_t samples = source.portion().count(ShardSet(source.patterns(), with_root({}, source)).size());
    in_one += samples;
    available.push_back(sources[i].epochs > 0 ? product(sources[i].epochs, samples) : any_number);
    if (spent) until_spent += std::min(available.back(), any_number - until_spent);
  }
  plan::Stage counted = stage;
  if (stage.samples == 0) counted.samples = any_number;
  if (stage.epochs) counted.samples = std::min(counted.samples, product(*stage.epochs, in_one));
  if (warns && until_spent < counted.samples && (stage.samples > 0 || stage.epochs))
    log_warning(
        "stage {}: the epochs of its sources are over after {} samples, and {} were expected: the learning rate's "
        "schedule ends there, too",
        stage.name, grouped(until_spent), grouped(counted.samples));
  counted.samples = std::min(counted.samples, until_spent);
  recipe::derive_steps(counted);
  if (warns) warn_of_spent_sources(counted, mix, available);
  return counted;
}

void warn_of_early_end(const plan::Stage& stage, const Cursor& end) {
  if (end.samples >= stage.samples) return;
  const int64_t skipped = sample_counts(end).all_skipped();
  log_warning(
      "stage {}: its data were over after {} of {} samples, since {}; the learning rate did not reach the end of "
      "its schedule",
      stage.name, grouped(end.samples), grouped(stage.samples),
      skipped > 0 ? fmt::format("{} were skipped", grouped(skipped))
                  : "every source with a weight above 0 there was used up");
}

} // namespace fvlm::train
