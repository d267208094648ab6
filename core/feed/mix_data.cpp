#include "feed/mix_data.h"

#include "base/log.h"
#include "data/preprocess.h"
#include "feed/staging.h"

namespace fvlm::feed {
namespace {

std::filesystem::path tokenizer_folder(const plan::Model& model) {
  if (const auto* folder = std::get_if<std::string>(&model.decoder)) return *folder;
  return std::get<plan::Llama>(model.decoder).tokenizer;
}

// What `preprocess` made of the mix, where it is there and fits.
plan::Mix readable(const plan::Plan& plan, const plan::Mix& mix) {
  if (!mix.preprocessed) return mix;
  if (const auto reason = stale_reason(*mix.preprocessed, preprocess_input(plan, mix))) {
    log_warning("{}: the shards themselves are read, since this does not fit them: {}", *mix.preprocessed, *reason);
    return mix;
  }
  return preprocessed_mix(*mix.preprocessed, mix);
}

LoaderOptions as_planned(LoaderOptions options, const plan::Loader& loader, at::Device device) {
  if (options.workers == 0) options.workers = static_cast<int>(loader.workers.value_or(0));
  options.memory = static_cast<uint64_t>(loader.memory_mib) << 20;
  options.quarantine = loader.quarantine;
  options.allocate = staging_for(device);
  return options;
}

} // namespace

MixData::MixData(const plan::Plan& plan, const plan::Mix& mix, Registry& registry, const MixDataOptions& options)
    : mix_(readable(plan, mix)), options_(as_planned(options.loader, plan.loader, options.device)),
      tokenizer_(Tokenizer::from_file(tokenizer_folder(plan.model) / "tokenizer.json")),
      video_(choose_video_decoder(registry, plan.kernels["video"])),
      samples_(mix_, tokenizer_, plan.model.image_size, video_ ? &*video_ : nullptr, ShardOptions{}, options.progress) {
  for (const plan::Source& source : mix.sources) names_.push_back(name_of(source));
}

} // namespace fvlm::feed
