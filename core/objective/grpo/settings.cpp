#include "objective/grpo/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {
namespace {

// For editors.
constexpr const char* reward_function =
    "fun(answer: { prompt: string, text: string, expected: string[], tokens: integer, ended: boolean, key: string, "
    "source: string, exact_match: number, f1: number, "
    "vqa_accuracy: number, relaxed_accuracy: number, contains: number }): number";

} // namespace

using namespace recipe;

std::vector<std::string> Grpo::figures() const {
  std::vector<std::string> names{"reward", "reward_deviation", "answer_tokens", "cut_off_share"};
  if (kl > 0) names.emplace_back("reference_kl");
  return names;
}

Settings grpo_settings() {
  using plan::AnswerMeasure;
  auto type = record<Grpo>("Grpo", "grpo",
                           "Group relative policy optimization: the model answers each prompt several times, and "
                           "answers that earn more than the others become likelier. docs/rewards.md has the formulas.");
  type.field("answers", &Grpo::answers, integer(at_least(2)), "How many answers are drawn to each prompt.")
      .field("max_new_tokens", &Grpo::max_new_tokens, integer(at_least(1)),
             "Longest answer; shorter where data.max_text_tokens leaves less behind the prompt.")
      .unit("tokens")
      .field("reward", &Grpo::reward,
             one_of(choice<AnswerMeasure>(
                        {{"exact_match", AnswerMeasure::exact_match, "1 for the expected answer, as SQuAD compares"},
                         {"f1", AnswerMeasure::f1, "the words that it shares with the expected answer"},
                         {"vqa_accuracy", AnswerMeasure::vqa_accuracy, "VQAv2's"},
                         {"relaxed_accuracy", AnswerMeasure::relaxed_accuracy, "ChartQA's: numbers within 5 %"},
                         {"contains", AnswerMeasure::contains, "1 where one contains the other"}}),
                    lua_function(reward_function)),
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
