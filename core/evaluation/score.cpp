#include "evaluation/score.h"

#include "feed/model_samples.h"
#include "model/objectives.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace fvlm::evaluation {
namespace {

int64_t rounded_up(int64_t count, int64_t step) {
  return (count + step - 1) / step * step;
}

// Packs of a set are of few sizes, so that what plugins prepared for one serves the others.
model::Capacity capacity_of(const std::vector<model::Sample>& samples, const SampleSet& set) {
  model::Capacity capacity = model::Capacity::of(samples);
  capacity.frames = capacity.frames > 0 ? set.capacity().frames : 0;
  capacity.rows = set.capacity().rows;
  capacity.sequences = rounded_up(capacity.sequences, 16);
  capacity.labels = rounded_up(capacity.labels, 256);
  capacity.longest_sequence = set.longest().sequence;
  capacity.longest_video = set.longest().video;
  return capacity;
}

std::vector<bool> answer_of(const SampleText& text) {
  return {text.answer.begin(), text.answer.end()};
}

} // namespace

double entropy(const at::Tensor& attention) {
  const auto rows = static_cast<double>(attention.size(1) * attention.size(2));
  return -at::xlogy(attention, attention).sum(at::kDouble).item<double>() / rows;
}

Scores score(const SampleSet& set, const model::Vlm& vlm, ops::Operations& ops, model::Mode mode,
             const ScoreProgress& progress) {
  const c10::InferenceMode without_gradients;
  const bool one_text = set.wanted().measure == plan::Measure::loss;
  const auto show = set.wanted().entropy ? model::Vlm::Show::attention_too : model::Vlm::Show::tokens;
  const int64_t patches = vlm.tower().tokens_per_frame(set.image_size(), set.image_size());
  ops::Tape none(ops::Tape::Mode::forward_only);
  Scores scores;
  double entropies = 0;
  int64_t frames = 0;
  const auto loader = set.loader();
  while (const auto loaded = loader->next()) {
    auto samples = feed::model_samples(loaded->pack, set.image_size(), answer_of);
    const size_t first = scores.samples.size();
    for (size_t i = 0; i < samples.size(); ++i) {
      const PackedSample& packed = loaded->pack.samples[i];
      auto right = static_cast<size_t>(packed.sample->right_choice.value_or(0));
      if (one_text) samples[i].texts = {samples[i].texts.at(std::exchange(right, 0))};
      scores.samples.push_back({packed.position, set.source_of(packed), {}, right});
    }
    if (samples.empty()) continue;
    const auto pack = model::make_pack(samples, capacity_of(samples, set), patches, ops.tensor_options());
    const auto seen = vlm.see(none, ops, pack, mode, show);
    const auto hidden = vlm.read(none, ops, seen.tokens, pack);
    const at::Tensor losses = model::log_probabilities(none, ops, vlm, hidden, pack).losses.data.to(at::kDouble).cpu();
    const double* loss = losses.const_data_ptr<double>();
    size_t text = 0;
    for (size_t i = 0; i < samples.size(); ++i)
      for (size_t of_sample = 0; of_sample < samples[i].texts.size(); ++of_sample) {
        TextScore& scored = scores.samples[first + i].texts.emplace_back();
        scored.labels = pack.labels_of_text[text++];
        for (int64_t label = 0; label < scored.labels; ++label) scored.loss += *loss++;
      }
    if (seen.attention.defined()) {
      entropies += entropy(seen.attention.narrow(0, 0, pack.frames_used));
      frames += pack.frames_used;
    }
    if (progress) progress(static_cast<int64_t>(scores.samples.size()), set.samples());
  }
  std::sort(scores.samples.begin(), scores.samples.end(),
            [](const SampleScore& a, const SampleScore& b) { return a.position < b.position; });
  if (frames > 0) scores.attention_entropy = entropies / static_cast<double>(frames);
  return scores;
}

} // namespace fvlm::evaluation
