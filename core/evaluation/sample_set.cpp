#include "evaluation/sample_set.h"

#include "base/error.h"
#include "base/log.h"
#include "data/stream/prefetcher.h"
#include "evaluation/boxes.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::evaluation {
namespace {

constexpr int64_t samples_a_step = 1024; // window of samples from which the packer fills packs

int64_t count_of(const std::vector<int64_t>& sizes) {
  int64_t all = 0;
  for (const int64_t size : sizes) all += size;
  return all;
}

// Each sample once: all of them, or a subset spread over the sources that does not depend on the run's seed.
Order order_of(const plan::EvaluationSet& set, plan::Mix mix, const std::vector<int64_t>& sizes) {
  if (set.samples == 0 || set.samples >= count_of(sizes)) return Order::once(sizes);
  for (plan::Source& source : mix.sources) source.epochs = 1;
  return Order::shuffled(mix, sizes, 0, set.name, set.samples);
}

int64_t longest_sequence(const Sample& sample) {
  int64_t longest = 0;
  for (const SampleText& text : sample.texts) longest = std::max(longest, sample.rows(text));
  for (const auto* others : {&sample.further, &sample.inputs})
    for (const auto& other : *others) longest = std::max(longest, longest_sequence(*other));
  return longest;
}

int64_t labels_of(const SampleText& text) {
  return std::count(text.answer_mask.begin() + 1, text.answer_mask.end(), 1);
}

} // namespace

SampleSet::SampleSet(plan::EvaluationSet settings, OpenedSource source, const PackSize& limit)
    : settings_(std::move(settings)), source_(std::move(source)),
      order_(order_of(settings_, source_.mix, source_.samples->sizes())) {
  for (size_t decoder = 0; decoder < decoders(); ++decoder)
    answers_.emplace_back(tokenizer(decoder), settings_.data.for_decoder(decoder).chat_template);
  PackSize largest, all;
  measure_all(largest, all);
  if (samples_ == 0)
    throw Error(ErrorKind::data,
                skipped_.empty()
                    ? "the evaluation set has no sample"
                    : fmt::format("none of its {} samples can be used; the first, '{}' of {}: {}", skipped_.size(),
                                  skipped_.front().key, skipped_.front().place, skipped_.front().reason))
        .at("evaluation set " + settings_.name);
  if (!skipped_.empty())
    log_warning("evaluation set {}: {} of {} samples cannot be used; the first, '{}' of {}: {}", settings_.name,
                skipped_.size(), samples_ + static_cast<int64_t>(skipped_.size()), skipped_.front().key,
                skipped_.front().place, skipped_.front().reason);

  PackSize& capacity = batches_.capacity;
  const auto frame_bytes = static_cast<uint64_t>(source_.samples->frame_elements()) * sizeof(float);
  const auto frames_in_memory = // two packs
      frame_bytes > 0 ? static_cast<int64_t>(source_.loader.memory / (2 * frame_bytes)) : all.frames;
  capacity.rows = std::min(std::max(limit.rows, largest.rows), all.rows);
  capacity.frames = std::max(std::min({limit.frames, frames_in_memory, all.frames}), largest.frames);
  batches_.batch.samples = samples_a_step;
  if (settings_.samples > 0) batches_.samples = settings_.samples;
  pack_ = source_.packer(capacity);
}

void SampleSet::measure_all(PackSize& largest, PackSize& all) {
  ThreadPool workers(source_.loader.workers);
  Prefetcher ahead(*source_.samples, order_, Composer::start(batches_, order_), workers, 64);
  const int64_t limit = settings_.samples > 0 ? settings_.samples : count_of(source_.samples->sizes());
  int64_t cut = 0; // samples whose own answer is expected, and not whole
  while (samples_ < limit) {
    const auto measured = ahead.next();
    if (!measured) break;
    source_at_.push_back(measured->drawn.source);
    if (!measured->sample) {
      skipped_.push_back(measured->skipped);
      continue;
    }
    if (!measured->sample->is_desirable.value_or(true)) {
      skipped_.push_back(measured->skipped);
      skipped_.back().reason = "its answer is labelled a bad one, and an evaluation measures good ones";
      continue;
    }
    for (size_t decoder = 0; decoder < decoders(); ++decoder) check(*measured, decoder);
    const Sample& sample = *measured->sample;
    ++samples_;
    cut += sample.answers.empty() && sample.truncated_answer_tokens > 0;
    largest = {std::max(largest.frames, sample.frames), std::max(largest.rows, sample.rows())};
    all = {all.frames + sample.frames, all.rows + sample.rows()};
    for (const auto& part : packed_parts(measured->sample)) longest_.video = std::max(longest_.video, part->frames);
    longest_.sequence = std::max(longest_.sequence, longest_sequence(sample));
  }
  if (cut > 0 && settings_.generates())
    log_warning(
        "evaluation set {}: max_text_tokens = {} cuts the expected answers of {} of {} samples, and generated ones "
        "are compared with what is left",
        settings_.name, settings_.data.max_text_tokens, cut, samples_);
}

