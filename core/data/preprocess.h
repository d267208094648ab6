// The verb `preprocess`: tokenizes, decodes and resizes the samples of a mix once and writes them to shards that are
// much faster to read.
#pragma once
#include "data/media/frame_preparation.h"
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

// Everything that preprocessed samples depend on, besides the content of the shards.
struct PreprocessInput {
  plan::Mix mix;
  std::filesystem::path tokenizer; // the tokenizer.json of the model's decoder
  int64_t image_size = 0;
  plan::VisualRows visual_rows;            // of the model
  std::optional<ImageProcessor> processor; // of its encoder
};

// What makes frames of images for the model: the image processor of its vision folder, if it has one.
std::optional<ImageProcessor> image_processor(const plan::Model& model);
FramePreparation frame_preparation(const plan::Model& model);

// The input for one of the mixes of a plan.
PreprocessInput preprocess_input(const plan::Plan& plan, const plan::Mix& mix, const plan::VisualRows& visual_rows);

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

// Writes a folder with a subfolder for each source, named by its index, in which every shard of the source has a shard
// with the same samples in the same order. A broken sample keeps its position and carries the reason. An existing
// preprocessed folder is replaced. Throws Error(data) when too many samples are broken, and when something else exists
// at `folder`. `progress` counts the samples of all sources.
Preprocessed preprocess(const std::filesystem::path& folder, const PreprocessInput& input, const VideoDecoder* video,
                        const PreprocessOptions& options,
                        const std::function<void(int64_t done, int64_t all)>& progress);

// Returns why the folder does not match the current shards, tokenizer and settings; nullopt when it can be read in
// place of the shards. Throws Error(data) where there is no preprocessed folder.
std::optional<std::string> stale_reason(const std::filesystem::path& folder, const PreprocessInput& input);

// The mix with the shards of its sources replaced by those of the folder; it yields the same samples. max_text_tokens,
// overlong, weights and order are applied when samples are read, so they may change without preprocessing again.
plan::Mix preprocessed_mix(const std::filesystem::path& folder, const plan::Mix& mix);

// The mix that is actually read: the preprocessed one where the recipe names a folder that is up to date, otherwise
// `mix` itself, with a warning when the folder is stale.
plan::Mix resolve_preprocessed_mix(const plan::Plan& plan, const plan::Mix& mix, const plan::VisualRows& visual_rows);

} // namespace fvlm
