// TokenMasks: makes the tokens impossible that an answer may not continue with.
#pragma once
#include "grammar/token_constraint.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <utility>

namespace fvlm::infer {

// Sets the logits [vocabulary] of these tokens to minus infinity.
void hide_tokens(std::span<const int64_t> tokens, const at::Tensor& logits);

// What the constraints of a batch's answers hide, on the device of the logits. Found on the host and copied once for
// each state of a grammar, which a text may be in for many tokens, as inside of a string of JSON.
class TokenMasks {
 public:
  // `ends`: tokens that may follow where the text may end. They are the same ones in all calls.
  void hide(grammar::TokenConstraint& constraint, std::span<const int64_t> ends, const at::Tensor& logits);
  int64_t copied() const { return copied_; } // masks

 private:
  std::map<std::pair<int64_t, grammar::Automaton::State>, at::Tensor> kept_; // by the constraint's place
  int64_t copied_ = 0;
};

} // namespace fvlm::infer
