// A mix of a plan, opened: its tokenizer, its shards, and what a loader over them is to know.
#pragma once
#include "data/media/video.h"
#include "data/stream/loader.h"
#include "data/stream/mix_samples.h"
#include "data/tokenizer.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <c10/core/Device.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::feed {

// What the plan does not say.
struct MixDataOptions {
  int64_t rank = 0;
  int64_t ranks_here = 1;               // that share the machine's cores
  std::filesystem::path quarantine_log; // empty: none
  at::Device device = at::kCPU;         // that reads the frames
  MixSamples::Progress progress;
  int64_t texts = 0; // see MixSamples
  bool teacher_is_cached = false;
};

class MixData {
 public:
  // The plan outlives it. Throws Error for what is missing or makes no sense.
  MixData(const plan::Plan& plan, const plan::Mix& mix, Registry& registry, const MixDataOptions& options);
  MixData(const MixData&) = delete;
  MixData& operator=(const MixData&) = delete;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Of each decoder, the first's before others.
  std::vector<const Tokenizer*> tokenizers() const;
  const MixSamples& samples() const { return samples_; }
  const std::vector<std::string>& source_names() const { return names_; }
  // content_hash() of each source. Of a preprocessed mix, of the shards that it was made from.
  std::vector<uint64_t> content_hashes() const;
  const DataLoaderOptions& loader_options() const { return loader_; }

 private:
  plan::VisualRows visual_rows_;
  const plan::Mix& planned_;
  plan::Mix mix_; // the plan's, or what `preprocess` made of it
  DataLoaderOptions loader_;
  Tokenizer tokenizer_;
  struct Further {
    plan::Mix mix;
    Tokenizer tokenizer;
  };
  std::deque<Further> further_; // of decoders after the first; a deque, as others refer to them
  std::vector<std::string> names_;
  std::optional<VideoDecoder> video_;
  MixSamples samples_;
};

} // namespace fvlm::feed
