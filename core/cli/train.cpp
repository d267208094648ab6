// fvlm-engine train: trains the stages of a recipe into a run folder, or resumes a run.
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/batch_search.h"
#include "cli/plugin_options.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "dist/rendezvous.h"
#include "model/execution.h"
#include "recipe/print.h"
#include "report/run_summary.h"
#include "train/run.h"
#include "train/stop_signals.h"

#include <fmt/format.h>

#include <chrono>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// The checkpoint that held-out samples say is better than the last one; empty where there is none.
fs::path better_than(const fs::path& last) {
  std::error_code none;
  const fs::path best = fs::read_symlink(last.parent_path() / "best", none);
  return best.empty() || best == last.filename() ? fs::path() : last.parent_path() / best;
}

// Prints how the run ended and its figures, which come from the recorded metrics so that those of earlier processes are
// included.
void print(const train::TrainReport& report, const fs::path& folder, bool resumed_from_named, bool json) {
  const report::RecordedRun run = report::read_run(folder);
  std::vector<report::StageFigures> figures;
  for (const report::Stage& stage : run.stages) figures.push_back(report::figures_of(stage));
  report::advance(figures, run, {report.stage, report.step, report.samples, report.text_tokens});
  const fs::path best = report.checkpoint.empty() ? fs::path() : better_than(report.checkpoint);
  if (json) {
    Json document = {{"run", folder.string()},   {"stopped", report.stopped},
                     {"stage", report.stage},    {"step", report.step},
                     {"steps", report.steps},    {"checkpoint", report.checkpoint.string()},
                     {"seconds", report.seconds}};
    if (!best.empty()) document["best"] = best.string();
    document.update(report::summary_json(run, figures));
    fmt::print("{}", dump(document));
    return;
  }
  if (report.stopped)
    fmt::print("{}: stopped at stage {}, step {}; the same command{} resumes there\n", folder.string(), report.stage,
               report.step, resumed_from_named ? " without --resume" : "");
  else if (report.steps == 0)
    fmt::print("{}: every stage is already complete\n", folder.string());
  else
    fmt::print("{}: done, {} steps in {}\n", folder.string(), grouped(report.steps), human_duration(report.seconds));
  fmt::print("\n{}\n", report::summary_text(run, figures));
  if (!report.checkpoint.empty())
    fmt::print("{:<11} {}\n", report.stopped ? "checkpoint" : "model", report.checkpoint.string());
  if (!best.empty()) fmt::print("{:<11} {}\n", "best", best.string());
  if (const auto page = folder / "report.html"; fs::exists(page)) fmt::print("{:<11} {}\n", "report", page.string());
}

// --find-batch starts no run, so options about one are rejected.
void refuse_beside_find_batch(const ParsedOptions& parsed) {
  for (const char* option : {"run-dir", "from", "resume", "max-steps", "profile"})
    if (parsed.value(option)) throw Error(ErrorKind::usage, "--find-batch and --{} are mutually exclusive", option);
  for (const char* option : {"allow-plan-change", "dry-run"})
    if (parsed.flag(option)) throw Error(ErrorKind::usage, "--find-batch and --{} are mutually exclusive", option);
}

// As which rank a launcher started this process; it sees the rank's GPU alone from here on.
std::optional<dist::Launch> launch_of(const ParsedOptions& parsed) {
  const auto launch = dist::launch_of_environment();
  if (!launch) return {};
  for (const char* option : {"find-batch", "dry-run"})
    if (launch->ranks > 1 && parsed.flag(option))
      throw Error(ErrorKind::usage, "--{} runs in one process, and {} were started", option, launch->ranks)
          .advise("start it without torchrun or srun");
  dist::choose_gpu(*launch);
  return launch;
}

// Trains, as one of several ranks where a launcher started them.
train::TrainReport train_together(const recipe::Resolved& resolved, train::TrainRequest& request,
                                  const ParsedOptions& parsed, const std::optional<dist::Launch>& launch) {
  const int64_t context = parsed.integer_or("context-parallel", 1);
  if (!launch) {
    if (request.zero > 0)
      throw Error(ErrorKind::usage, "--zero divides the optimizer's state among ranks, and there is one process")
          .advise("start several with torchrun or srun");
    return train::train(resolved, request, *open_registry(parsed));
  }
  const std::chrono::seconds timeout(parsed.integer_or("rank-timeout", 600));
  const auto ranks = dist::Ranks::join(*launch, request.device, timeout, context, !parsed.flag("no-peer-copies"));
  request.ranks = ranks.get();
  if (ranks->is_first() && ranks->are_several())
    log_info("{} ranks train together, by {}{}", ranks->count(), ranks->group()->name(),
             context > 1 ? fmt::format("; {} of them share each pack's sequences", context) : "");
  if (!ranks->is_first()) set_log_level(LogLevel::warning); // the first one says the rest
  try {
    return train::train(resolved, request, *open_registry(parsed));
  } catch (const Error& error) {
    ranks->report_failure(error.text());
    throw;
  }
}

fs::path named_checkpoint(const std::string& resume) {
  std::error_code ignored;
  if (!fs::is_directory(resume, ignored))
    throw Error(ErrorKind::usage, "--resume: expected auto or a checkpoint's folder, got '{}'", resume);
  return resume;
}

