#include "budget/rank_budget.h"

#include "base/table.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::budget {

RankBudget rank_budget(const plan::Plan& plan, const StageBudget& budget, int64_t ranks) {
  const auto amount = [&](Item item) { return budget.step.amounts[static_cast<size_t>(item)]; };
  const bool half_weights = plan.precision == plan::Precision::bf16 || plan.precision == plan::Precision::fp8 ||
                            plan.precision == plan::Precision::fp16;
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
  of_rank.pack_sent = gradients / ranks * (ranks - 1);
  of_rank.sharded_gradients_memory = budget.sharded_gradients_peak;
  of_rank.late = 2 * (budget.last_bucket / ranks) * (ranks - 1);
  return of_rank;
}

std::string ranks_text(const std::vector<RankBudget>& stages, int64_t ranks) {
  std::vector<std::string> header{fmt::format("of {} ranks, each", ranks)};
  for (const RankBudget& stage : stages) header.push_back(stage.stage);
  TextTable table(header);
  const auto row = [&](const std::string& label, int64_t RankBudget::*bytes) {
    std::vector<std::string> cells{label};
    for (const RankBudget& stage : stages)
      cells.push_back(stage.*bytes == 0 ? "-" : human_bytes(static_cast<uint64_t>(stage.*bytes)));
    table.row(std::move(cells));
  };
  row("memory", &RankBudget::memory);
  row("memory with --zero", &RankBudget::sharded_memory);
  row("memory with --zero 2", &RankBudget::sharded_gradients_memory);
  row("sends a step", &RankBudget::sent);
  row("  of it after the backward pass", &RankBudget::late);
  row("sends a step with --zero", &RankBudget::sharded_sent);
  row("  of it for each pack with --zero 2", &RankBudget::pack_sent);
  return table.text();
}

nlohmann::ordered_json rank_json(const RankBudget& budget, int64_t ranks) {
  return {{"ranks", ranks},
          {"memory", budget.memory},
          {"memory_with_zero", budget.sharded_memory},
          {"memory_with_zero_2", budget.sharded_gradients_memory},
          {"sent_a_step", budget.sent},
          {"sent_after_backward", budget.late},
          {"sent_a_step_with_zero", budget.sharded_sent},
          {"sent_a_pack_with_zero_2", budget.pack_sent}};
}

} // namespace fvlm::budget
