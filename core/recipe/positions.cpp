#include "recipe/positions.h"

#include "base/text.h"
#include "recipe/schema/mistakes.h"
#include "recipe/schema/type.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fvlm::recipe {
namespace {

// "mine.lua:12 ..." of Resolved::sources.
Origin origin_of(const std::string& source) {
  Origin origin;
  const size_t colon = source.find(':');
  if (colon == std::string::npos) return origin;
  const auto [end, error] = std::from_chars(source.data() + colon + 1, source.data() + source.size(), origin.line);
  if (error == std::errc()) origin.file = source.substr(0, colon);
  return origin;
}

// Where the value was written, or what holds it.
Origin origin_of(const Resolved& resolved, std::string path) {
  for (; !path.empty(); path = path.substr(0, std::min(path.rfind('.'), path.size()))) {
    if (const auto found = resolved.sources.find(path); found != resolved.sources.end())
      return origin_of(found->second);
    if (path.find('.') == std::string::npos) break;
  }
  return {resolved.recipe, 0, {}};
}

} // namespace

std::vector<LongSequences> longer_than(const plan::Plan& plan, int64_t positions) {
  std::vector<LongSequences> all;
  const auto look = [&](const std::string& path, const plan::Mix& mix) {
    const int64_t frames = mix.has_frames() ? std::max(mix.max_frames, mix.replicate_image_frames) : 0;
    if (frames + mix.max_text_tokens > positions)
      all.push_back({path, fmt::format("{} frames and {} text tokens are more than the decoder's {} positions", frames,
                                       mix.max_text_tokens, positions)});
  };
  for (const plan::Stage& stage : plan.stages) {
    const std::string path = "stages" + key_part(stage.name);
    look(path + ".data", stage.data);
    for (const plan::EvaluationSet& set : stage.evaluation.sets)
      look(path + ".evaluation.sets" + key_part(set.name) + ".data", set.data);
  }
  return all;
}

void require_positions(const Resolved& resolved, int64_t positions) {
  std::vector<Mistake> mistakes;
  for (const LongSequences& long_ones : longer_than(resolved.plan, positions)) {
    const std::string path = long_ones.mix + ".max_text_tokens";
    mistakes.push_back({origin_of(resolved, path), path, long_ones.what, shorter_sequences});
  }
  if (!mistakes.empty()) throw RecipeError(std::move(mistakes));
}

} // namespace fvlm::recipe
