#include "train/rewards.h"

#include "base/error.h"
#include "base/text.h"
#include "evaluation/answers.h"
#include "recipe/freeze.h"
#include "recipe/schema/type.h"

#include <array>
#include <cmath>
#include <utility>

namespace fvlm::train {
namespace {

using plan::AnswerMeasure;
using MeasureFunction = double (*)(const std::string& answer, const evaluation::Answers& expected);

struct NamedMeasure {
  AnswerMeasure measure;
  const char* name;
  MeasureFunction of;
};

constexpr std::array<NamedMeasure, 5> measures{
    {{AnswerMeasure::exact_match, "exact_match", evaluation::exact_match},
     {AnswerMeasure::f1, "f1", evaluation::f1},
     {AnswerMeasure::vqa_accuracy, "vqa_accuracy", evaluation::vqa_accuracy},
     {AnswerMeasure::relaxed_accuracy, "relaxed_accuracy", evaluation::relaxed_accuracy},
     {AnswerMeasure::contains, "contains", evaluation::contains}}};

recipe::Json seen_by_function(const GivenAnswer& answer) {
  recipe::Json seen = {{"prompt", answer.prompt}, {"text", answer.text},   {"expected", answer.expected},
                       {"tokens", answer.tokens}, {"ended", answer.ended}, {"key", answer.key},
                       {"source", answer.source}};
  for (const NamedMeasure& measure : measures) seen[measure.name] = measure.of(answer.text, answer.expected);
  return seen;
}

// Kept as float32.
double reward_of(const recipe::Value& value) {
  double reward = std::nan("");
  if (const auto* whole = std::get_if<int64_t>(&value.data))
    reward = static_cast<double>(*whole);
  else if (const auto* number = std::get_if<double>(&value.data))
    reward = *number;
  else
    throw Error(ErrorKind::recipe, "it returned {}", recipe::kind_name(value));
  if (!std::isfinite(static_cast<float>(reward))) throw Error(ErrorKind::recipe, "it returned {}", reward);
  return reward;
}

} // namespace

Rewards::Rewards(const plan::Rollouts& rollouts, std::shared_ptr<recipe::Sandbox> lua)
    : rollouts_(rollouts), lua_(std::move(lua)) {
  const auto* function = std::get_if<plan::LuaFunction>(&rollouts.reward);
  if (function && !lua_)
    throw Error(ErrorKind::recipe, "the reward is a function, and a plan file holds no functions")
        .at(function->defined)
        .advise("train from the recipe; the run's folder recipe/ has it");
  const std::vector<std::string> expected{"1"};
  of({"", "", expected, 1, true, "", ""});
}

double Rewards::of(const GivenAnswer& answer) const {
  if (const auto* named = std::get_if<AnswerMeasure>(&rollouts_.reward))
    for (const NamedMeasure& measure : measures)
      if (measure.measure == *named) return measure.of(answer.text, answer.expected);
  const auto& function = std::get<plan::LuaFunction>(rollouts_.reward);
  const recipe::Value argument = recipe::from_json(seen_by_function(answer), {function.defined, 0, {}});
  try {
    return reward_of(lua_->call(recipe::FunctionId{static_cast<int>(function.index)}, {&argument, 1}));
  } catch (const Error& error) {
    throw Error(ErrorKind::recipe, "the function of `reward` fails for the answer {} to sample {}: {}",
                shown(answer.text), shown(answer.key), error.what())
        .at(error.where().empty() ? function.defined : error.where())
        .advise("a reward is a finite number; return 0 for an answer that earns nothing");
  }
}

} // namespace fvlm::train
