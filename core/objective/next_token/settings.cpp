#include "objective/next_token/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings next_token_settings() {
  using Pass = NextToken::Pass;
  auto type = record<NextToken>("NextToken", "next_token",
                                "Cross-entropy of the next token, mean over the labels it selects. Beside fvlm.dpo it "
                                "learns the chosen answers alone.");
  label_fields(type);
  type.field("pass", &NextToken::pass,
             choice<Pass>({{"fine", Pass::fine, "visual tokens from the model's own queries"},
                           {"coarse", Pass::coarse, "visual tokens from the static query"}}),
             "Which of the two passes. A coarse term of weight x is what the public code calls lambda_coarse = x.")
      .usage("fvlm.next_token { on = \"answer\" }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
