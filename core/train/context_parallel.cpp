#include "train/context_parallel.h"

#include "base/error.h"

#include <algorithm>

namespace fvlm::train {

void require_context_parallel(const plan::Plan& plan, const std::vector<const plan::Stage*>& stages) {
  for (const plan::Stage* stage : stages)
    for (const plan::Term& term : stage->objective)
      if (!term->is_sum_over_labels())
        throw Error(ErrorKind::usage,
                    "--context-parallel: the objective {} of stage '{}' reads more of a text than a rank has",
                    term->name(), stage->name)
            .advise("terms that are sums over labels (next_token) can be divided: train such stages alone with "
                    "--stage, and this one without --context-parallel");
  for (const plan::Stage* stage : stages)
    if (stage->packing.tokens.fill_memory)
      throw Error(ErrorKind::usage,
                  "--context-parallel: what a rank's share of a pack takes is not estimated, and stage '{}' has "
                  "packing.tokens = \"memory\"",
                  stage->name)
          .advise("give the tokens of a pack: --set stages.{}.packing.tokens=16384", stage->name);
  if (plan.model.decoder_count() > 1)
    throw Error(ErrorKind::usage,
                "--context-parallel: the ranks share the sequences of one decoder, and the model has several")
        .advise("train it without --context-parallel");
  const std::vector<plan::Lora> none, &adapters = plan.model.adapters ? *plan.model.adapters : none;
  if (std::ranges::any_of(adapters, [](const plan::Lora& adapter) { return adapter.dropout > 0; }))
    throw Error(ErrorKind::usage, "--context-parallel: adapters with dropout draw it by the rows of a whole pack")
        .advise("set their dropout to 0, or train without --context-parallel");
}

} // namespace fvlm::train
