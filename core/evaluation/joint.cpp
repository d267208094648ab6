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
                                           const std::vector<const JointAnswer*>& candidates, feed::Repeats repeats) {
  const plan::Mix mix = set.settings().data.for_decoder(decoder);
  const QuestionEncoder questions(set.tokenizer(decoder), mix.questions.value_or(plan::QuestionForm()));
  auto samples = feed::model_samples(pack, set.image_size(),
                                     [](const SampleText& text) { return std::vector<bool>(text.ids.size()); },
                                     {feed::Texts::share_frames, repeats});
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

// Chooses an answer for each sample of a rank's packs. False: there are samples that are no questions about a context.
bool choose(std::map<int64_t, JointAnswer>& by_position, const SampleSet& set, const model::Model& model,
            ops::Operations& ops, const std::string& mode, const dist::Ranks* ranks) {
  const auto loader = ranks ? set.loader_of(ranks->rank(), ranks->count()) : set.loader();
  while (const auto loaded = loader->next()) {
    const auto& samples = loaded->pack.samples;
    if (samples.empty()) continue;
    const bool questions =
        std::ranges::all_of(samples, [](const PackedSample& packed) { return packed.sample->has_short_answer; });
    if (!questions) return false;
    std::vector<const JointAnswer*> candidates;
    for (const PackedSample& packed : samples) candidates.push_back(&by_position.at(packed.position));
    std::vector<double> sums; // of each sample's candidates
    for (size_t decoder = 0; decoder < set.decoders(); ++decoder) {
      const model::Model& own = model.with_decoder(decoder);
      const auto read = read_samples(
          set, with_candidates(set, loaded->pack.for_decoder(decoder), decoder, candidates, repeats_of(own)), own, ops,
          mode, model::EncodeOutputs::tokens);
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
  return true;
}

} // namespace

std::vector<JointAnswer> joint_answers(const SampleSet& set, const model::Model& model, ops::Operations& ops,
                                       const std::string& mode, const std::vector<Scores>& scores,
                                       const dist::Ranks* ranks) {
  const c10::InferenceMode without_gradients;
  std::map<int64_t, JointAnswer> by_position;
  for (const Scores& of_decoder : scores)
    for (const SampleScore& sample : of_decoder.samples) {
      JointAnswer& joint = by_position[sample.position];
      joint.answers.push_back(sample.generated->answer);
      if (of_decoder.decoder == 0) joint.expected = sample.generated->expected;
    }
  const bool chosen =
      ops::retry_with_next_plugin(ops, [&] { return choose(by_position, set, model, ops, mode, ranks); });
  std::vector<double> numbers{chosen ? 0.0 : 1.0}; // of this rank; what the others chose is still 0
  for (const auto& [position, answer] : by_position) numbers.push_back(static_cast<double>(answer.chosen));
  if (ranks) ranks->sum(numbers);
  if (numbers[0] > 0) return {};
  std::vector<JointAnswer> joint;
  for (auto& [position, answer] : by_position) {
    answer.chosen = static_cast<size_t>(numbers[joint.size() + 1]);
    joint.push_back(std::move(answer));
  }
  return joint;
}

} // namespace fvlm::evaluation
