#include "train/pass_builder.h"

#include "model/context_part.h"
#include "model/size_class.h"
#include "objective/labels.h"
#include "ops/dry_run.h"
#include "train/padding.h"
#include "train/retrieval_pairs.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace fvlm::train {

static Sample::Role role_of(const PackedSample& packed) {
  return packed.sample->role;
}

PassBuilder::PassBuilder(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
                         const at::TensorOptions& options, const model::Capacity& max, const ops::ContextGroup& context)
    : stage_(stage), speed_(plan.speed),
      texts_(plan.speed.shared_preference_frames ? feed::Texts::share_frames : feed::Texts::apart),
      image_size_(plan.model.image_size), reader_(policy.frame_reader(image_size_, image_size_)), options_(options),
      max_(max), context_(context), classes_(max, ops::real_device(options.device()).is_cuda(),
                                             PackClasses::decoder_share(policy, max, reader_.tokens_per_frame)) {
  std::ranges::copy_if(stage.objective, std::back_inserter(teacher_terms_),
                       [](const plan::Term& term) { return term->reads_teacher_prompt(); });
}

// The tokens that the output head predicts: the labels of any term, or all tokens.
std::vector<bool> PassBuilder::predicted(const SampleText& text) const {
  return speed_.loss_tokens_only ? objective::labels(text, stage_.objective)
                                 : objective::labels(text, plan::LabelSelection{plan::LossOn::all, {}});
}

template <class EachToken>
auto PassBuilder::PredictedTokens::at_labels(const EachToken& each_token) const {
  decltype(each_token(texts.front())) selected;
  for (const OfText& each : texts) {
    const auto all = each_token(each);
    for (size_t i = 0; i < all.size(); ++i)
      if (each.is_predicted[i]) selected.push_back(all[i]);
  }
  return selected;
}

// The weights of the pack's labels in the term.
at::Tensor PassBuilder::mask_of(size_t term, const PredictedTokens& tokens, int64_t size, double progress) const {
  const plan::ObjectiveTerm& of_term = *stage_.objective[term];
  const auto selection = of_term.labels_at(progress);
  auto mask = tokens.at_labels([&](const PredictedTokens::OfText& each) {
    if (!learns(stage_, of_term, each.number)) return std::vector<float>(each.text.ids.size());
    auto weights = objective::label_weights(each.text, selection);
    if (of_term.averages_texts()) {
      const float all = std::accumulate(weights.begin(), weights.end(), 0.0f);
      for (float& weight : weights) weight /= std::max(all, 1.0f);
    }
    return weights;
  });
  mask.resize(static_cast<size_t>(size), 0);
  return at::tensor(mask, at::kFloat);
}

at::Tensor PassBuilder::outcomes_of(const PredictedTokens& tokens, int64_t labels) {
  const at::Tensor values = at::zeros({std::ssize(outcome_values), labels}, at::kFloat);
  for (int64_t row = 0; float Outcome::*const value : outcome_values) {
    const auto own = tokens.at_labels([&](const PredictedTokens::OfText& each) {
      return std::vector<float>(each.text.ids.size(), each.text.outcome.*value);
    });
    std::ranges::copy(own, values.mutable_data_ptr<float>() + row++ * labels);
  }
  return values;
}

// The texts of teachers, up to the last label that a term asks them for, and for each of the pack's labels the row that
// predicts the same token there. A label that no term asks for has no such row; it gets the first one.
std::vector<int64_t> PassBuilder::add_teacher_pack(const HostPack& host, const PredictedTokens& tokens,
                                                   objective::PassInputs& in) const {
  std::vector<model::Sample> samples;
  for (const PackedSample& packed : host.samples)
    for (const SampleText& text : packed.sample->teacher_texts) {
      auto asked = objective::labels(text, teacher_terms_);
      while (asked.size() > 1 && !asked.back()) asked.pop_back();
      auto& read = samples.emplace_back().texts.emplace_back();
      read.tokens.assign(text.ids.begin(), text.ids.begin() + std::ssize(asked));
      read.is_label = std::move(asked);
    }
  // More classes than a pack's own rows have: these rows go through a whole model, most of a step's work.
  const int64_t classes = std::max<int64_t>(classes_of(ops::real_device(options_.device()).is_cuda()), 16);
  auto capacity = model::Capacity::of(samples, 0);
  capacity.rows = model::size_class(capacity.rows, max_.rows, classes);
  capacity.sequences = classes_.sequences(capacity.sequences, max_.sequences);
  capacity.longest_sequence = max_.longest_sequence;
  model::Pack& pack = in.teacher_pack.emplace(model::make_pack(samples, capacity, reader_, options_.device(at::kCPU)));
  const int64_t* next = pack.labels.rows.const_data_ptr<int64_t>();
  std::vector<int64_t> rows;
  for (const bool asked : tokens.at_labels(
           [&](const PredictedTokens::OfText& each) { return objective::labels(each.text, teacher_terms_); }))
    rows.push_back(asked ? *next++ : 0);
  pack.labels = {};
  return rows;
}

