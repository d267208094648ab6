#include "budget/budget_text.h"

#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace fvlm::budget {
namespace {

struct Row {
  Item item;
  const char* name; // in JSON
  const char* label;
};
constexpr Row rows[] = {
    {Item::weights, "weights", "weights"},
    {Item::gradients, "gradients", "gradients"},
    {Item::masters, "masters", "fp32 masters"},
    {Item::moments, "moments", "optimizer moments"},
    {Item::real_weights, "real_weights", "weights before quantizing"},
    {Item::frozen, "frozen", "reference, teachers"},
    {Item::workspace, "workspace", "loss, workspace"},
    {Item::pack, "pack", "pack"},
    {Item::answers, "answers", "drawn answers"},
    {Item::vision, "vision", "kept: vision tower"},
    {Item::connector, "connector", "kept: connector"},
    {Item::decoder, "decoder", "kept: decoder"},
    {Item::loss, "loss", "kept: head and loss"},
    {Item::passing, "passing", "comes and goes"},
};

std::string bytes(int64_t amount) {
  return amount == 0 ? "0" : human_bytes(static_cast<uint64_t>(amount));
}

int64_t amount(const StageBudget& budget, Item item) {
  return budget.step.amounts[static_cast<size_t>(item)];
}

} // namespace

std::string groups_text(const std::vector<StageGroups>& stages) {
  TextTable table({"stage", "group", "tensors", "parameters", "", "lr", "weight decay"});
  const auto number = [](const std::optional<double>& value) { return value ? fmt::format("{:g}", *value) : "-"; };
  for (const StageGroups& stage : stages)
    for (const GroupLine& group : stage.groups)
      table.row({stage.stage, group.name, grouped(group.tensors), grouped(group.parameters),
                 group.trained ? "trained" : "frozen",
                 number(group.lr) + (group.others_lr ? fmt::format(", others {:g}", *group.others_lr) : ""),
                 number(group.weight_decay)});
  return table.text();
}

std::string exported_text(const plan::Plan& plan, const ModelDescription& description) {
  if (!plan.quantization) return "";
  const auto names = parameter_names(description);
  require_matches(plan.quantization->skip, names);
  const auto quantization = with_indices(*plan.quantization, names);
  const PackedScheme* scheme = find_packed_scheme(quantization.scheme);
  if (!scheme) return "";
  uint64_t plain = 0, quantized = 0;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors) {
      const auto bytes = static_cast<uint64_t>(elements_of(spec.shape)) * 2;
      plain += bytes;
      quantized += is_quantized(quantization, part.name + "." + spec.name, spec.shape)
                       ? static_cast<uint64_t>(packed_bytes(*scheme, spec.shape[0], spec.shape[1]))
                       : bytes;
    }
  return fmt::format("exported, {}: {}; bf16: {}\n", scheme->name, human_bytes(quantized), human_bytes(plain));
}

std::string budgets_text(const std::vector<StageBudget>& stages, Device device) {
  std::vector<std::string> header{fmt::format("memory, {}", device == Device::cpu ? "CPU" : "GPU")};
  for (const StageBudget& stage : stages) header.push_back(stage.stage);
  TextTable table(header);
  const auto row = [&](const std::string& label, const std::function<std::string(const StageBudget&)>& cell) {
    std::vector<std::string> cells{label};
    for (const StageBudget& stage : stages) cells.push_back(cell(stage));
    table.row(std::move(cells));
  };
  row("largest pack: frames", [](const StageBudget& stage) { return grouped(stage.pack.frames); });
  row("largest pack: tokens", [](const StageBudget& stage) { return grouped(stage.pack.rows); });
  for (const Row& one : rows) {
    const bool anywhere =
        std::ranges::any_of(stages, [&](const StageBudget& stage) { return amount(stage, one.item) > 0; });
    if (anywhere) row(one.label, [&](const StageBudget& stage) { return bytes(amount(stage, one.item)); });
  }
  row("sum", [](const StageBudget& stage) { return bytes(stage.step.peak); });
  row("sum, no layer recomputed", [](const StageBudget& stage) { return bytes(stage.without_recompute); });
  row("sum, all layers recomputed", [](const StageBudget& stage) { return bytes(stage.with_all); });
  row("host: packs under way", [](const StageBudget& stage) { return bytes(stage.packs_in_flight); });
  row("host: checkpoint in writing", [](const StageBudget& stage) { return bytes(stage.checkpoint); });

  std::string notes;
  std::vector<std::string> said;
  for (const StageBudget& stage : stages)
    for (const std::string& assumption : stage.assumptions) {
      if (std::ranges::find(said, assumption) != said.end()) continue;
      said.push_back(assumption);
      notes += fmt::format("{}: {}\n", stage.stage, assumption);
    }
  return table.text() +
         styled(
             "For a pack that is full and of which all text is learnt: what stays, what a forward pass keeps, and what "
             "comes and goes\nbesides, at most. LibTorch itself comes on top, and what plugins of other authors need. "
             "`train --find-batch` measures.\n",
             Style::dim) +
         notes;
}

nlohmann::ordered_json groups_json(const std::vector<GroupLine>& groups) {
  auto document = nlohmann::ordered_json::array();
  for (const GroupLine& group : groups) {
    auto& line = document.emplace_back();
    line = {
        {"name", group.name}, {"tensors", group.tensors}, {"parameters", group.parameters}, {"trained", group.trained}};
    if (group.lr) line["lr"] = *group.lr;
    if (group.others_lr) line["others_lr"] = *group.others_lr;
    if (group.weight_decay) line["weight_decay"] = *group.weight_decay;
  }
  return document;
}

nlohmann::ordered_json budgets_json(const std::vector<StageGroups>& groups, const std::vector<StageBudget>& budgets) {
  using Json = nlohmann::ordered_json;
  Json document = Json::array();
  for (size_t i = 0; i < groups.size(); ++i) {
    Json stage = {{"stage", groups[i].stage}, {"groups", groups_json(groups[i].groups)}};
    const StageBudget& budget = budgets[i];
    stage["pack"] = {{"frames", budget.pack.frames},
                     {"tokens", budget.pack.rows},
                     {"sequences", budget.pack.sequences},
                     {"labels", budget.pack.labels}};
    for (const Row& one : rows) stage["memory"][one.name] = amount(budget, one.item);
    stage["memory"]["sum"] = budget.step.peak;
    stage["sum_without_recompute"] = budget.without_recompute;
    stage["sum_with_all_recomputed"] = budget.with_all;
    stage["host"] = {{"packs_under_way", budget.packs_in_flight}, {"checkpoint_in_writing", budget.checkpoint}};
    if (budget.chosen)
      stage["packing"] = {{"tokens", budget.chosen->rows},
                          {"frames", budget.chosen->frames},
                          {"estimated_bytes", budget.chosen->estimated},
                          {"memory_bytes", budget.chosen->limit.bytes}};
    stage["assumptions"] = budget.assumptions;
    document.push_back(std::move(stage));
  }
  return document;
}

} // namespace fvlm::budget