Options train_options() {
  Options options(
      "train RECIPE [--run-dir D] [--stage S] [--from MODEL] [--resume auto|CHECKPOINT] [--max-steps N]\n"
      "      [--allow-plan-change] [--dry-run | --find-batch] [--memory-mib N] [--device cpu|cuda] [--zero [1|2]]\n"
      "      [--context-parallel N] [--no-peer-copies] [--rank-timeout SECONDS] [--profile STEPS]\n"
      "      [--page [ADDRESS:]PORT] [--set PATH=VALUE] [--arg NAME=VALUE] [--json]",
      "Train the stages of a recipe one after the other, into a run folder, in one process or in the ranks that\n"
      "torchrun or srun started. The same command resumes a run that was stopped or killed. Ctrl-C, SIGTERM or a\n"
      "closed terminal saves a checkpoint and exits with 75; a second Ctrl-C exits at once.",
      "train recipes/quickstart.lua --run-dir runs/mine");
  add_recipe_options(options);
  with_plugin_options(options)
      .value("run-dir", "D", "the run folder; default: runs/NAME, with the recipe's name")
      .value("stage", "S", "train this stage alone")
      .value("from", "MODEL",
             "a model directory, a checkpoint or a run folder (its newest checkpoint) that the first stage starts from")
      .value("resume", "auto|CHECKPOINT",
             "resume from the newest intact checkpoint (auto, the default) or from this one")
      .value("max-steps", "N", "stop after N steps of this call, whatever earlier ones took; the run can be resumed")
      .flag("allow-plan-change", "resume a run that was started with another plan or other data; a stage under way "
                                 "keeps its number of samples")
      .flag("dry-run", "open everything a run needs, print the stages, and train nothing")
      .flag("find-batch", "find the largest pack of each stage that fits in memory; writes nothing")
      .value("memory-mib", "N",
             "memory for tensors: the limit of --find-batch, and of the stages whose packing.tokens is \"memory\"; "
             "default: what is free")
      .value("device", "cpu|cuda", "default: cuda where there is one, else cpu")
      .optional_value(
          "zero", "1|2",
          "of several ranks: each keeps the optimizer's state of a share of the parameters (1, the default), "
          "and their gradients (2)")
      .value("context-parallel", "N",
             "of several ranks: N that follow each other share the rows of each pack, for long texts (ring attention)")
      .flag("no-peer-copies",
            "of several ranks on GPUs of one host: exchange by NCCL alone, and not by the GPUs' copy engines")
      .value("page", "[ADDRESS:]PORT",
             "serve a page that follows the run and can stop it; beyond this machine with FVLM_PAGE_PASSWORD")
      .value(
          "profile", "STEPS",
          "write trace.json, in Chrome's format, of what host and GPU did in steps 10-14 of this call, or its first N")
      .value("rank-timeout", "SECONDS",
             "of several ranks: take one for lost that keeps the others waiting; default 600")
      .flag("json", "print one JSON document on standard output");
  return options;
}

} // namespace

int train_stages(Arguments arguments) {
  const auto parsed = train_options().parse(arguments);
  if (!parsed) return 0;
  const auto launch = launch_of(*parsed);
  if (!launch && parsed->value("context-parallel"))
    throw Error(ErrorKind::usage, "--context-parallel divides sequences among ranks, and there is one process")
        .advise("start several with torchrun or srun");
  const auto resolved = recipe::resolve(recipe_request(*parsed));

  train::TrainRequest request;
  request.folder = parsed->value_or("run-dir", "runs/" + resolved.plan.name);
  request.stage = parsed->value("stage");
  if (request.stage) stage_named(resolved.plan, *request.stage);
  if (request.folder.empty())
    throw Error(ErrorKind::usage, "--run-dir: expected the path of the run's folder, got an empty text");
  if (const auto from = parsed->value("from")) request.from = *from;
  if (const auto resume = parsed->value("resume"); resume && *resume != "auto")
    request.resume = named_checkpoint(*resume);
  if (request.from && request.resume)
    throw Error(ErrorKind::usage,
                "--from and --resume are mutually exclusive: one starts a stage, the other continues one");
  request.max_steps = parsed->integer_or("max-steps", -1, 0);
  request.allow_plan_change = parsed->flag("allow-plan-change");
  if (const auto steps = parsed->value("profile")) request.profile = train::step_range(*steps);
  if (const std::string zero = parsed->value_or("zero", "0"); zero == "0" || zero == "1" || zero == "2")
    request.zero = zero[0] - '0';
  else
    throw Error(ErrorKind::usage, "--zero: expected 1 or 2, got '{}'", zero);
  const std::string device = parsed->value_or("device", default_device());
  initialize_device(device);
  request.device = model::device_named(device);
  request.memory = requested_memory(*parsed, resolved.plan, parsed->flag("find-batch"));
  if (parsed->flag("find-batch")) {
    refuse_beside_find_batch(*parsed);
    return search_batches(resolved.plan, request, *open_registry(*parsed), request.memory, parsed->flag("json"));
  }
  if (parsed->flag("dry-run")) {
    const auto registry = open_registry(*parsed);
    train::rehearse(resolved, request, *registry);
    const std::string start = train::planned_start(resolved, request, *registry);
    if (parsed->flag("json")) {
      Json document = validation_json(resolved, true);
      document["start"] = start;
      fmt::print("{}", dump(document));
    } else
      fmt::print("{}\n{}\ndry run: nothing was trained\n", recipe::stages_text(resolved.plan), start);
    return 0;
  }
  request.write_report = write_report_page;
  std::shared_ptr<void> page;
  if (const auto where = parsed->value("page"); where && (!launch || launch->rank == 0))
    page = open_run_page(request.folder, *where, train::StopSignals::request_stop);
  const auto report = train_together(resolved, request, *parsed, launch);
  if (!launch || launch->rank == 0) print(report, request.folder, request.resume.has_value(), parsed->flag("json"));
  const bool reached_max_steps = request.max_steps >= 0 && report.steps >= request.max_steps;
  return report.stopped && !reached_max_steps ? static_cast<int>(ErrorKind::stopped) : 0;
}

} // namespace fvlm::cli
