#include "objective/dpo/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

std::string Dpo::metric() const {
  switch (kind()) {
  case Loss::sigmoid:
    return "dpo";
  case Loss::ipo:
    return "ipo";
  case Loss::hinge:
    return "hinge";
  case Loss::kto:
    return "kto";
  case Loss::simpo:
    return "simpo";
  case Loss::orpo:
    return "orpo";
  }
  return "dpo";
}

std::vector<std::string> Dpo::figures() const {
  std::vector<std::string> names{"reward_accuracy", "chosen_reward", "rejected_reward", "reward_margin"};
  if (kind() == Loss::kto) names.emplace_back("reference_kl");
  if (kind() == Loss::orpo) names.insert(names.end(), {"chosen_nll", "log_odds"});
  return names;
}

Settings dpo_settings() {
  auto type = record<Dpo>("Dpo", "dpo",
                          "Preference optimization on pairs of answers. The reference, where the loss has one, is the "
                          "frozen model that the stage starts from. docs/preference-losses.md has the formulas.");
  type.field("loss", &Dpo::loss,
             optional(choice<Dpo::Loss>(
                 {{"sigmoid", Dpo::Loss::sigmoid, "direct preference optimization"},
                  {"ipo", Dpo::Loss::ipo, "a squared distance to a fixed margin, of mean log-probabilities"},
                  {"hinge", Dpo::Loss::hinge, "a hinge in place of the logistic loss"},
                  {"kto", Dpo::Loss::kto, "each answer by itself against the estimated KL divergence"},
                  {"simpo", Dpo::Loss::simpo, "mean log-probabilities and a margin, no reference"},
                  {"orpo", Dpo::Loss::orpo, "next-token loss of the chosen answer and log odds, no reference"}})),
             "Which loss. Default: sigmoid.")
      .field("beta", &Dpo::beta, number(above(0)),
             "Strength of the KL penalty towards the reference; of simpo and orpo, the scale of the comparison.")
      .field("label_smoothing", &Dpo::label_smoothing, optional(number(at_least(0).below(0.5))),
             "Of sigmoid and simpo: the share of pairs whose preference is taken to be wrong. Default: 0.")
      .field("gamma", &Dpo::gamma, optional(number(at_least(0))),
             "Of simpo: the margin by which the chosen answer's reward is to be larger. Default: 0.5.")
      .field("cache_reference", &Dpo::cache_reference, boolean(),
             "Compute the reference log-probabilities once and cache them on disk, instead of keeping a second model "
             "in memory.")
      .usage("fvlm.dpo { beta = 0.1 }");
  type.check([](Reader& reader, const Dpo& dpo) {
    if (dpo.label_smoothing && dpo.kind() != Dpo::Loss::sigmoid && dpo.kind() != Dpo::Loss::simpo)
      reader.report_at(".label_smoothing", fmt::format("the loss \"{}\" has no label smoothing", dpo.metric()),
                       "remove it, or use loss = \"sigmoid\" or \"simpo\"");
    if (dpo.gamma && dpo.kind() != Dpo::Loss::simpo)
      reader.report_at(".gamma", fmt::format("the loss \"{}\" has no margin", dpo.metric()),
                       "remove it, or use loss = \"simpo\"");
    if (dpo.cache_reference && !dpo.reads_reference())
      reader.report_at(".cache_reference", fmt::format("the loss \"{}\" has no reference to cache", dpo.metric()),
                       "remove it");
  });
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
