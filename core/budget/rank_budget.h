// What each of several ranks needs and sends, by what one process needs.
#pragma once
#include "budget/stage_budget.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm::budget {

struct RankBudget {
  std::string stage;
  int64_t memory = 0, sharded_memory = 0; // of a step: with all of the optimizer's state, and with ZeRO-1
  int64_t sent = 0, sharded_sent = 0;     // bytes that a rank sends in a step, and receives
};

// Rings: an all-reduce sends 2 (N - 1) / N of the gradients. With ZeRO-1, a reduce-scatter sends half of that and an
// all-gather (N - 1) / N of the weights that train.
RankBudget rank_budget(const plan::Plan& plan, const StageBudget& budget, int64_t ranks);

// A column a stage.
std::string ranks_text(const std::vector<RankBudget>& stages, int64_t ranks);
nlohmann::ordered_json rank_json(const RankBudget& budget, int64_t ranks);

} // namespace fvlm::budget
