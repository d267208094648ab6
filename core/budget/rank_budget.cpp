#include "budget/rank_budget.h"

#include "base/table.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <functional>

namespace fvlm::budget {

RankBudget rank_budget(const plan::Plan& plan, const StageBudget& budget, int64_t ranks) {
  const auto amount = [&](Item item) { return budget.step.amounts[static_cast<size_t>(item)]; };
  const bool half_weights = plan.precision == plan::Precision::bf16 || plan.precision == plan::Precision::fp16;
  const int64_t gradients = amount(Item::gradients);
  const int64_t elements = gradients / (plan.gradients == plan::Gradients::bf16 ? 2 : 4);
  const int64_t weights = elements * (half_weights ? 2 : 4);
  const int64_t state = amount(Item::masters) + amount(Item::moments);
  RankBudget of_rank;
  of_rank.stage = budget.stage;
  of_rank.memory = budget.step.peak;
  of_rank.sharded_memory = budget.step.peak - state + state / ranks;
  of_rank.sent = 2 * (gradients / ranks) * (ranks - 1);
  of_rank.sharded_sent = (gradients + weights) / ranks * (ranks - 1);
  return of_rank;
}

std::string ranks_text(const std::vector<RankBudget>& stages, int64_t ranks) {
  std::vector<std::string> header{fmt::format("of {} ranks, each", ranks)};
  for (const RankBudget& stage : stages) header.push_back(stage.stage);
  TextTable table(header);
  const auto row = [&](const std::string& label, int64_t RankBudget::*bytes) {
    std::vector<std::string> cells{label};
    for (const RankBudget& stage : stages)
      cells.push_back(stage.*bytes == 0 ? "0" : human_bytes(static_cast<uint64_t>(stage.*bytes)));
    table.row(std::move(cells));
  };
  row("memory", &RankBudget::memory);
  row("memory with --zero", &RankBudget::sharded_memory);
  row("sends a step", &RankBudget::sent);
  row("sends a step with --zero", &RankBudget::sharded_sent);
  return table.text();
}

nlohmann::ordered_json rank_json(const RankBudget& budget, int64_t ranks) {
  return {{"ranks", ranks},
          {"memory", budget.memory},
          {"memory_with_zero", budget.sharded_memory},
          {"sent_a_step", budget.sent},
          {"sent_a_step_with_zero", budget.sharded_sent}};
}

} // namespace fvlm::budget
