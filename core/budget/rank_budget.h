// What each of several ranks needs and sends, by what one process needs.
#pragma once
#include "budget/stage_budget.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm::budget {

struct RankBudget {
  std::string stage;
  // Of a step: with all of the optimizer's state, with ZeRO-1, and with ZeRO-2 (0: not possible).
  int64_t memory = 0, sharded_memory = 0, sharded_gradients_memory = 0;
  int64_t sent = 0, sharded_sent = 0; // bytes that a rank sends in a step, and receives
  int64_t pack_sent = 0;              // with ZeRO-2, of them for each pack of the step
  int64_t late = 0;                   // of `sent`, when the backward pass is over
};

// Rings: an all-reduce sends 2 (N - 1) / N of the gradients. With ZeRO, a reduce-scatter sends half of that, of a step
// or with ZeRO-2 of each of its packs, and an all-gather (N - 1) / N of the weights that train.
RankBudget rank_budget(const plan::Plan& plan, const StageBudget& budget, int64_t ranks);

// A column a stage.
std::string ranks_text(const std::vector<RankBudget>& stages, int64_t ranks);
nlohmann::ordered_json rank_json(const RankBudget& budget, int64_t ranks);

} // namespace fvlm::budget
