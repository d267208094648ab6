#include "evaluation/score.h"

#include "base/log.h"
#include "evaluation/retrieval.h"
#include "evaluation/scored_part.h"
#include "feed/model_samples.h"
#include "model/attention_entropy.h"
#include "model/objectives.h"
#include "ops/torch_threads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace fvlm::evaluation {
namespace {

int64_t rounded_up(int64_t count, int64_t step) {
  return (count + step - 1) / step * step;
}

// Packs of a set are of few sizes, so that what plugins prepared for one serves the others.
model::Capacity capacity_of(const std::vector<model::Sample>& samples, const SampleSet& set, int64_t rows_per_frame) {
  const auto in_eighths = [](int64_t used, int64_t most) {
    return std::max(used, std::min(most, rounded_up(used, std::max<int64_t>(1, most / 8))));
  };
  model::Capacity capacity = model::Capacity::of(samples, rows_per_frame);
  capacity.frames = in_eighths(capacity.frames, set.capacity().frames);
  capacity.encoder_frames = in_eighths(capacity.encoder_frames, set.capacity().frames);
  capacity.rows = in_eighths(capacity.rows, set.capacity().rows);
  capacity.bytes = rounded_up(capacity.bytes, 256);
  capacity.sequences = rounded_up(capacity.sequences, 16);
  capacity.labels = rounded_up(capacity.labels, 256);
  capacity.longest_sequence = std::max(capacity.longest_sequence, set.longest().sequence); // answers may be longer
  capacity.longest_video = set.longest().video;
  return capacity;
}

// The text whose answer is right.
const SampleText& correct_text(const Sample& sample) {
  return sample.texts.at(static_cast<size_t>(sample.correct_choice.value_or(0)));
}

int64_t most_answer_tokens(const SampleSet& set) {
  constexpr int64_t usual = 128;
  return set.settings().max_new_tokens.value_or(usual);
}

void add_answers(const SampleSet& set, size_t decoder, const HostPack& loaded, Answerer& answerer,
                 ScoredPack& scored_pack) {
  auto answers = generate_answers(loaded, scored_pack, answerer, most_answer_tokens(set));
  for (size_t i = 0; i < answers.size(); ++i) {
    const Sample& sample = *loaded.samples[i].sample;
    scored_pack.scores[i].generated = {std::move(answers[i]),
                                       set.answers(decoder).expected(sample, correct_text(sample))};
  }
}

// For each text, how many tokens are likelier than that of its first label.
std::vector<int64_t> first_ranks(const model::Model& model, ops::Operations& ops, const model::Pack& pack,
                                 const ops::Value& hidden) {
  std::vector<int64_t> firsts;
  int64_t begin = 0;
  for (const int64_t labels : pack.labels_per_text) {
    firsts.push_back(begin);
    begin += labels;
  }
  ops::Tape none(ops::Tape::Mode::forward_only);
  const at::Tensor index = at::tensor(firsts, at::kLong).to(hidden.data.device());
  const at::Tensor rows = hidden.data.index_select(0, pack.labels.rows.index_select(0, index)),
                   logits = model.decoder().logits(none, ops, ops::Value(rows)).data,
                   own = logits.gather(1, pack.labels.targets.index_select(0, index).unsqueeze(1));
  const at::Tensor ranks = logits.gt(own).sum(1).cpu();
  return {ranks.const_data_ptr<int64_t>(), ranks.const_data_ptr<int64_t>() + ranks.numel()};
}

std::vector<bool> answer_of(const SampleText& text) {
  return {text.answer_mask.begin(), text.answer_mask.end()};
}

// Every token that stands for bytes of the text, but the first, which nothing predicts.
std::vector<bool> text_of(const SampleText& text, const Tokenizer& tokenizer) {
  std::vector<bool> labels(text.ids.size());
  for (size_t i = 1; i < labels.size(); ++i) labels[i] = text.ids[i] >= 0 && !tokenizer.is_special(text.ids[i]);
  return labels;
}

int64_t bytes_of(const model::Text& text, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (size_t i = 1; i < text.tokens.size(); ++i)
    if (text.is_label[i]) bytes += std::ssize(tokenizer.bytes_of(static_cast<TokenId>(text.tokens[i])));
  return bytes;
}

} // namespace

