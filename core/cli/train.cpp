// fvlm-engine train: the stages of a recipe, into a run's folder.
#include "base/error.h"
#include "base/text.h"
#include "cli/batch_search.h"
#include "cli/plugin_options.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "model/execution.h"
#include "recipe/print.h"
#include "report/run_summary.h"
#include "train/run.h"

#include <fmt/format.h>

#include <cstdlib>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// How the run ended, and what it came to: its metrics tell that, those of earlier processes among them.
void print(const train::TrainReport& report, const fs::path& folder, bool goes_back, bool json) {
  const report::RecordedRun run = report::read_run(folder);
  std::vector<report::StageFigures> figures;
  for (const report::Stage& stage : run.stages) figures.push_back(report::figures_of(stage));
  if (json) {
    Json document = {{"run", folder.string()},   {"stopped", report.stopped},
                     {"stage", report.stage},    {"step", report.step},
                     {"steps", report.steps},    {"checkpoint", report.checkpoint.string()},
                     {"seconds", report.seconds}};
    document.update(report::summary_json(run, figures));
    fmt::print("{}", dump(document));
    return;
  }
  if (report.stopped)
    fmt::print("{}: stopped at stage {}, step {}; the same command{} resumes there\n", folder.string(), report.stage,
               report.step, goes_back ? " without --resume" : "");
  else if (report.steps == 0)
    fmt::print("{}: every stage is done already\n", folder.string());
  else
    fmt::print("{}: done, {} steps in {}\n", folder.string(), grouped(report.steps), human_duration(report.seconds));
  fmt::print("\n{}\n", report::summary_text(run, figures));
  if (!report.checkpoint.empty())
    fmt::print("{:<11} {}\n", report.stopped ? "checkpoint" : "model", report.checkpoint.string());
  if (const auto page = folder / "report.html"; fs::exists(page)) fmt::print("{:<11} {}\n", "report", page.string());
}

// It begins no run, so that nothing of one is to be said.
void refuse_beside_find_batch(const ParsedOptions& parsed) {
  for (const char* option : {"run-dir", "from", "resume", "max-steps"})
    if (parsed.value(option)) throw Error(ErrorKind::usage, fmt::format("--find-batch goes without --{}", option));
  for (const char* option : {"allow-plan-change", "dry-run"})
    if (parsed.flag(option)) throw Error(ErrorKind::usage, fmt::format("--find-batch goes without --{}", option));
}

// One process trains a run: several, as launchers start them, would each train the same.
void refuse_several_processes() {
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"})
    if (const char* count = std::getenv(name); count && std::atoll(count) > 1)
      throw Error(ErrorKind::usage,
                  fmt::format("{} is {}: one process trains a run, on one GPU; start it once, without torchrun, srun "
                              "or mpirun, or with one process",
                              name, count));
}

} // namespace

int train_stages(Arguments arguments) {
  Options options(
      "train RECIPE [--run-dir D] [--stage S] [--from MODEL] [--resume auto|CHECKPOINT] [--max-steps N]\n"
      "      [--allow-plan-change] [--dry-run | --find-batch [--memory-mib N]] [--device cpu|cuda] [--set PATH=VALUE]\n"
      "      [--arg NAME=VALUE] [--json]",
      "Runs the stages of a recipe one after the other into the run's folder. A run that was stopped or killed goes "
      "on\n"
      "where it was: start the same command again. Ctrl-C, SIGTERM or a terminal that closes saves a checkpoint and\n"
      "exits with 75; a second Ctrl-C exits at once.",
      "train recipes/quickstart.lua --run-dir runs/mine");
  add_recipe_options(options);
  with_plugin_options(options)
      .value("run-dir", "D", "the run's folder; runs/NAME if not given, NAME as the recipe has it")
      .value("stage", "S", "this stage alone")
      .value("from", "MODEL", "a model directory or checkpoint that the first stage to run begins with")
      .value("resume", "auto|CHECKPOINT", "where to go on: the newest checkpoint that is whole (auto), or this one")
      .value("max-steps", "N", "stop after so many steps, resumable")
      .flag("allow-plan-change", "go on with a run that was begun with another plan")
      .flag("dry-run", "check everything that can be checked without training, and print the stages")
      .flag("find-batch", "search the largest pack of each stage that the memory holds; trains and writes nothing")
      .value("memory-mib", "N", "what --find-batch may take for tensors; default: what the machine can spare")
      .value("device", "cpu|cuda", "default: cuda where there is one, else cpu")
      .flag("json", "one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  refuse_several_processes();
  const auto resolved = recipe::resolve(recipe_request(*parsed));

  train::TrainRequest request;
  request.folder = parsed->value_or("run-dir", "runs/" + resolved.plan.name);
  request.stage = parsed->value("stage");
  if (request.stage) stage_named(resolved.plan, *request.stage);
  if (const auto from = parsed->value("from")) request.from = *from;
  if (const auto resume = parsed->value("resume"); resume && *resume != "auto") request.resume = *resume;
  if (request.from && request.resume)
    throw Error(ErrorKind::usage, "--from begins a stage, and --resume goes on in one");
  request.max_steps = parsed->integer_or("max-steps", -1);
  if (parsed->value("max-steps") && request.max_steps < 0) throw Error(ErrorKind::usage, "--max-steps wants 0 or more");
  request.allow_plan_change = parsed->flag("allow-plan-change");
  const std::string device = parsed->value_or("device", best_device());
  use_device(device);
  request.device = model::device_named(device);
  if (parsed->flag("find-batch")) {
    refuse_beside_find_batch(*parsed);
    return search_batches(resolved.plan, request, *open_registry(*parsed), parsed->integer_or("memory-mib", 0),
                          parsed->flag("json"));
  }
  if (parsed->flag("dry-run")) {
    train::rehearse(resolved, request, *open_registry(*parsed));
    if (parsed->flag("json"))
      fmt::print("{}", dump(checked(resolved, true)));
    else
      fmt::print("{}\nnothing was trained: --dry-run\n", recipe::stages_text(resolved.plan));
    return 0;
  }
  const auto registry = open_registry(*parsed);
  const auto report = train::train(resolved, request, *registry);
  print(report, request.folder, request.resume.has_value(), parsed->flag("json"));
  const bool was_asked = request.max_steps >= 0 && report.steps >= request.max_steps;
  return report.stopped && !was_asked ? static_cast<int>(ErrorKind::stopped) : 0;
}

} // namespace fvlm::cli
