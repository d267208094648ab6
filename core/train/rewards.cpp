#include "train/rewards.h"

#include "base/error.h"
#include "base/text.h"
#include "evaluation/answers.h"
#include "evaluation/boxes.h"
#include "recipe/freeze.h"
#include "recipe/schema/type.h"

#include <cmath>
#include <utility>

namespace fvlm::train {
namespace {

using plan::AnswerMeasure;

double measured(AnswerMeasure measure, const std::string& text, const evaluation::Answers& expected) {
  switch (measure) {
  case AnswerMeasure::exact_match:
    return evaluation::exact_match(text, expected);
  case AnswerMeasure::f1:
    return evaluation::f1(text, expected);
  case AnswerMeasure::anls:
    return evaluation::anls(text, expected);
  case AnswerMeasure::rouge_l:
    return evaluation::rouge_l(text, expected);
  case AnswerMeasure::character_accuracy:
    return evaluation::character_accuracy(text, expected);
  case AnswerMeasure::vqa_accuracy:
    return evaluation::vqa_accuracy(text, expected);
  case AnswerMeasure::relaxed_accuracy:
    return evaluation::relaxed_accuracy(text, expected);
  case AnswerMeasure::contains:
    return evaluation::contains(text, expected);
  case AnswerMeasure::iou:
    return evaluation::iou(text, expected);
  case AnswerMeasure::box_accuracy:
    return evaluation::box_accuracy(text, expected);
  }
  throw Error(ErrorKind::internal, "the measure {} of answers has no function", static_cast<int>(measure));
}

const std::string& measured_text(const GivenAnswer& answer) {
  return answer.measured ? *answer.measured : answer.text;
}

// Measures of long texts take their time, and few functions read them all.
recipe::Value seen_by_function(const GivenAnswer& answer, const recipe::Origin& origin) {
  const recipe::Value fields = recipe::from_json({{"prompt", answer.prompt},
                                                  {"text", answer.text},
                                                  {"expected", answer.expected},
                                                  {"tokens", answer.tokens},
                                                  {"ended", answer.ended},
                                                  {"key", answer.key},
                                                  {"source", answer.source}},
                                                 origin);
  const auto seen = std::make_shared<recipe::Table>(*std::get<std::shared_ptr<const recipe::Table>>(fields.data));
  for (const auto& [measure, name, is] : plan::answer_measures)
    seen->lazy.emplace_back(name, [measure, text = measured_text(answer), expected = answer.expected] {
      return measured(measure, text, expected);
    });
  return {std::shared_ptr<const recipe::Table>(seen), origin};
}

// Kept as float32.
double reward_of(const recipe::Value& value) {
  double reward = 0;
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
  of({.prompt = "", .text = "", .expected = expected, .tokens = 1, .ended = true, .key = "", .source = ""});
}

double Rewards::of(const GivenAnswer& answer) const {
  if (const auto* measure = std::get_if<AnswerMeasure>(&rollouts_.reward))
    return measured(*measure, measured_text(answer), answer.expected);
  const auto& function = std::get<plan::LuaFunction>(rollouts_.reward);
  const recipe::Value argument = seen_by_function(answer, {function.defined, 0, {}});
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
