// What the generation_config.json of a decoder's folder says of its answers.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace fvlm {

// The tokens after which nothing follows: its `eos_token_id`, or else `of_config`, those of config.json. Throws
// Error(data).
std::vector<int64_t> end_tokens(const std::filesystem::path& decoder, const std::vector<int64_t>& of_config);

// How answers are to be drawn, unless somebody says otherwise. Nothing: it does not say.
struct RecommendedSampling {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
};
// Nothing where it does not say `do_sample`: but for the penalty, values are not used then. Throws Error(data).
RecommendedSampling recommended_sampling(const std::filesystem::path& decoder);

} // namespace fvlm
