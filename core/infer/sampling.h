// Which token follows: the likeliest one, or one drawn from the distribution of the settings, repeatable by a seed.
#pragma once
#include "base/random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fvlm::infer {

// With the meanings, and in the order, of transformers' logits processors, behind OpenAI's.
struct Sampling {
  std::vector<std::pair<int64_t, double>> logit_bias = {}; // added to the logits of these tokens
  double repetition_penalty = 1; // above 1, logits of tokens that occurred are divided by it, negative ones multiplied
  // Of tokens that occurred in the answer, subtracted from their logits: each time, and once.
  double frequency_penalty = 0, presence_penalty = 0;
  double temperature = 0; // 0: always the likeliest token
  int64_t top_k = 0;      // draw among so many likeliest tokens; 0: all
  double top_p = 1;       // draw among the likeliest tokens that have this share of the probability together
  double min_p = 0;       // draw among tokens that have at least this share of the likeliest one's probability
  uint64_t seed = 0;
  uint64_t answer = 0; // another sequence of draws for another number
};

// The tokens that can be drawn and their probabilities, the likeliest first.
struct TokenDistribution {
  std::vector<int64_t> tokens;
  std::vector<double> probabilities; // their sum is 1
};

class Sampler {
 public:
  // Throws Error(usage) for settings out of range.
  explicit Sampler(const Sampling& sampling);

  // Whether pick() is the likeliest token of the logits as they are.
  bool is_argmax() const { return sampling_.temperature == 0 && !changes_logits(); }
  // logits [vocabulary]; `context`: the ids of the text so far, which only penalties read; `index`: of the token in the
  // answer, whose first tokens, so many, are the context's last ones. Pure functions of their arguments.
  int64_t pick(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const;
  TokenDistribution distribution(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const;

  // The arguments of one of several pick().
  struct Draw {
    const Sampler* sampler;
    std::span<const int64_t> context;
    int64_t index;
  };
  // pick() of each row of logits [draws, vocabulary], computed together on their device, but for rounding of the
  // probabilities.
  static std::vector<int64_t> pick_together(const at::Tensor& logits, std::span<const Draw> draws);

 private:
  bool draws_among_all() const { return sampling_.top_k == 0 && sampling_.top_p == 1 && sampling_.min_p == 0; }
  bool changes_logits() const {
    return sampling_.repetition_penalty != 1 || sampling_.frequency_penalty != 0 || sampling_.presence_penalty != 0 ||
           !sampling_.logit_bias.empty();
  }
  // By bias and penalties.
  at::Tensor changed(const at::Tensor& logits, std::span<const int64_t> context, int64_t index) const;
  at::Tensor repetition_penalized(const at::Tensor& logits, std::span<const int64_t> context) const;

  Sampling sampling_;
  RandomStream random_;
};

} // namespace fvlm::infer
