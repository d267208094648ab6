// Synthetic questions about a text that is read as bytes, with LatentWire's objective.
#pragma once
#include "bench/synthetic_model.h"
#include "recipe/plan.h"
#include "recipe/visual_rows.h"
#include "train/synthetic_pack.h"

namespace fvlm::bench {

// Cross-entropy of the answer, of its first token and of the first 4, and their divergence from the same decoder behind
// a prompt, which is computed in every step or, where the teacher is cached, once.
std::vector<plan::Term> question_objective(bool caches_teacher);

// The decoder reads a first token, the latents, the anchor and the answer; the teacher the prompt, the anchor and the
// answer. Tokens and bytes are random, and others in packs of another number.
train::SyntheticPack make_question_pack(const QuestionLengths& lengths, const plan::VisualRows& visual_rows,
                                        int64_t samples, int64_t vocabulary, uint64_t number);

} // namespace fvlm::bench
