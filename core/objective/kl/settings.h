// Kullback-Leibler divergence from a teacher's next-token distribution.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Kl : Cloneable<Kl, plan::LabelTerm, plan::ObjectiveTerm> {
  std::string_view name() const override { return "kl"; }
  const std::string* teacher() const override { return folder.empty() ? nullptr : &folder; }
  bool reads_teacher_prompt() const override { return reads == Reads::teacher_prompt; }
  bool caches_teacher() const override { return cache_teacher; }

  enum class Reads { sample, teacher_prompt };

  std::string folder; // a model directory or checkpoint; empty: the model itself
  std::optional<Reads> reads;
  double temperature = 1;
  bool cache_teacher = false;
};

} // namespace fvlm::objective
