// The tokens with which a decoder ends an answer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fvlm {

// The tokens after which nothing follows: `eos_token_id` of the generation_config.json in a decoder's folder, or else
// `of_config`, those of its config.json. Throws Error(data).
std::vector<int64_t> end_tokens(const std::filesystem::path& decoder, const std::vector<int64_t>& of_config);

} // namespace fvlm
