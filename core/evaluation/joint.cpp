#include "evaluation/joint.h"

#include "data/samples/question.h"
#include "feed/model_samples.h"
#include "model/objectives.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>

namespace fvlm::evaluation {
namespace {

// The candidates of each sample of a pack, behind the sample's prompt, as one of the decoders reads them.
std::vector<model::Sample> with_candidates(const SampleSet& set, const HostPack& pack, size_t decoder,
                                           const std::vector<const JointAnswer*>& candidates) {
  const plan::Mix mix = set.settings().data.for_decoder(decoder);
  const QuestionEncoder questions(set.tokenizer(decoder), mix.questions.value_or(plan::QuestionForm()));
  auto samples = feed::model_samples(pack, set.image_size(),
                                     [](const SampleText& text) { return std::vector<bool>(text.ids.size()); });
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto prompt = PromptAndAnswer(pack.samples[i].sample->texts.front()).prompt;
    samples[i].texts.clear();
    for (const std::string& answer : candidates[i]->answers) {
      model::Text& text = samples[i].texts.emplace_back();
      text.tokens.assign(prompt.begin(), prompt.end());
      text.is_label.assign(prompt.size(), false);
      const auto ids = questions.answer(answer);
      text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
      text.is_label.resize(text.tokens.size(), true);
    }
  }
  return samples;
}

} // namespace

std::vector<JointAnswer> joint_answers(const SampleSet& set, const model::Model& model, ops::Operations& ops,
                                       const std::string& mode, const std::vector<Scores>& scores) {
  const c10::InferenceMode without_gradients;
  std::map<int64_t, JointAnswer> by_position;
  for (const Scores& of_decoder : scores)
    for (const SampleScore& sample : of_decoder.samples) {
      JointAnswer& joint = by_position[sample.position];
      joint.answers.push_back(sample.generated->answer);
      if (of_decoder.decoder == 0) joint.expected = sample.generated->expected;
    }
  const auto loader = set.loader();
  while (const auto loaded = loader->next()) {
    const auto& samples = loaded->pack.samples;
    if (samples.empty()) continue;
    const bool questions = std::all_of(samples.begin(), samples.end(),
                                       [](const PackedSample& packed) { return packed.sample->has_short_answer; });
    if (!questions) return {};
    std::vector<const JointAnswer*> candidates;
    for (const PackedSample& packed : samples) candidates.push_back(&by_position.at(packed.position));
    std::vector<double> sums; // of each sample's candidates
    for (size_t decoder = 0; decoder < set.decoders(); ++decoder) {
      const model::Model& own = model.with_decoder(decoder);
      const auto read = read_samples(set, with_candidates(set, loaded->pack.for_decoder(decoder), decoder, candidates),
                                     own, ops, mode, model::EncodeOutputs::tokens);
      ops::Tape none(ops::Tape::Mode::forward_only);
      const at::Tensor likely = model::log_probabilities(none, ops, own, read.hidden, read.pack).sum.cpu();
      sums.resize(samples.size() * set.decoders());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += likely.const_data_ptr<double>()[i];
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto first = sums.begin() + static_cast<std::ptrdiff_t>(i * set.decoders()),
                 best = std::max_element(first, first + static_cast<std::ptrdiff_t>(set.decoders()));
      by_position.at(samples[i].position).chosen = static_cast<size_t>(best - first);
    }
  }
  std::vector<JointAnswer> joint;
  for (auto& [position, answer] : by_position) joint.push_back(std::move(answer));
  return joint;
}

} // namespace fvlm::evaluation
