#include "objective/loss.h"

#include "base/error.h"

#include <map>
#include <string>

namespace fvlm::objective {

#define FVLM_OBJECTIVE(name) std::unique_ptr<Loss> name##_loss(const plan::ObjectiveTerm& term);
#include "objective/objectives.inc"
#undef FVLM_OBJECTIVE

namespace {

std::map<std::string, MakeLoss, std::less<>>& all_losses() {
  static std::map<std::string, MakeLoss, std::less<>> all = {
#define FVLM_OBJECTIVE(name) {#name, name##_loss},
#include "objective/objectives.inc"
#undef FVLM_OBJECTIVE
  };
  return all;
}

} // namespace

std::unique_ptr<Loss> make_loss(const plan::ObjectiveTerm& term) {
  const auto found = all_losses().find(term.name());
  if (found == all_losses().end())
    throw Error(ErrorKind::internal, "the objective '{}' has settings, but no loss", term.name());
  return found->second(term);
}

void register_loss(std::string_view name, MakeLoss make) {
  all_losses().emplace(name, make);
}

} // namespace fvlm::objective
