#include "train/stage_data.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/preprocess.h"
#include "data/stream/read_ahead.h"
#include "ops/packer.h"
#include "plugin/selection.h"
#include "train/staging.h"

#include <algorithm>
#include <limits>

namespace fvlm::train {
namespace {

constexpr int64_t usual_rows = 8192;      // of a pack whose size the recipe leaves open
constexpr int64_t samples_for_size = 256; // that are looked at to give it as many frames as go with the rows

std::filesystem::path tokenizer_folder(const plan::Model& model) {
  if (const auto* folder = std::get_if<std::string>(&model.decoder)) return *folder;
  return std::get<plan::Llama>(model.decoder).tokenizer;
}

PackFunction chosen_packer(const plan::Plan& plan, Registry& registry, const PackSize& capacity) {
  const std::vector<int64_t> sizes = {capacity.frames, capacity.rows};
  const fvlm_packer_query query{sizeof query, 2, 0, sizes.data()};
  const auto choice = select<fvlm_packer_v1>(registry, Wish::of(plan.kernels["packer"]), query);
  const ops::Backend<fvlm_packer_v1> backend(choice, at::kCPU);
  return [backend](const std::vector<int64_t>& items, const PackSize& room, int64_t most_items, uint64_t seed) {
    return ops::Packer(backend, {room.frames, room.rows}, most_items).pack(items, seed).of_item;
  };
}

// What the mix lets through at most.
PackSize largest_sample(const plan::Stage& stage) {
  const bool frames = std::any_of(stage.data.sources.begin(), stage.data.sources.end(),
                                  [](const plan::Source& source) { return source.text.empty(); });
  const int64_t texts = stage.prefers() ? 2 : 1;
  PackSize largest;
  if (frames) largest.frames = std::max(stage.data.max_frames, stage.data.replicate_image_frames);
  largest.rows = texts * (largest.frames + stage.data.max_text_tokens);
  return largest;
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

} // namespace

const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::Stage& stage : plan.stages) {
    if (name.empty() || stage.name == name) return stage;
    names.push_back(stage.name);
  }
  Error error(ErrorKind::usage, fmt::format("the recipe has no stage '{}'", name));
  throw error.advise(names.empty() ? "it has none" : "it has " + join_or(names));
}

StageData::StageData(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                     const StageDataOptions& options)
    : plan_(plan), stage_(stage), mix_(readable(plan, stage.data)), options_(options.loader),
      tokenizer_(Tokenizer::from_file(tokenizer_folder(plan.model) / "tokenizer.json")),
      video_(choose_video_decoder(registry, plan.kernels["video"])) {
  if (options_.workers == 0) options_.workers = static_cast<int>(plan.loader.workers.value_or(0));
  options_.memory = static_cast<uint64_t>(plan.loader.memory_mib) << 20;
  options_.quarantine = plan.loader.quarantine;
  options_.allocate = staging_for(options.device);
  for (const plan::Source& source : stage.data.sources) names_.push_back(name_of(source));
  samples_ = std::make_unique<MixSamples>(mix_, tokenizer_, plan.model.image_size, video_ ? &*video_ : nullptr,
                                          ShardOptions{}, options.progress);
  order_ = Order::shuffled(stage.data, samples_->sizes(), static_cast<uint64_t>(plan.seed), stage.name, stage.samples);
  batches_ = {.batch = stage.batch,
              .capacity = capacity(),
              .most_samples = stage.packing.segments.value_or(0),
              .window = stage.packing.window,
              .samples = stage.samples,
              .ranks = options.ranks,
              .seed = static_cast<uint64_t>(plan.seed)};
  pack_ = chosen_packer(plan, registry, batches_.capacity);
}

// As the recipe says; what it leaves open holds any sample, and frames and rows in the proportion of the data.
PackSize StageData::capacity() const {
  const PackSize largest = largest_sample(stage_);
  const plan::Packing& packing = stage_.packing;
  PackSize capacity{packing.frames.value_or(0), packing.tokens.value_or(std::max(largest.rows, usual_rows))};
  if (packing.frames || largest.frames == 0) return capacity;
  DataStatistics seen;
  seen.capacity = capacity;
  auto state = order_->begin();
  for (int64_t i = 0; i < samples_for_size; ++i) {
    const auto drawn = order_->next(state);
    if (!drawn) break;
    const Measured measured = measure(*samples_, *drawn);
    if (measured.sample) seen.add(measured, names_[drawn->source]);
  }
  capacity.frames = std::max(seen.suggestion().frames, largest.frames);
  return capacity;
}

std::unique_ptr<Loader> StageData::loader(const Cursor& from) const {
  return std::make_unique<Loader>(*samples_, *order_, batches_, pack_, options_, from);
}

DataStatistics StageData::statistics(int64_t samples, const std::function<void(int64_t done)>& progress) const {
  DataStatistics statistics;
  statistics.capacity = batches_.capacity;
  BatchPlan plan = batches_;
  if (samples > 0) plan.samples = plan.samples > 0 ? std::min(plan.samples, samples) : samples;
  Workers workers(options_.workers);
  ReadAhead ahead(*samples_, *order_, start(), workers, 64);
  Composer composer(plan, *order_, pack_, start(), [&] { return ahead.next(); });
  while (const auto step = composer.next()) {
    statistics.add(*step, names_);
    if (progress) progress(step->after.samples);
  }
  return statistics;
}

} // namespace fvlm::train
