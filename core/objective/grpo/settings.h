// Group relative policy optimization: the model learns from the rewards of answers that it gives itself.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Grpo : Cloneable<Grpo, plan::ObjectiveTerm>, plan::Rollouts {
  enum class Loss { grpo, dr_grpo };

  std::string_view name() const override { return "grpo"; }
  std::string metric() const override { return loss == Loss::grpo ? "grpo" : "dr_grpo"; }
  std::vector<std::string> figures() const override;
  plan::LabelSelection labels() const override { return {}; }
  bool averages_texts() const override { return true; }
  const plan::Rollouts* rollouts() const override { return this; }
  plan::LuaFunction* function() override { return std::get_if<plan::LuaFunction>(&reward); }
  Reference reference() const override { return kl > 0 ? Reference::live : Reference::none; }
  Advantage advantage() const override { return loss == Loss::grpo ? Advantage::standardized : Advantage::centered; }

  Loss loss = Loss::grpo;
  double kl = 0;
};

} // namespace fvlm::objective
