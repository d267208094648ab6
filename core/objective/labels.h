// Which tokens of a text are labels.
#pragma once
#include "data/samples/sample.h"
#include "recipe/objective_term.h"

#include <span>
#include <vector>

namespace fvlm::objective {

// As long as the text; never its first token, which nothing predicts, nor a placeholder.
std::vector<bool> labels(const SampleText& text, const plan::LabelSelection& selection);

// As long as the text: the weight of each label in its term, 0 for what is none.
std::vector<float> label_weights(const SampleText& text, const plan::LabelSelection& selection);

// How many labels the sample has, over all of its texts.
int64_t label_count(const Sample& sample, const plan::LabelSelection& selection);

// The labels of any of the terms.
std::vector<bool> labels(const SampleText& text, std::span<const plan::Term> terms);

} // namespace fvlm::objective
