#include "train/pass_builder.h"

#include "model/size_class.h"
#include "objective/labels.h"
#include "ops/dry_run.h"
#include "train/padding.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>

namespace fvlm::train {

PassBuilder::PassBuilder(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
                         const at::TensorOptions& options, const model::Capacity& max)
    : stage_(stage), speed_(plan.speed),
      texts_(plan.speed.shared_preference_frames ? feed::Texts::share_frames : feed::Texts::apart),
      image_size_(plan.model.image_size), reader_(policy.frame_reader(image_size_, image_size_)), options_(options),
      max_(max) {
  std::copy_if(stage.objective.begin(), stage.objective.end(), std::back_inserter(teacher_terms_),
               [](const plan::Term& term) { return term->reads_teacher_prompt(); });
}

// The tokens that the output head predicts: the labels of any term, or all tokens.
std::vector<bool> PassBuilder::predicted(const SampleText& text) const {
  return speed_.loss_tokens_only ? objective::labels(text, stage_.objective)
                                 : objective::labels(text, plan::LabelSelection{plan::LossOn::all, {}});
}

// The weights of the pack's labels in the term: the pack has the labels of all terms, text by text.
at::Tensor PassBuilder::mask_of(size_t term, const HostPack& host, int64_t size) const {
  std::vector<float> mask;
  for (const PackedSample& packed : host.samples)
    for (const SampleText& text : packed.sample->texts) {
      const auto all = predicted(text);
      const auto own = objective::label_weights(text, stage_.objective[term]->labels());
      for (size_t i = 1; i < all.size(); ++i)
        if (all[i]) mask.push_back(own[i]);
    }
  mask.resize(static_cast<size_t>(size), 0);
  return at::tensor(mask, at::kFloat);
}

// The texts of teachers, up to the last label that a term asks them for.
void PassBuilder::add_teacher_pack(const HostPack& host, objective::PassInputs& in) const {
  std::vector<model::Sample> samples;
  std::vector<int64_t> labels; // of in.pack
  int64_t label = 0;
  for (const PackedSample& packed : host.samples) {
    for (const SampleText& text : packed.sample->teacher_texts) {
      auto asked = objective::labels(text, teacher_terms_);
      while (asked.size() > 1 && !asked.back()) asked.pop_back();
      auto& read = samples.emplace_back().texts.emplace_back();
      read.tokens.assign(text.ids.begin(), text.ids.begin() + std::ssize(asked));
      read.is_label = std::move(asked);
    }
    for (const SampleText& text : packed.sample->texts) {
      const auto all = predicted(text), asked = objective::labels(text, teacher_terms_);
      for (size_t i = 1; i < all.size(); ++i) {
        if (asked[i]) labels.push_back(label);
        if (all[i]) ++label;
      }
    }
  }
  const int64_t classes = std::max<int64_t>(classes_of(ops::real_device(options_.device()).is_cuda()), 16);
  auto capacity = model::Capacity::of(samples, 0);
  capacity.rows = model::size_class(capacity.rows, max_.rows, classes);
  capacity.sequences = model::size_class(capacity.sequences, max_.sequences, classes);
  capacity.labels = model::size_class(capacity.labels, max_.labels, classes);
  capacity.longest_sequence = max_.longest_sequence;
  model::Pack& pack = in.teacher_pack.emplace(model::make_pack(samples, capacity, reader_, options_.device(at::kCPU)));
  std::vector<float> weights(labels.size(), 1);
  labels.resize(static_cast<size_t>(capacity.labels), 0);
  weights.resize(labels.size(), 0);
  pack.labels = {pack.labels.rows, at::tensor(labels, at::kLong), {}, at::tensor(weights, at::kFloat)};
}

model::Capacity PassBuilder::padded(const model::Capacity& used) const {
  const int64_t classes = classes_of(ops::real_device(options_.device()).is_cuda());
  model::Capacity capacity = max_;
  const int64_t min_frames = speed_.text_without_tower ? 0 : std::min<int64_t>(1, max_.frames);
  capacity.frames = model::size_class(std::max(used.frames, min_frames), max_.frames, classes);
  capacity.bytes = model::size_class(std::max(used.bytes, std::min(min_frames, max_.bytes)), max_.bytes, classes);
  capacity.rows = model::size_class(used.rows, max_.rows, classes);
  capacity.sequences = model::size_class(used.sequences, max_.sequences, classes);
  capacity.labels = model::size_class(used.labels, max_.labels, std::max<int64_t>(classes, 16));
  return capacity;
}

BuiltPass PassBuilder::build_to_read(const HostPack& host) const {
  BuiltPass built;
  const auto samples = feed::model_samples(
      host, image_size_, [this](const SampleText& text) { return predicted(text); }, texts_);
  const auto used = model::Capacity::of(samples, reader_.rows_per_frame), capacity = padded(used);
  built.used_rows = used.rows;
  built.all_rows = capacity.rows;
  objective::PassInputs& in = built.inputs;
  in.pack = model::make_pack(samples, capacity, reader_, options_.device(at::kCPU), model::Frames::apart);
  in.pairs = stage_.needs_pairs() ? std::ssize(host.samples) : 0;
  for (size_t term = 0; term < stage_.objective.size(); ++term)
    in.masks.push_back(mask_of(term, host, in.pack.labels.targets.size(0)));
  if (stage_.reads_teacher_prompt()) add_teacher_pack(host, in);
  if (in.pack.frame_slots > 0) {
    if (!in.pack.bytes.defined()) built.frames = feed::frames_of(host, image_size_, texts_);
    in.frame_shares = at::zeros({in.pack.frame_slots}, at::kDouble);
    in.frame_shares.narrow(0, 0, in.pack.frames_used).fill_(1 / static_cast<double>(in.pack.frames_used));
  }
  return built;
}

BuiltPass PassBuilder::build(const HostPack& host, const StepCounts& counts, double scale) const {
  BuiltPass built = build_to_read(host);
  std::vector<double> weights;
  for (size_t index = 0; index < stage_.objective.size(); ++index) {
    for (const PackedSample& packed : host.samples) built.counted += count_of(*stage_.objective[index], *packed.sample);
    weights.push_back(counts.of_term[index] > 0 ? scale * counts.weights[index] / counts.of_term[index] : 0);
  }
  built.inputs.weights = at::tensor(weights, at::kDouble);
  return built;
}

} // namespace fvlm::train
