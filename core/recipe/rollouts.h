// Rollouts: answers that the model itself gives to the prompts of a stage's samples, and what they are rewarded for.
#pragma once
#include "recipe/lua_function.h"

#include <cstdint>
#include <variant>

namespace fvlm::plan {

// How near an answer is to the expected one: evaluation/answers.h.
enum class AnswerMeasure { exact_match, f1, vqa_accuracy, relaxed_accuracy, contains };

struct Rollouts {
  // What an answer's advantage over the others to the same prompt is.
  enum class Advantage {
    standardized, // how many standard deviations its reward is above their mean
    centered      // its reward less their mean
  };

  int64_t answers = 8; // to each prompt
  int64_t max_new_tokens = 128;
  std::variant<AnswerMeasure, LuaFunction> reward = AnswerMeasure::exact_match;
  int64_t show = 1; // prompts of each logged step whose answers are written to rollouts.jsonl

  virtual Advantage advantage() const { return Advantage::standardized; }

 protected:
  Rollouts() = default;
  Rollouts(const Rollouts&) = default;
  Rollouts(Rollouts&&) = default;
  Rollouts& operator=(const Rollouts&) = default;
  Rollouts& operator=(Rollouts&&) = default;
  ~Rollouts() = default;
};

} // namespace fvlm::plan
