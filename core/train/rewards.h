// Rewards: what an answer that the model gave in training earns, by a measure or by the recipe's function.
#pragma once
#include "recipe/rollouts.h"
#include "recipe/sandbox.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

struct GivenAnswer {
  std::string prompt, text;
  std::optional<std::string> measured = {}; // of the text, without thoughts; nothing: all of it
  const std::vector<std::string>& expected; // all that are right: at least one
  int64_t tokens = 0;
  bool ended = false;      // by itself, not by max_new_tokens
  std::string key, source; // of the sample
};

class Rewards {
 public:
  // `rollouts` outlives it. Throws Error(recipe) for a function without `lua` to call it through, and as of() does for
  // an empty answer, which is tried.
  Rewards(const plan::Rollouts& rollouts, std::shared_ptr<recipe::Sandbox> lua);

  // Throws Error(recipe) where the function fails, or returns no finite number.
  double of(const GivenAnswer& answer) const;

 private:
  const plan::Rollouts& rollouts_;
  std::shared_ptr<recipe::Sandbox> lua_;
};

} // namespace fvlm::train
