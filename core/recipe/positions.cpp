#include "recipe/positions.h"

#include "recipe/schema/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fvlm::recipe {
namespace {

// Parses an entry of Resolved::sources, like "mine.lua:12 ...".
Origin origin_of(const std::string& source) {
  Origin origin;
  const size_t colon = source.find(':');
  if (colon == std::string::npos) return origin;
  const auto [end, error] = std::from_chars(source.data() + colon + 1, source.data() + source.size(), origin.line);
  if (error == std::errc()) origin.file = source.substr(0, colon);
  return origin;
}

// Sources are of single values. Of a mix whose lengths are defaults, this is the first line that wrote any of it.
Origin origin_of(const Resolved& resolved, const std::string& mix) {
  for (const char* length : {".max_text_tokens", ".max_frames"})
    if (const auto found = resolved.sources.find(mix + length); found != resolved.sources.end())
      return origin_of(found->second);
  Origin first{resolved.recipe, 0, {}};
  for (auto found = resolved.sources.lower_bound(mix); found != resolved.sources.end(); ++found) {
    if (!found->first.starts_with(mix)) break;
    const Origin origin = origin_of(found->second);
    if (origin.line > 0 && (first.line == 0 || origin.line < first.line)) first = origin;
  }
  return first;
}

} // namespace

std::vector<LongSequences> find_long_sequences(const plan::Plan& plan, int64_t positions, int64_t rows_per_frame) {
  std::vector<LongSequences> all;
  const auto check = [&](const std::string& path, const plan::Mix& mix) {
    const int64_t frames =
        rows_per_frame > 0 && mix.has_frames() ? std::max(mix.max_frames, mix.replicate_image_frames) : 0;
    if (frames * rows_per_frame + mix.max_text_tokens > positions)
      all.push_back(
          {path, fmt::format("{} frames{} and {} text tokens exceed the decoder's {} positions", frames,
                             rows_per_frame > 1 ? fmt::format(" of {} decoder rows each", rows_per_frame) : "",
                             mix.max_text_tokens, positions)});
  };
  for (const plan::Stage& stage : plan.stages) {
    const std::string path = "stages" + key_part(stage.name);
    check(path + ".data", stage.data);
    for (const plan::EvaluationSet& set : stage.evaluation.sets)
      check(path + ".evaluation.sets" + key_part(set.name) + ".data", set.data);
  }
  return all;
}

void require_positions(const Resolved& resolved, int64_t positions, int64_t rows_per_frame) {
  std::vector<Mistake> mistakes;
  for (const LongSequences& long_ones : find_long_sequences(resolved.plan, positions, rows_per_frame)) {
    mistakes.push_back({origin_of(resolved, long_ones.mix), long_ones.mix + ".max_text_tokens", long_ones.what,
                        long_sequences_advice});
  }
  if (!mistakes.empty()) throw RecipeError(std::move(mistakes));
}

} // namespace fvlm::recipe
