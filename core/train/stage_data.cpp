#include "train/stage_data.h"

#include "budget/frame_rows.h"
#include "data/stream/prefetcher.h"
#include "feed/packer.h"
#include "train/judged_answers.h"
#include "train/rollout_prompts.h"

#include <algorithm>

namespace fvlm::train {
namespace {

constexpr int64_t usual_rows = 8192;      // of a pack whose size the recipe leaves open
constexpr int64_t samples_for_size = 256; // that are looked at to give it as many frames as go with the rows

feed::MixDataOptions for_stage(feed::MixDataOptions options, const plan::Stage& stage) {
  options.texts = stage.texts_in_data();
  options.teacher_is_cached = stage.reads_teacher_prompt() && !stage.packs_teacher_texts();
  return options;
}

} // namespace

StageData::StageData(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                     const feed::MixDataOptions& options, int64_t ranks)
    : stage_(stage), rows_per_frame_(budget::most_rows_per_frame(plan.model)),
      mix_(plan, stage.data, registry, for_stage(options, stage)),
      order_(Order::shuffled(stage.data, mix_.samples().sizes(), static_cast<uint64_t>(plan.seed), stage.name,
                             stage.samples)) {
  const int64_t most_tokens = stage.data.max_text_tokens;
  if (const plan::Rollouts* rollouts = stage.rollouts())
    changed_ = std::make_unique<RolloutPrompts>(mix_.samples(), mix_.tokenizer(), *rollouts, most_tokens,
                                                stage.data.chat_template);
  if (stage.needs_judgements()) changed_ = std::make_unique<JudgedAnswers>(mix_.samples(), most_tokens);
  batches_ = {.batch = stage.batch,
              .capacity = capacity(),
              .most_samples = stage.packing.segments.value_or(0),
              .window = stage.packing.window,
              .samples = stage.samples,
              .ranks = ranks,
              .seed = static_cast<uint64_t>(plan.seed),
              .documents = stage.data.documents,
              .row_tokens = stage.data.max_text_tokens};
  pack_ = feed::choose_packer(registry, plan.kernels["packer"], batches_.capacity, &packer_);
}

void StageData::check_vocabulary_sizes(const plan::Model& model, const std::vector<DecoderConfig>& decoders) const {
  const auto tokenizers = mix_.tokenizers();
  for (size_t i = 0; i < tokenizers.size(); ++i)
    tokenizers[i]->check_vocabulary_size(decoders.at(i).vocab_size, model.with_decoder(i).tokenizer_folder());
}

// As the recipe says; what it leaves open holds any sample, and frames and rows in the proportion of the data.
PackSize StageData::capacity() const {
  const plan::Stage::SampleSize largest = stage_.largest_sample(rows_per_frame_);
  const plan::Packing& packing = stage_.packing;
  PackSize capacity{packing.frames.value_or(0), packing.tokens.count.value_or(std::max(largest.tokens, usual_rows))};
  if (packing.frames || largest.frames == 0) return capacity;
  DataStatistics seen;
  seen.capacity = capacity;
  auto state = order_.begin();
  for (int64_t i = 0; i < samples_for_size; ++i) {
    const auto drawn = order_.next(state);
    if (!drawn) break;
    const MeasuredSample measured = measure(samples(), *drawn);
    if (measured.sample) seen.add(measured, mix_.source_names()[drawn->source]);
  }
  capacity.frames = std::max(seen.suggestion().frames, largest.frames);
  return capacity;
}

std::unique_ptr<DataLoader> StageData::loader(const Cursor& from) const {
  return std::make_unique<DataLoader>(samples(), order_, batches_, pack_, mix_.loader_options(), from);
}

std::unique_ptr<DataLoader> StageData::loader_of_all_ranks() const {
  BatchPlan whole = batches_;
  whole.ranks = 1;
  DataLoaderOptions options = mix_.loader_options();
  if (options.rank != 0) options.quarantine_log.clear(); // rank 0 reads the same samples, and lists the broken ones
  options.rank = 0;
  return std::make_unique<DataLoader>(samples(), order_, whole, pack_, options, start());
}

DataStatistics StageData::statistics(int64_t samples, const PackPadding& padding,
                                     const std::function<void(int64_t done)>& progress) const {
  DataStatistics statistics;
  statistics.capacity = batches_.capacity;
  statistics.computed = [&](const std::vector<int64_t>& rows) { return padding.rows(rows, statistics.capacity.rows); };
  BatchPlan plan = batches_;
  if (samples > 0) plan.samples = plan.samples > 0 ? std::min(plan.samples, samples) : samples;
  ThreadPool workers(mix_.loader_options().workers);
  Prefetcher ahead(this->samples(), order_, start(), workers, 64);
  Composer composer(plan, order_, pack_, start(), [&] { return ahead.next(); });
  while (const auto step = composer.next()) {
    statistics.add(*step, mix_.source_names());
    if (progress) progress(step->after.samples);
  }
  statistics.computed = nullptr;
  return statistics;
}

} // namespace fvlm::train
