#include "data/stream/mix_samples.h"

#include "base/error.h"
#include "base/text.h"
#include "data/document.h"

#include <fmt/format.h>

namespace fvlm {

std::string name_of(const plan::Source& source) {
  if (!source.name.empty()) return source.name;
  return source.patterns().empty() ? "" : source.patterns().front();
}

MixSamples::MixSamples(const plan::Mix& mix, const Tokenizer& tokenizer, const FramePreparation& frames,
                       const VideoDecoder* video, const plan::VisualRows& visual_rows, const ShardOptions& options,
                       const Progress& progress, int64_t texts, bool teacher_is_cached,
                       const std::vector<DecoderReads>& further)
    : mix_(mix), frame_elements_(visual_rows.max_bytes > 0 ? 0 : 3 * frames.image_size() * frames.image_size()),
      texts_(texts), teacher_is_cached_(teacher_is_cached), reader_(mix, tokenizer, frames, video, visual_rows) {
  for (size_t i = 0; i < further.size(); ++i) try {
      further_.emplace_back(*further[i].mix, *further[i].tokenizer, frames, video, visual_rows);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", plan::decoder_name(i + 1), error.what()))
          .at(error.where())
          .advise(error.advice());
    }
  for (const plan::Source& source : mix.sources)
    sources_.emplace_back(source.patterns(), with_root(options, source), [&](int64_t done, int64_t all) {
      if (progress) progress(name_of(source), done, all);
    });
  require_samples();
}

void MixSamples::require_samples() const {
  for (size_t i = 0; i < sources_.size(); ++i)
    if (mix_.sources[i].portion().count(sources_[i].size()) == 0)
      throw Error(ErrorKind::data, "held_out = {} leaves no sample of {} {}", *mix_.sources[i].held_out,
                  grouped(sources_[i].size()),
                  mix_.sources[i].side == plan::Portion::Side::held_out ? "to the evaluation" : "to the stage")
          .at(name_of(mix_.sources[i]))
          .advise("choose another share, or evaluate on data of its own");
}

std::vector<int64_t> MixSamples::sizes() const {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < sources_.size(); ++i) sizes.push_back(mix_.sources[i].portion().count(sources_[i].size()));
  return sizes;
}

SampleLocation MixSamples::locate(const DrawnSample& drawn) const {
  const ShardSet& shards = sources_[drawn.source];
  return shards.locate(mix_.sources[drawn.source].portion().place(drawn.sample, shards.size()));
}

Sample MixSamples::measure(const DrawnSample& drawn) const {
  const ShardSet& shards = sources_[drawn.source];
  const SampleLocation place = locate(drawn);
  const auto shard = shards.shard(place);
  Sample sample = reader_.measure(*shard, shard->sample(place.sample), mix_.sources[drawn.source]);
  sample.teacher_is_cached = teacher_is_cached_;
  if (sample.dropped.empty()) add_further(*shard, shard->sample(place.sample), mix_.sources[drawn.source], sample);
  if (sample.dropped.empty()) check_texts(sample);
  if (sample.dropped.empty() && mix_.documents && texts_ == 0)
    sample.texts = cut(sample.texts.front(), mix_.max_text_tokens);
  return sample;
}

// A sample that one decoder cannot use is used by none.
void MixSamples::add_further(const Shard& shard, const ShardSample& members, const plan::Source& source,
                             Sample& sample) const {
  for (const SampleReader& reader : further_) {
    auto own = std::make_shared<Sample>(reader.measure(shard, members, source));
    own->teacher_is_cached = teacher_is_cached_;
    sample.truncated_tokens += own->truncated_tokens;
    sample.truncated_answer_tokens += own->truncated_answer_tokens;
    sample.further.push_back(own);
    if (own->dropped.empty()) continue;
    sample.dropped = fmt::format("{}: {}", plan::decoder_name(sample.further.size()), own->dropped);
    sample.lacks_answer = own->lacks_answer;
    sample.exceeds_frames = own->exceeds_frames;
    return;
  }
}

void MixSamples::check_texts(const Sample& sample) const {
  const size_t count = sample.texts.size();
  if (texts_ == plan::Stage::inputs_in_data && sample.inputs.empty())
    throw Error(ErrorKind::data, "it is no query with what it is to find, from which contrastive learns")
        .advise("it has query (or anchor) and positive; the source's `fields` says what they are called");
  if (texts_ > 0 && !sample.inputs.empty())
    throw Error(ErrorKind::data, "it is a query with what it is to find, from which fvlm.contrastive learns")
        .advise("the source's fields = { user = \"query\", assistant = \"positive\" } reads it as a question and its "
                "answer");
  if (texts_ == 2 && (count != 2 || sample.correct_choice))
    throw Error(ErrorKind::data, "it is no pair of answers, from which dpo learns")
        .advise("a pair has chosen_assistant and rejected_assistant, or chosen and rejected; the source's `fields` "
                "says what "
                "they are called");
  if (texts_ == 1 && count != 1)
    throw Error(ErrorKind::data, "it has {} answers, and the objective learns one", count)
        .advise("the source's fields = { assistant = KEY } takes one of a pair, whose key has a text, such as "
                "\"chosen_assistant\" or \"chosen\"");
}

void MixSamples::decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const {
  const ShardSet& shards = sources_[drawn.source];
  reader_.decode(*shards.shard(locate(drawn)), sample, frames);
}

void MixSamples::decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const {
  const ShardSet& shards = sources_[drawn.source];
  reader_.decode_pixels(*shards.shard(locate(drawn)), sample, frames);
}

MarkedImages MixSamples::marked_images(const DrawnSample& drawn) const {
  const SampleLocation place = locate(drawn);
  const auto shard = sources_[drawn.source].shard(place);
  return reader_.marked_images(*shard, shard->sample(place.sample), mix_.sources[drawn.source]);
}

std::string MixSamples::place(const DrawnSample& drawn) const {
  const ShardSet& shards = sources_[drawn.source];
  return shards.path(locate(drawn).shard);
}

std::string MixSamples::key(const DrawnSample& drawn) const {
  const ShardSet& shards = sources_[drawn.source];
  const SampleLocation place = locate(drawn);
  try {
    return shards.shard(place)->sample(place.sample).key;
  } catch (const Error&) {
    return fmt::format("number {}", place.sample);
  }
}

std::vector<SkippedSample> MixSamples::damage() const {
  std::vector<SkippedSample> all;
  for (const ShardSet& source : sources_)
    for (int64_t i = 0; i < source.shards(); ++i) {
      if (source.damages(i) == 0) continue;
      for (const Damage& damage : source.shard(i)->damage())
        all.push_back({-1, source.path(i), "", fmt::format("at byte {}: {}", damage.offset, damage.reason)});
    }
  return all;
}

} // namespace fvlm