std::string SampleSet::name(size_t decoder) const {
  return decoder == 0 ? settings_.name : settings_.name + "." + plan::decoder_name(decoder);
}

void SampleSet::check(const MeasuredSample& measured, size_t decoder) const {
  const Sample& sample = *for_decoder(measured.sample, decoder);
  const bool is_question = sample.texts.size() > 1 && sample.correct_choice;
  const bool is_pair = sample.texts.size() == 2 && !sample.correct_choice;
  const auto refuse = [&](const char* what, const char* advice) {
    throw Error(ErrorKind::data, "sample '{}' {}", sample.key, what)
        .at("{} (evaluation set {})", measured.skipped.place, settings_.name)
        .advise(advice);
  };
  const bool is_retrieval = settings_.measure == plan::Measure::retrieval;
  if (is_retrieval && sample.inputs.empty())
    refuse("is no query with what it is to find", "measure = \"retrieval\" takes {\"query\", \"positive\"}");
  if (!is_retrieval && !sample.inputs.empty())
    refuse("is a query with what it is to find", "measure = \"retrieval\" takes such samples");
  if (settings_.measure != plan::Measure::bits_per_byte &&
      std::ranges::any_of(sample.texts, [](const SampleText& text) { return labels_of(text) == 0; }))
    refuse("has a text without a token to measure", "loss_mask says which tokens those are; the first is none");
  if (settings_.measure == plan::Measure::choice && !is_question)
    refuse(
        "is no question with options and a right answer",
        "measure = \"choice\" takes {\"user\", \"choices\": [...], \"answer\"}; measure = \"loss\" takes any sample");
  if (settings_.measure == plan::Measure::preference && !is_pair)
    refuse("is no pair", "measure = \"preference\" takes {\"user\", \"chosen_assistant\", \"rejected_assistant\"}");
  const auto has_box = [](const std::string& answer) {
    return std::ranges::any_of(regions_in(answer), [](const Region& region) { return !region.is_point; });
  };
  if (settings_.measure == plan::Measure::iou &&
      std::ranges::none_of(answers(decoder).expected(sample, sample.texts.front()), has_box))
    refuse("has no box in its last answer", "measure = \"iou\" compares boxes; measure = \"answer\" takes any answer");
}

std::unique_ptr<DataLoader> SampleSet::loader(int64_t limit) const {
  BatchPlan plan = batches_;
  if (limit > 0) plan.samples = plan.samples > 0 ? std::min(plan.samples, limit) : limit;
  return open(plan, 0);
}

std::unique_ptr<DataLoader> SampleSet::loader_of(int64_t rank, int64_t ranks) const {
  BatchPlan plan = batches_;
  plan.ranks = ranks;
  plan.every_rank_has_a_pack = false;
  return open(plan, rank);
}

std::unique_ptr<DataLoader> SampleSet::open(const BatchPlan& plan, int64_t rank) const {
  // Samples that cannot be used are skipped; they were reported when the set was opened.
  Cursor start = Composer::start(plan, order_);
  for (const SkippedSample& skipped : skipped_) {
    start.done.resize(static_cast<size_t>(skipped.position) + 1);
    start.done.back() = true;
  }
  DataLoaderOptions options = source_.loader;
  options.rank = rank;
  return std::make_unique<DataLoader>(*source_.samples, order_, plan, pack_, options, std::move(start));
}

const std::string& SampleSet::source_of(const PackedSample& packed) const {
  const std::string& own = packed.sample->source;
  return own.empty() ? source_.source_names.at(source_at_.at(static_cast<size_t>(packed.position))) : own;
}

} // namespace fvlm::evaluation
