// Budgets for people and for programs.
#pragma once
#include "budget/parameter_groups.h"
#include "budget/stage_budget.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm::budget {

struct StageGroups {
  std::string stage;
  std::vector<GroupLine> groups;
};

// A row a group and stage: what trains, and how fast.
std::string groups_text(const std::vector<StageGroups>& stages);

// What the weights of a plan with a quantization take once `export --quantize` has stored them, beside bf16; empty for
// a plan without one, and for schemes that export does not know. Throws as require_matches().
std::string exported_text(const plan::Plan& plan, const ModelDescription& description);

// A column a stage, a row for what its memory is for.
std::string budgets_text(const std::vector<StageBudget>& stages, Device device);

// [{"name": "connector", "tensors": ..., "parameters": ..., "trained": true, "lr": ..., "weight_decay": ...}, ...]
nlohmann::ordered_json groups_json(const std::vector<GroupLine>& groups);

// [{"stage": ..., "groups": [...], "pack": {...}, "memory": {"weights": bytes, ...}, ...}]
nlohmann::ordered_json budgets_json(const std::vector<StageGroups>& groups, const std::vector<StageBudget>& budgets);

} // namespace fvlm::budget
