// Which token follows: the likeliest, or one drawn at random in a way that a seed repeats.
#pragma once
#include "base/random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fvlm::model {

struct Sampling {
  double temperature = 0; // 0: always the likeliest token
  double top_p = 1;       // draw among the likeliest tokens that have this share of the probability together
  uint64_t seed = 0;
  uint64_t answer = 0; // another sequence of draws for another number
};

class Sampler {
 public:
  // Throws Error(usage) for values that make no sense.
  explicit Sampler(const Sampling& sampling);

  bool is_greedy() const { return sampling_.temperature == 0; }
  // logits [vocabulary]; `index`: of the token among those made. A pure function of its arguments.
  int64_t pick(const at::Tensor& logits, int64_t index) const;

 private:
  Sampling sampling_;
  RandomStream random_;
};

} // namespace fvlm::model
