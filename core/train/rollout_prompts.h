// RolloutPrompts: the samples of a stage whose answers the model gives itself. Each has the text of its prompt once for
// every answer, with room for as many tokens as it may have, so that packs are made before an answer is known.
#pragma once
#include "data/stream/sample_source.h"
#include "data/tokenizer.h"
#include "evaluation/answerer.h"
#include "recipe/rollouts.h"

namespace fvlm::train {

class RolloutPrompts : public ChangedSamples {
 public:
  // The first three outlive it. Samples of `source` have one text each. `most_tokens`: of a text, with its answer.
  // `chat_template`: as in plan::Mix.
  RolloutPrompts(const SampleSource& source, const Tokenizer& tokenizer, const plan::Rollouts& rollouts,
                 int64_t most_tokens, const std::optional<std::string>& chat_template = {})
      : ChangedSamples(source), answers_(tokenizer, chat_template), rollouts_(rollouts), most_tokens_(most_tokens) {}

  // The text's own answer is in Sample::answers. A prompt that leaves no room for an answer is dropped.
  Sample measure(const DrawnSample& drawn) const override;

 private:
  evaluation::AnswerReader answers_;
  const plan::Rollouts& rollouts_;
  int64_t most_tokens_;
};

} // namespace fvlm::train
