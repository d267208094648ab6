// JudgedAnswers: the samples of a stage that learns from single answers, each said to be good or not. A sample's second
// text is its prompt with the answer of the sample behind it: by such texts the loss estimates how far the model is
// from its reference.
#pragma once
#include "data/stream/sample_source.h"

namespace fvlm::train {

class JudgedAnswers : public ChangedSamples {
 public:
  // Samples of `source` have one text each. `most_tokens`: of a text, with its answer.
  JudgedAnswers(const SampleSource& source, int64_t most_tokens)
      : ChangedSamples(source), most_tokens_(most_tokens), sizes_(source.sizes()) {}

  // The last answer of a conversation alone is learnt. Throws Error(data) for an answer that is not judged.
  Sample measure(const DrawnSample& drawn) const override;

 private:
  std::vector<TokenId> other_answer(const DrawnSample& drawn) const;

  int64_t most_tokens_;
  std::vector<int64_t> sizes_;
};

} // namespace fvlm::train
