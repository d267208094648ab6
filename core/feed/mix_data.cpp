#include "feed/mix_data.h"

#include "base/log.h"
#include "base/parallel.h"
#include "data/preprocess.h"
#include "feed/staging.h"
#include "model/weights/visual_rows.h"

#include <algorithm>

namespace fvlm::feed {
namespace {

// Of a rank: its share of the cores, where the recipe does not say. 0: the loader's own default.
int workers_of(const plan::Loader& loader, int64_t ranks_here) {
  if (loader.workers || ranks_here <= 1) return static_cast<int>(loader.workers.value_or(0));
  return static_cast<int>(std::max<int64_t>(1, threads_or_cores(0) / ranks_here - 1));
}

DataLoaderOptions loader_options_of(const plan::Loader& loader, const MixDataOptions& options) {
  return {.workers = workers_of(loader, options.ranks_here),
          .memory = static_cast<uint64_t>(loader.memory_mib) << 20,
          .allocate = staging_for(options.device),
          .rank = options.rank,
          .quarantine_log = options.quarantine_log,
          .quarantine = loader.quarantine};
}

Tokenizer tokenizer_of(const plan::Model& model) {
  return Tokenizer::from_file(std::filesystem::path(model.tokenizer_folder()) / "tokenizer.json");
}

} // namespace

MixData::MixData(const plan::Plan& plan, const plan::Mix& mix, Registry& registry, const MixDataOptions& options)
    : visual_rows_(visual_rows(plan.model)), planned_(mix), mix_(resolve_preprocessed_mix(plan, mix, visual_rows_)),
      loader_(loader_options_of(plan.loader, options)), tokenizer_(tokenizer_of(plan.model)), further_([&] {
        std::deque<Further> further;
        for (size_t i = 1; i < plan.model.decoder_count(); ++i)
          further.push_back({mix.for_decoder(i), tokenizer_of(plan.model.with_decoder(i))});
        return further;
      }()),
      video_(mix_.has_frames() ? choose_video_decoder(registry, plan.kernels["video"]) : std::nullopt),
      samples_(mix_, tokenizer_, frame_preparation(plan.model), video_ ? &*video_ : nullptr, visual_rows_,
               ShardOptions{}, options.progress, options.texts, options.teacher_is_cached, [&] {
                 std::vector<DecoderReads> reads;
                 for (const Further& each : further_) reads.push_back({&each.mix, &each.tokenizer});
                 return reads;
               }()) {
  for (const plan::Source& source : mix.sources) names_.push_back(name_of(source));
}

std::vector<const Tokenizer*> MixData::tokenizers() const {
  std::vector<const Tokenizer*> all{&tokenizer_};
  for (const Further& each : further_) all.push_back(&each.tokenizer);
  return all;
}

std::vector<uint64_t> MixData::content_hashes() const {
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < planned_.sources.size(); ++i) {
    const plan::Source& source = planned_.sources[i];
    hashes.push_back(mix_.sources[i].patterns() == source.patterns()
                         ? samples_.content_hash(i)
                         : content_hash(ShardSet(source.patterns(), with_root({}, source)), source));
  }
  return hashes;
}

} // namespace fvlm::feed
