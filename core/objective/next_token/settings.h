// Cross-entropy of the next token.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct NextToken : Cloneable<NextToken, plan::LabelTerm, plan::ObjectiveTerm> {
  // Which visual tokens the text is read behind. coarse: the foveated connector's first pass (the public
  // lambda_coarse).
  enum class Pass { fine, coarse };

  std::string_view name() const override { return "next_token"; }
  std::string metric() const override { return pass == Pass::coarse ? "next_token_coarse" : "next_token"; }
  bool is_sum_over_labels() const override { return true; }
  std::string view() const override { return pass == Pass::coarse ? "coarse" : ""; }

  Pass pass = Pass::fine;
};

} // namespace fvlm::objective
