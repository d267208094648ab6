// Rollouts: answers that the model itself gives to the prompts of a stage's samples, and what they are rewarded for.
#pragma once
#include "recipe/lua_function.h"

#include <array>
#include <cstdint>
#include <variant>

namespace fvlm::plan {

// How near an answer is to the expected one, higher where it is nearer: evaluation/answers.h.
enum class AnswerMeasure {
  exact_match,
  f1,
  anls,
  rouge_l,
  character_accuracy,
  vqa_accuracy,
  relaxed_accuracy,
  contains,
  iou,
  box_accuracy
};

struct NamedMeasure {
  AnswerMeasure measure;
  const char* name; // in recipes, and in the table that a function gets
  const char* is;
};

inline constexpr std::array<NamedMeasure, 10> answer_measures{
    {{AnswerMeasure::exact_match, "exact_match", "1 for the expected answer, as SQuAD compares"},
     {AnswerMeasure::f1, "f1", "the words that it shares with the expected answer"},
     {AnswerMeasure::anls, "anls", "DocVQA's: the similarity of the characters, 0 below a half"},
     {AnswerMeasure::rouge_l, "rouge_l", "the longest sequence of words that both share"},
     {AnswerMeasure::character_accuracy, "character_accuracy", "1 less the character error rate, or 0"},
     {AnswerMeasure::vqa_accuracy, "vqa_accuracy", "VQAv2's"},
     {AnswerMeasure::relaxed_accuracy, "relaxed_accuracy", "ChartQA's: numbers within 5 %"},
     {AnswerMeasure::contains, "contains", "1 where the answer contains the expected words"},
     {AnswerMeasure::iou, "iou", "how much its boxes overlap with the expected ones"},
     {AnswerMeasure::box_accuracy, "box_accuracy",
      "the share of boxes that overlap by a half with one of the expected, or of points inside one"}}};

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
