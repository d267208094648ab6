// Which tokens of a text are learnt.
#pragma once
#include "data/samples/sample.h"
#include "recipe/plan.h"

#include <optional>
#include <vector>

namespace fvlm::train {

// As long as the text; never its first token, which nothing predicts. `first`: so many of each span alone.
std::vector<bool> labels(const SampleText& text, plan::LossOn on, std::optional<int64_t> first = {});

// Of a term of an objective; a preference learns from answers.
std::vector<bool> labels(const SampleText& text, const plan::Term& term);

// Of a stage: what any term of its objective learns from.
std::vector<bool> labels(const SampleText& text, const plan::Stage& stage);

} // namespace fvlm::train
