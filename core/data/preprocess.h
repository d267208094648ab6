// preprocess: the samples of a mix tokenised, decoded and resized once, into shards that are read much faster.
#pragma once
#include "data/shards/shard_set.h"
#include "recipe/plan.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

class VideoDecoder;

// All that the samples depend on besides the bytes of the shards.
struct PreprocessInput {
  plan::Mix mix;
  std::filesystem::path tokenizer; // the tokenizer.json of the model's decoder
  int64_t image_size = 0;
};

// Of a plan's model and one of its mixes.
PreprocessInput preprocess_input(const plan::Plan& plan, const plan::Mix& mix);

struct PreprocessOptions {
  int threads = 0; // 0: one for each core
  ShardOptions shards;
  plan::Quarantine quarantine;
};

struct Preprocessed {
  int64_t samples = 0, broken = 0;
  uint64_t bytes = 0;
  std::vector<std::string> reasons; // of the first broken ones
};

// Writes a folder that holds for each source, by its number, one shard for each of its shards, with the same samples in
// the same order. A broken sample keeps its place, and its reason. Throws Error(data) when too many are broken, and
// when there is something other than an older such folder, which is replaced. `progress`: samples of all sources.
Preprocessed preprocess(const std::filesystem::path& folder, const PreprocessInput& input, const VideoDecoder* video,
                        const PreprocessOptions& options,
                        const std::function<void(int64_t done, int64_t all)>& progress);

// What differs between what the folder was made from and what is there now; nothing: the folder may be read in place
// of the mix's shards. Throws Error(data) where `preprocess` has written no folder.
std::optional<std::string> stale_reason(const std::filesystem::path& folder, const PreprocessInput& input);

// The same mix, its sources' shards being those of the folder. Read so, it gives the same samples: max_text_tokens,
// overlong, the weights and the order may change without another preprocess().
plan::Mix preprocessed_mix(const std::filesystem::path& folder, const plan::Mix& mix);

// What is read of a plan's mix: what `preprocess` made of it, where it names such a folder that is there and fits; else
// itself.
plan::Mix readable_mix(const plan::Plan& plan, const plan::Mix& mix);

} // namespace fvlm
