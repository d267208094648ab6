#include "objective/settings.h"

namespace fvlm::objective {

#define FVLM_OBJECTIVE(name) Settings name##_settings();
#include "objective/objectives.inc"
#undef FVLM_OBJECTIVE

std::vector<Settings>& all_settings() {
  static std::vector<Settings> all = {
#define FVLM_OBJECTIVE(name) name##_settings(),
#include "objective/objectives.inc"
#undef FVLM_OBJECTIVE
  };
  return all;
}

recipe::Ref<plan::LossOn> loss_on() {
  using enum plan::LossOn;
  static const auto type =
      recipe::choice<plan::LossOn>({{"all", all, "every text token but the first"},
                                    {"answer", answer, "the tokens of the assistant's turns that are learnt"}});
  return type;
}

} // namespace fvlm::objective
