#include "data/stream/data_sizes.h"

#include "base/error.h"
#include "base/glob.h"
#include "base/parallel.h"
#include "base/text.h"
#include "data/preprocess.h"
#include "data/samples/frames.h"
#include "data/stream/mix_samples.h"
#include "data/stream/prefetcher.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

constexpr int64_t shards_of_source = 4, samples_of_source = 256;

// Evenly spread shards of each source in place of all.
plan::Mix with_few_shards(plan::Mix mix, int64_t& looked_at, int64_t& all) {
  for (plan::Source& source : mix.sources) {
    std::vector<std::string> files;
    for (const std::string& pattern : source.patterns())
      for (std::string& file : match_files(pattern).files) files.push_back(std::move(file));
    if (files.empty())
      throw Error(ErrorKind::data, "{} is not there",
                  source.patterns().empty() ? "its first shard" : source.patterns().front());
    std::vector<std::string> few;
    for (const int64_t pick : evenly_spaced(std::ssize(files), shards_of_source))
      few.push_back(files[static_cast<size_t>(pick)]);
    looked_at += std::ssize(few);
    all += std::ssize(files);
    source.patterns() = std::move(few);
  }
  return mix;
}

struct Largest {
  int64_t samples = 0, frames = 0, tokens = 0;
  double mean_frames = 0, mean_rows = 0; // of the mix
};

// `shares` of the sources in the mix.
Largest largest_of(const MixSamples& samples, const std::vector<double>& shares) {
  const std::vector<MeasuredSample> all = measure_evenly(samples, samples_of_source);
  Largest largest;
  int64_t broken = 0;
  std::vector<int64_t> usable(shares.size());
  for (const MeasuredSample& measured : all) usable[measured.drawn.source] += measured.sample != nullptr;
  for (const MeasuredSample& measured : all) {
    if (!measured.sample) {
      broken += measured.skipped.broken;
      if (broken > std::ssize(all) / 10)
        throw Error(ErrorKind::data, measured.skipped.reason).at(measured.skipped.place);
      continue;
    }
    ++largest.samples;
    const size_t source = measured.drawn.source;
    const double share = shares.at(source) / static_cast<double>(usable[source]);
    largest.mean_frames += share * static_cast<double>(measured.sample->frames);
    largest.mean_rows += share * static_cast<double>(measured.sample->rows());
    for (const auto& part : packed_parts(measured.sample)) {
      largest.frames = std::max(largest.frames, part->frames);
      for (const SampleText& text : part->texts) largest.tokens = std::max(largest.tokens, text.tokens());
    }
  }
  return largest;
}

} // namespace

std::vector<MeasuredSample> measure_evenly(const SampleSource& samples, int64_t most) {
  const auto sizes = samples.sizes();
  std::vector<DrawnSample> drawn;
  for (size_t source = 0; source < sizes.size(); ++source)
    for (const int64_t sample : evenly_spaced(sizes[source], most)) drawn.push_back({0, source, 0, sample});
  std::vector<MeasuredSample> all(drawn.size());
  in_parallel(std::ssize(drawn), threads_or_cores(0),
              [&](int64_t i) { all[static_cast<size_t>(i)] = measure(samples, drawn[static_cast<size_t>(i)]); });
  return all;
}

// Where many samples cannot be measured, videos without a reader for example, they may be as large as the recipe
// allows.
DataSizes measure_data_sizes(const plan::Plan& plan, const plan::Stage& stage, const VideoDecoder* video,
                             const plan::VisualRows& visual_rows) {
  DataSizes sizes{stage, {}};
  plan::Mix& limits = sizes.stage.data;
  const std::string allowed =
      fmt::format("{} frames and {} tokens", grouped(stage.largest_sample(visual_rows.per_frame).longest_video),
                  grouped(limits.max_text_tokens));
  const auto keep = [&](const std::string& why) {
    sizes.said =
        fmt::format("samples as large as the recipe allows, {}: the data were not looked at, {}", allowed, why);
    return sizes;
  };
  try {
    int64_t shards = 0, all_shards = 0;
    const plan::Mix mix = with_few_shards(resolve_preprocessed_mix(plan, stage.data, visual_rows), shards, all_shards);
    const auto tokenizer = Tokenizer::from_file(preprocess_input(plan, mix, visual_rows).tokenizer);
    const MixSamples samples(mix, tokenizer, frame_preparation(plan.model), video, visual_rows,
                             ShardOptions{.index_beside = false});
    Largest largest = largest_of(samples, mix.shares(0.5));
    if (mix.documents) largest.tokens = limits.max_text_tokens; // which every row has, of one document or several
    if (largest.samples == 0) return keep("no sample of it can be used");
    limits.max_frames = std::clamp<int64_t>(largest.frames, 1, limits.max_frames);
    limits.replicate_image_frames = std::min(limits.replicate_image_frames, std::max<int64_t>(largest.frames, 1));
    const plan::Rollouts* rollouts = stage.rollouts(); // whose answers may be longer than those of the data
    limits.max_text_tokens =
        std::clamp<int64_t>(largest.tokens + (rollouts ? rollouts->max_new_tokens : 0), 2, limits.max_text_tokens);
    sizes.said =
        fmt::format("samples as the data have them, at most {} frames and {} tokens among {} looked at in {} of "
                    "{} shards; the recipe allows {}",
                    grouped(largest.frames), grouped(largest.tokens), grouped(largest.samples), grouped(shards),
                    grouped(all_shards), allowed);
    sizes.seen = true;
    if (largest.mean_rows > 0) sizes.frames_per_row = largest.mean_frames / largest.mean_rows;
    return sizes;
  } catch (const Error& error) {
    return keep(fmt::format("since {}", error.where().empty() ? error.what() : error.where() + ": " + error.what()));
  }
}

} // namespace fvlm
