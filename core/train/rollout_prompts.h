// RolloutPrompts: the samples of a stage whose answers the model gives itself. Each has the text of its prompt once for
// every answer, with room for as many tokens as it may have, so that packs are made before an answer is known.
#pragma once
#include "data/stream/sample_source.h"
#include "data/tokenizer.h"
#include "recipe/rollouts.h"

namespace fvlm::train {

class RolloutPrompts : public SampleSource {
 public:
  // All outlive it. Samples of `source` have one text each. `most_tokens`: of a text, with its answer.
  RolloutPrompts(const SampleSource& source, const Tokenizer& tokenizer, const plan::Rollouts& rollouts,
                 int64_t most_tokens)
      : source_(source), tokenizer_(tokenizer), rollouts_(rollouts), most_tokens_(most_tokens) {}

  std::vector<int64_t> sizes() const override { return source_.sizes(); }
  int64_t frame_elements() const override { return source_.frame_elements(); }
  // The text's own answer is in Sample::answers. A prompt that leaves no room for an answer is dropped.
  Sample measure(const DrawnSample& drawn) const override;
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    source_.decode(drawn, sample, frames);
  }
  const NormalizationTable* normalization() const override { return source_.normalization(); }
  void decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const override {
    source_.decode_pixels(drawn, sample, frames);
  }
  std::string place(const DrawnSample& drawn) const override { return source_.place(drawn); }
  std::string key(const DrawnSample& drawn) const override { return source_.key(drawn); }
  std::vector<SkippedSample> damage() const override { return source_.damage(); }

 private:
  const SampleSource& source_;
  const Tokenizer& tokenizer_;
  const plan::Rollouts& rollouts_;
  int64_t most_tokens_;
};

} // namespace fvlm::train
