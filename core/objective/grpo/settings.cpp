#include "objective/grpo/settings.h"

#include "objective/settings.h"

#include <fmt/format.h>

namespace fvlm::objective {
namespace {

// For editors.
std::string reward_function() {
  std::string signature = "fun(answer: { prompt: string, text: string, expected: string[], tokens: integer, "
                          "ended: boolean, key: string, source: string";
  for (const auto& [measure, name, is] : plan::answer_measures) signature += fmt::format(", {}: number", name);
  return signature + " }): number";
}

recipe::Ref<plan::AnswerMeasure> answer_measure() {
  std::vector<recipe::WordInfo> words;
  std::vector<plan::AnswerMeasure> values;
  for (const auto& [measure, name, is] : plan::answer_measures) {
    words.push_back({name, is});
    values.push_back(measure);
  }
  return recipe::make_type<recipe::Choice<plan::AnswerMeasure>>(std::move(words), std::move(values));
}

} // namespace

using namespace recipe;

std::vector<std::string> Grpo::figures() const {
  std::vector<std::string> names{"reward", "reward_deviation", "answer_tokens", "cut_off_share"};
  if (kl > 0) names.emplace_back("reference_kl");
  return names;
}

Settings grpo_settings() {
  auto type = record<Grpo>("Grpo", "grpo",
                           "Group relative policy optimization: the model answers each prompt several times, and "
                           "answers that earn more than the others become likelier. docs/rewards.md has the formulas.");
  type.field("answers", &Grpo::answers, integer(at_least(2)), "How many answers are drawn to each prompt.")
      .field("max_new_tokens", &Grpo::max_new_tokens, integer(at_least(1)),
             "Longest answer; shorter where data.max_text_tokens leaves less behind the prompt.")
      .unit("tokens")
      .field("reward", &Grpo::reward, one_of(answer_measure(), lua_function(reward_function())),
             "What an answer earns: how near it is to the sample's own, or a function of the answer.")
      .example("function(answer) return answer.exact_match + (answer.ended and 0.1 or 0) end")
      .field("loss", &Grpo::loss,
             choice<Grpo::Loss>(
                 {{"grpo", Grpo::Loss::grpo,
                   "advantages in standard deviations of the group, and the mean over each answer's tokens"},
                  {"dr_grpo", Grpo::Loss::dr_grpo,
                   "advantages as they are, and the sum over each answer's tokens divided by max_new_tokens"}}),
             "How advantages are scaled and tokens weighted.")
      .field("kl", &Grpo::kl, number(at_least(0)),
             "Strength of the KL penalty towards the frozen model that the stage starts from; 0: no such model.")
      .field("show", &Grpo::show, integer(at_least(0)),
             "Of how many prompts of a logged step the answers are written to the stage's rollouts.jsonl.")
      .excluded_from_hash()
      .usage("fvlm.grpo { answers = 8, max_new_tokens = 64, reward = \"exact_match\" }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