// Where terms compare the model with their teachers: at all labels that a term selects in the course of the stage, so
// that shapes do not depend on how far the stage is. `of_teacher`: the rows of a teacher's texts, by label.
void PassBuilder::add_compared(const PredictedTokens& tokens, const std::vector<int64_t>& of_teacher,
                               objective::PassInputs& in) const {
  const int64_t* of_pack = in.pack.labels.rows.const_data_ptr<int64_t>();
  for (size_t index = 0; index < stage_.objective.size(); ++index) {
    const plan::ObjectiveTerm& term = *stage_.objective[index];
    if (!term.teacher() && !term.reads_teacher_prompt()) continue;
    const float* mask = in.masks[index].const_data_ptr<float>();
    std::vector<int64_t> rows, teacher_rows;
    std::vector<float> weights;
    const auto selection = term.labels();
    const auto own =
        tokens.at_labels([&](const PredictedTokens::OfText& each) { return objective::labels(each.text, selection); });
    for (size_t label = 0; label < own.size(); ++label) {
      if (!own[label]) continue;
      rows.push_back(of_pack[label]);
      weights.push_back(mask[label]);
      if (!term.reads_teacher_prompt())
        teacher_rows.push_back(of_pack[label]);
      else if (!of_teacher.empty())
        teacher_rows.push_back(of_teacher[label]);
    }
    const auto used = std::max<int64_t>(1, std::ssize(rows)), labels = in.pack.labels.rows.size(0);
    const auto size = static_cast<size_t>(classes_.compared(used, most_labels(term), labels));
    weights.resize(size, 0);
    rows.resize(size, 0);
    objective::ComparedLabels& compared = in.compared[index];
    compared.rows = at::tensor(rows, at::kLong);
    compared.weights = at::tensor(weights, at::kFloat);
    if (teacher_rows.empty()) continue;
    teacher_rows.resize(size, 0);
    compared.teacher_rows = at::tensor(teacher_rows, at::kLong);
  }
}

// That a term selects in a pack, where each text has one span.
int64_t PassBuilder::most_labels(const plan::ObjectiveTerm& term) const {
  const auto first = term.labels().first;
  return first ? std::min(max_.labels, max_.sequences * *first) : max_.labels;
}

model::Capacity PassBuilder::padded(model::Capacity used) const {
  const int64_t min_frames = speed_.text_without_tower ? 0 : std::min<int64_t>(1, max_.frames);
  used.frames = std::max(used.frames, min_frames);
  used.bytes = std::max(used.bytes, std::min(min_frames, max_.bytes));
  model::Capacity capacity = classes_.of(used);
  if (context_.are_several()) capacity.rows = model::divisible_rows(capacity.rows, context_);
  return capacity;
}

feed::Repeats PassBuilder::repeats_of(const HostPack& host) const {
  if (!speed_.shared_repeated_frames) return feed::Repeats::apart;
  int64_t frames = 0, encoded = 0;
  for (const PackedSample& packed : host.samples) {
    const int64_t times = texts_ == feed::Texts::apart ? std::ssize(packed.sample->texts) : 1;
    frames += times * packed.sample->frames;
    encoded += times * packed.sample->distinct_frames();
  }
  return classes_.encodes_once(frames, encoded) ? feed::Repeats::share_encoding : feed::Repeats::apart;
}

BuiltPass PassBuilder::build_to_read(const HostPack& host, size_t decoder) const {
  return build_inputs(host.for_decoder(decoder), stage_.reads_teacher_prompt(), 0);
}