feed::Repeats repeats_of(const model::Model& model) {
  return model.speed.shared_repeated_frames ? feed::Repeats::share_encoding : feed::Repeats::apart;
}

ReadSamples read_samples(const SampleSet& set, const std::vector<model::Sample>& samples, const model::Model& model,
                         ops::Operations& ops, const std::string& mode, model::EncodeOutputs outputs) {
  ops::Tape none(ops::Tape::Mode::forward_only);
  const model::FrameReader reader = model.frame_reader(set.image_size(), set.image_size());
  ReadSamples read;
  read.pack = model::make_pack(samples, capacity_of(samples, set, reader.rows_per_frame), reader, ops.tensor_options());
  read.seen = model.encode(none, ops, read.pack, mode, outputs);
  read.hidden = model.decode(none, ops, read.seen.tokens, read.pack);
  return read;
}

ScoredPack score_pack(const SampleSet& set, const HostPack& of_all, const model::Model& whole, ops::Operations& ops,
                      const std::string& mode, model::EncodeOutputs outputs, size_t decoder) {
  const HostPack loaded = of_all.for_decoder(decoder);
  const model::Model& model = whole.with_decoder(decoder);
  const Tokenizer& tokenizer = set.tokenizer(decoder);
  const plan::Measure measure = set.settings().measure;
  const bool of_bytes = measure == plan::Measure::bits_per_byte;
  // A document's texts are its parts.
  const bool one_text =
      !set.settings().data.documents && measure != plan::Measure::choice && measure != plan::Measure::preference;
  ScoredPack scored_pack;
  scored_pack.samples =
      feed::model_samples(loaded, set.image_size(),
                          [&](const SampleText& text) { return of_bytes ? text_of(text, tokenizer) : answer_of(text); },
                          {feed::Texts::share_frames, repeats_of(whole)});
  for (size_t i = 0; i < scored_pack.samples.size(); ++i) {
    const PackedSample& packed = loaded.samples[i];
    auto& texts = scored_pack.samples[i].texts;
    auto correct = static_cast<size_t>(packed.sample->correct_choice.value_or(0));
    if (one_text) texts = {texts.at(std::exchange(correct, 0))};
    scored_pack.scores.push_back({packed.position, packed.sample->key, set.source_of(packed), {}, correct});
  }
  if (scored_pack.samples.empty()) return scored_pack;

  ops::Tape none(ops::Tape::Mode::forward_only);
  const auto [pack, seen, hidden] = read_samples(set, scored_pack.samples, model, ops, mode, outputs);
  const model::FrameReader reader = model.frame_reader(set.image_size(), set.image_size());
  scored_pack.visual = model::visual_by_sample(seen.tokens.data, scored_pack.samples, reader.rows_per_frame);
  if (seen.attention.defined()) scored_pack.attention = seen.attention.narrow(0, 0, pack.frames_used);
  if (seen.query_attention.defined()) scored_pack.query_attention = seen.query_attention.narrow(0, 0, pack.frames_used);
  const at::Tensor losses = model::log_probabilities(none, ops, model, hidden, pack).losses.data.to(at::kDouble).cpu();
  const double* loss = losses.const_data_ptr<double>();
  std::vector<int64_t> ranks;
  if (measure == plan::Measure::answer) ranks = first_ranks(model, ops, pack, hidden);
  size_t text = 0;
  for (size_t i = 0; i < scored_pack.samples.size(); ++i)
    for (size_t of_sample = 0; of_sample < scored_pack.samples[i].texts.size(); ++of_sample) {
      TextScore& scored = scored_pack.scores[i].texts.emplace_back();
      if (!ranks.empty()) scored.first_rank = ranks[text];
      scored.labels = pack.labels_per_text[text++];
      for (int64_t label = 0; label < scored.labels; ++label) scored.loss += *loss++;
      if (of_bytes) scored.bytes = bytes_of(scored_pack.samples[i].texts[of_sample], tokenizer);
    }
  return scored_pack;
}

