// fvlm-engine plan: prints the frozen Plan of a recipe with the origin of each value, or what differs between two.
#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "budget/budget_text.h"
#include "budget/described_model.h"
#include "budget/rank_budget.h"
#include "cli/plugin_options.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "data/media/tile_forms/tile_form.h"
#include "data/media/video.h"
#include "data/preprocess.h"
#include "data/stream/data_sizes.h"
#include "model/weights/visual_rows.h"
#include "recipe/print.h"
#include "recipe/schema/schema.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <variant>

namespace fvlm::cli {
namespace {

// Returns 0 where the plans are equal and 1 where they differ, as diff(1) does.
int print_differences(const recipe::Resolved& left, const recipe::Resolved& right, const std::vector<std::string>& sets,
                      bool json) {
  auto differences = recipe::differences(left.plan, right.plan);
  if (json) {
    auto document = nlohmann::ordered_json::array();
    for (const auto& each : differences)
      document.push_back({{"path", each.path}, {"left", each.left}, {"right", each.right}});
    fmt::print("{}", dump(document));
  } else if (differences.empty()) {
    fmt::print("the plans are identical: {}\n", left.hash.substr(0, 12));
  } else {
    std::string changed = sets.empty() ? left.recipe : fmt::format("{} --set {}", left.recipe, join(sets, " --set "));
    fmt::print("{}", recipe::differences_text(differences, changed, right.recipe));
    if (left.hash == right.hash)
      fmt::print("none of these changes the results: both plans have the hash {}\n", left.hash.substr(0, 12));
  }
  return differences.empty() ? 0 : 1;
}

// Of the images that the encoder reads. Nothing where its folder is not there or is damaged.
std::vector<std::string> image_sizes(const plan::Model& model) {
  const auto* const folder = std::get_if<std::string>(&model.vision);
  if (model.connector->reads_bytes() || (folder && !std::filesystem::exists(*folder))) return {};
  std::optional<ImageProcessor> processor;
  try {
    processor = image_processor(model);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return {};
  }
  const std::string square = fmt::format("{0} x {0} pixels", model.image_size);
  if (!processor || !processor->splits_into_tiles) return {square};
  if (!processor->has_cells()) return {"tiles of " + square};
  std::vector<std::string> parts{"any size"};
  if (!rules_of(processor->tile_form).has_pixel_limits) return parts;
  const auto add = [&](const ProcessorLimit& limit, int64_t value) {
    parts.push_back(fmt::format("{} {}", limit.key, value));
  };
  const auto& [min, max, video_min, video_max] = processor_limits;
  add(min, processor->min_pixels);
  add(max, processor->max_pixels);
  if (!processor->video) return parts;
  add(video_min, processor->video->min_pixels);
  add(video_max, processor->video->max_pixels);
  return parts;
}

struct BudgetRequest {
  budget::Device device;
  int64_t ranks, memory; // bytes of it; 0: what is free
};

budget::Device device_named(const std::optional<std::string>& name) {
  if (!name) return std::filesystem::exists("/dev/nvidiactl") ? budget::Device::cuda : budget::Device::cpu;
  check_device_name(*name);
  return *name == "cpu" ? budget::Device::cpu : budget::Device::cuda;
}

std::vector<budget::StageGroups> groups_of(const plan::Plan& plan, const ModelDescription& description) {
  std::vector<budget::StageGroups> groups;
  for (const plan::Stage& stage : plan.stages)
    groups.push_back({stage.name, budget::group_lines(plan.model, stage, description)});
  return groups;
}

// A plan can be printed on a machine without the model's weights: the reason then stands in place of the table.
std::string groups_or_reason(const plan::Plan& plan) {
  try {
    const ModelDescription description = budget::describe(plan);
    return budget::groups_text(groups_of(plan, description)) + budget::exported_text(plan, description);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return fmt::format("parameters and memory are unknown: {}{}\n", error.where().empty() ? "" : error.where() + ": ",
                       error.what());
  }
}

// With the pack that training would choose, where it fills the memory.
budget::StageBudget budget_of(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                              Registry& registry, const BudgetRequest& request) {
  const bool fills = stage.packing.tokens.fill_memory;
  const auto video =
      fills && stage.data.has_frames() ? choose_video_decoder(registry, plan.kernels["video"]) : std::nullopt;
  DataSizes data = measure_data_sizes(plan, stage, video ? &*video : nullptr, visual_rows(plan.model));
  std::optional<budget::ChosenPack> chosen;
  if (fills)
    chosen = tensor_module().choose_pack(plan, stage, data, description, registry, request.device, request.ranks,
                                         request.memory);
  if (chosen) {
    data.stage.packing.tokens = {chosen->rows};
    if (chosen->frames > 0) data.stage.packing.frames = chosen->frames;
  }
  auto budget = tensor_module().stage_budget(plan, data.stage, description, registry, request.device, request.ranks);
  budget.chosen = chosen;
  std::vector<std::string> said{data.said};
  if (fills)
    said.push_back("packing.tokens = \"memory\": " +
                   (chosen ? budget::chosen_text(*chosen)
                           : "there is no GPU here whose memory would decide, so these are packs of \"auto\"; "
                             "--memory-mib N says how much it has"));
  budget.assumptions.insert(budget.assumptions.begin(), said.begin(), said.end());
  return budget;
}

// What of a stage its estimate depends on.
std::string estimated_part(plan::Stage stage) {
  stage.name = stage.from = "";
  stage.schedule = plan::Constant{};
  stage.samples = 0;
  stage.epochs = stage.steps = stage.warmup_steps = {};
  stage.evaluation = {};
  stage.control.reset();
  return recipe::stage_schema()->write(stage, recipe::Write::everything).dump();
}

// Stages that need the same are measured once: a recipe may have a thousand.
std::vector<budget::StageBudget> budgets_of(const plan::Plan& plan, const ModelDescription& description,
                                            Registry& registry, const BudgetRequest& request) {
  std::map<std::string, budget::StageBudget> measured;
  std::vector<budget::StageBudget> budgets;
  for (const plan::Stage& stage : plan.stages) {
    const auto [known, is_new] = measured.try_emplace(estimated_part(stage));
    if (is_new) known->second = budget_of(plan, stage, description, registry, request);
    budgets.push_back(known->second);
    budgets.back().stage = stage.name;
  }
  return budgets;
}

// Loads LibTorch. Throws Error(data) where the model's folders do not exist.
void print_budget(const plan::Plan& plan, const BudgetRequest& request, Registry& registry, bool json) {
  const int64_t ranks = request.ranks;
  const ModelDescription description = budget::describe(plan);
  const auto groups = groups_of(plan, description);
  const std::vector<budget::StageBudget> stages = budgets_of(plan, description, registry, request);
  std::vector<budget::RankBudget> of_ranks;
  for (const budget::StageBudget& stage : stages) of_ranks.push_back(budget::rank_budget(plan, stage, ranks));
  if (json) {
    auto document = budget::budgets_json(groups, stages);
    for (size_t i = 0; i < document.size() && ranks > 1; ++i)
      document[i]["rank"] = budget::rank_json(of_ranks[i], ranks);
    fmt::print("{}", dump(document));
  } else {
    fmt::print("{}\n{}", budget::groups_text(groups), budget::budgets_text(stages, request.device));
    if (ranks > 1) fmt::print("\n{}", budget::ranks_text(of_ranks, ranks));
  }
}

} // namespace

int run_plan(Arguments arguments) {
  Options options(
      "plan RECIPE [--all | --budget [--ranks N] [--memory-mib N] | --diff OTHER] [--device cpu|cuda]\n"
      "      [--set PATH=VALUE] [--arg NAME=VALUE] [--json]",
      "Print the plan that a recipe resolves to: what its author set, a summary of each stage, and the parameters\n"
      "that each trains. With --budget, estimate the memory that each needs.\n"
      "With --diff, print what differs; exit code 0: nothing, 1: something.",
      "plan recipes/fvlm-135m.lua --set stages.align.samples=1000");
  add_recipe_options(options);
  with_plugin_options(options)
      .value("diff", "OTHER", "compare with another recipe or plan file; --arg applies to both, --set to RECIPE alone")
      .flag("all", "print every value, defaults included, and where each was written")
      .flag("budget", "print only the tables of parameters and memory")
      .value("ranks", "N", "with --budget, also what each of so many ranks needs and sends in a step")
      .value(
          "memory-mib", "N",
          "with --budget, memory for tensors, which stages fill whose packing.tokens is \"memory\"; default: what is "
          "free here")
      .value("device", "cpu|cuda", "the device to estimate memory for; default: cuda where there is one, else cpu")
      .flag("json", "print one JSON document on standard output: a plan file, or with --budget the tables");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  auto resolved = recipe::resolve(recipe_request(*parsed));
  if (auto other = parsed->value("diff")) {
    auto request = recipe_request(*parsed, *other);
    request.sets.clear();
    if (request.file.extension() == ".json") request.args.clear();
    return print_differences(resolved, recipe::resolve(request), parsed->values("set"), parsed->flag("json"));
  }
  require_positions(resolved);
  const budget::Device device = device_named(parsed->value("device"));
  const int64_t ranks = parsed->integer_or("ranks", 1, 1);
  for (const char* option : {"memory-mib", "ranks"})
    if (parsed->value(option) && !parsed->flag("budget"))
      throw Error(ErrorKind::usage, "--{}: it changes nothing without --budget", option)
          .advise("`fvlm-engine plan {} --budget --{} {}` estimates the memory with it",
                  recipe_request(*parsed).file.string(), option, *parsed->value(option));
  if (parsed->flag("budget"))
    print_budget(resolved.plan, {device, ranks, requested_memory(*parsed, resolved.plan, false)},
                 *open_registry(*parsed), parsed->flag("json"));
  else if (parsed->flag("json"))
    fmt::print("{}", dump(recipe::plan_document(resolved)));
  else if (parsed->flag("all"))
    fmt::print("{}", recipe::all_values_text(resolved));
  else
    fmt::print("{}\n{}", recipe::summary_text(resolved, terminal_width(), image_sizes(resolved.plan.model)),
               groups_or_reason(resolved.plan));
  return 0;
}

} // namespace fvlm::cli