BuiltPass PassBuilder::build_inputs(const HostPack& host, bool with_teacher_texts, double progress) const {
  BuiltPass built;
  const feed::Repeats repeats = repeats_of(host);
  PredictedTokens tokens;
  const auto samples = feed::model_samples(host, image_size_,
                                           [&](const SampleText& text) {
                                             tokens.texts.push_back({text, predicted(text)});
                                             return tokens.texts.back().is_predicted;
                                           },
                                           {texts_, repeats, false});
  for (auto of_text = tokens.texts.begin(); const PackedSample& packed : host.samples)
    for (size_t number = 0; number < packed.sample->texts.size(); ++number) (of_text++)->number = number;
  const auto used = model::Capacity::of(samples, reader_.rows_per_frame), capacity = padded(used);
  built.encoded_frames = std::min(used.encoder_frames, used.frames); // cells of videos have several squares
  built.used_rows = used.rows;
  built.all_rows = capacity.rows;
  objective::PassInputs& in = built.inputs;
  in.pack = model::make_pack(samples, capacity, reader_, options_.device(at::kCPU), model::Frames::apart);
  if (stage_.needs_pairs()) {
    const auto pairs =
        stage_.embeds() ? std::ranges::count(host.samples, Sample::Role::query, role_of) : std::ssize(host.samples);
    in.used_pairs = at::zeros({classes_.pairs(pairs, in.pack.texts.cu_seqlens.size(0) - 1)}, at::kDouble);
    in.used_pairs.narrow(0, 0, pairs).fill_(1);
  }
  if (stage_.embeds()) in.retrieval = retrieval_of(host, in.used_pairs.size(0), in.pack.texts.cu_seqlens.size(0) - 1);
  if (stage_.needs_judgements()) {
    in.judgements = at::zeros(in.used_pairs.sizes(), at::kDouble);
    for (size_t i = 0; i < host.samples.size(); ++i)
      if (host.samples[i].sample->is_desirable.value_or(false)) in.judgements[static_cast<int64_t>(i)] = 1;
  }
  for (size_t term = 0; term < stage_.objective.size(); ++term)
    in.masks.push_back(mask_of(term, tokens, in.pack.labels.targets.size(0), progress));
  if (stage_.rollouts()) in.outcomes = outcomes_of(tokens, in.pack.labels.targets.size(0));
  const auto of_teacher = with_teacher_texts ? add_teacher_pack(host, tokens, in) : std::vector<int64_t>();
  add_compared(tokens, of_teacher, in);
  if (in.pack.frame_slots > 0) {
    if (!in.pack.bytes.defined()) built.frames = feed::frames_of(host, image_size_, texts_, repeats);
    in.frame_shares = at::zeros({in.pack.frame_slots}, at::kDouble);
    in.frame_shares.narrow(0, 0, in.pack.frames_used).fill_(1 / static_cast<double>(in.pack.frames_used));
  }
  return built;
}

BuiltPass PassBuilder::build(const HostPack& host, size_t decoder, const StepCounts& counts, double scale) const {
  const HostPack own = host.for_decoder(decoder);
  BuiltPass built = build_inputs(own, stage_.packs_teacher_texts(), counts.progress);
  std::vector<double> weights;
  for (size_t index = 0; index < stage_.objective.size(); ++index) {
    for (const PackedSample& packed : own.samples)
      built.counted += count_of(stage_, *stage_.objective[index], *packed.sample, counts.progress);
    const size_t term = decoder * stage_.objective.size() + index; // of the counts
    weights.push_back(counts.of_term[term] > 0 ? scale * counts.weights[term] / counts.of_term[term] : 0);
  }
  built.inputs.weights = at::tensor(weights, at::kDouble);
  if (context_.are_several()) keep_part(built);
  return built;
}

// Weights of labels and terms are those of the whole pack, so that the sums of the ranks are its loss and gradient.
void PassBuilder::keep_part(BuiltPass& built) const {
  objective::PassInputs& in = built.inputs;
  built.all_rows /= context_.ranks;
  const model::ContextPart part = model::keep_part(in.pack, context_, [&](int64_t labels) {
    const int64_t most = std::min(max_.labels, built.all_rows);
    return classes_.compared(std::max<int64_t>(labels, 1), most, most);
  });
  built.used_rows = part.used_rows;
  const at::Tensor kept = at::tensor(part.labels, at::kLong);
  for (at::Tensor& mask : in.masks) {
    const at::Tensor whole = std::exchange(mask, at::zeros(in.pack.labels.targets.sizes(), mask.options()));
    mask.narrow(0, 0, kept.size(0)).copy_(whole.index_select(0, kept));
  }
}

} // namespace fvlm::train