std::vector<std::string> generate_answers(const HostPack& loaded, const ScoredPack& scored_pack, Answerer& answerer,
                                          int64_t tokens) {
  std::vector<Answerer::Question> questions;
  for (size_t i = 0; i < scored_pack.samples.size(); ++i) {
    const Sample& sample = *loaded.samples[i].sample;
    questions.push_back({PromptAndAnswer(correct_text(sample)).prompt, sample, scored_pack.visual[i]});
  }
  return answerer.answers(questions, tokens);
}

static ScoredPart score_part(const SampleSet& set, const model::Model& model, ops::Operations& ops,
                             const std::string& mode, const ScoreProgress& progress, size_t decoder,
                             const dist::Ranks* ranks) {
  const ops::ModelThreads threads(model.parameters().element_count());
  const auto outputs =
      set.settings().entropy ? model::EncodeOutputs::tokens_and_attention : model::EncodeOutputs::tokens;
  ScoredPart part;
  const bool generates = set.settings().generates();
  Answerer answerer(set.answers(decoder), model.with_decoder(decoder), ops, {.captures = model.speed.graphs});
  part.loader = ranks ? set.loader_of(ranks->rank(), ranks->count()) : set.loader();
  const bool embeds = set.settings().measure == plan::Measure::retrieval;
  while (const auto loaded = part.loader->next()) {
    ScoredPack scored_pack = embeds ? ScoredPack{embed_pack(set, loaded->pack, model, ops, mode), {}, {}, {}, {}}
                                    : score_pack(set, loaded->pack, model, ops, mode, outputs, decoder);
    const HostPack own = loaded->pack.for_decoder(decoder);
    if (generates) part.sizes.add(own);
    if (generates) add_answers(set, decoder, own, answerer, scored_pack);
    part.samples.insert(part.samples.end(), scored_pack.scores.begin(), scored_pack.scores.end());
    if (scored_pack.attention.defined()) {
      part.entropy += model::attention_entropies(scored_pack.attention).sum().item<double>();
      part.frames += scored_pack.attention.size(0);
    }
    const int64_t done = std::ssize(part.samples) * (ranks ? ranks->count() : 1); // the others are about as far
    if (progress) progress(std::min(done, set.samples()), set.samples());
  }
  if (answerer.thoughts_alone() > 0)
    log_warning("evaluation set {}: {} of {} answers, of at most {} tokens, are thoughts alone and count as empty; "
                "max_new_tokens of the set, or --max-tokens with --questions, lets the model think longer",
                set.name(decoder), answerer.thoughts_alone(), part.samples.size(), most_answer_tokens(set));
  return part;
}

Scores score(const SampleSet& set, const model::Model& model, ops::Operations& ops, const std::string& mode,
             const ScoreProgress& progress, size_t decoder, const dist::Ranks* ranks) {
  const c10::InferenceMode without_gradients;
  ScoredPart part =
      ops::retry_with_next_plugin(ops, [&] { return score_part(set, model, ops, mode, progress, decoder, ranks); });
  if (ranks) part.merge(*ranks);
  Scores scores;
  scores.decoder = decoder;
  scores.samples = std::move(part.samples);
  std::ranges::sort(scores.samples, {}, &SampleScore::position);
  scores.sizes = part.sizes.means(model, mode);
  if (part.frames > 0) scores.attention_entropy = part.entropy / static_cast<double>(part.frames);
  return scores;
}

} // namespace fvlm::evaluation
