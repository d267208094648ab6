// fvlm-engine eval: what a model makes of held-out samples.
#include "base/error.h"
#include "base/file.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/execution_options.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "evaluation/evaluator.h"
#include "model/loading.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

using evaluation::name_of;
using evaluation::Result;

struct StageResult {
  std::string stage;
  Result result;
};

// The recipe's stages with the evaluation sets that are asked for, and nothing else to evaluate.
std::vector<plan::Stage> wanted_stages(const plan::Plan& plan, const ParsedOptions& parsed) {
  const auto stage_name = parsed.value("stage"), set_name = parsed.value("set-name");
  const int64_t samples = parsed.integer_or("samples", 0);
  if (samples < 0) throw Error(ErrorKind::usage, "--samples wants 1 or more");
  if (stage_name) stage_named(plan, *stage_name); // which has to be there
  std::vector<plan::Stage> wanted;
  std::vector<std::string> sets;
  for (plan::Stage stage : plan.stages) {
    if (stage_name && stage.name != *stage_name) continue;
    for (const auto& set : stage.evaluation.sets) sets.push_back(set.name);
    std::erase_if(stage.evaluation.sets, [&](const auto& set) { return set_name && set.name != *set_name; });
    for (auto& set : stage.evaluation.sets)
      if (samples > 0) set.samples = samples;
    if (!stage.evaluation.sets.empty()) wanted.push_back(std::move(stage));
  }
  if (!wanted.empty()) return wanted;
  if (set_name)
    throw Error(ErrorKind::usage, fmt::format("there is no evaluation set '{}'", *set_name))
        .advise(sets.empty() ? "it has none" : "it has " + join_or(sets));
  throw Error(ErrorKind::usage, "there is nothing to evaluate: no evaluation set")
      .advise("evaluation = { fvlm.evaluation \"name\" { data = ..., measure = \"choice\" } } in a stage");
}

// A line of JSON for each sample.
class ScoreFile {
 public:
  explicit ScoreFile(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void add(const evaluation::SampleSet& set, plan::Mode mode, const evaluation::Scores& scores) {
    if (!file_) return;
    for (const auto& sample : scores.samples) {
      Json line{{"set", set.wanted().name}, {"mode", name_of(mode)},   {"position", sample.position},
                {"key", sample.key},        {"source", sample.source}, {"right", sample.right}};
      for (const auto& text : sample.texts) {
        line["losses"].push_back(text.mean());
        line["labels"].push_back(text.labels);
      }
      file_->write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    }
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

// "accuracy.colour" -> "colour"
std::string category_of(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? "" : name.substr(dot + 1);
}

std::string shown(const std::string& name, double value) {
  const bool share = name.find("accuracy") != std::string::npos;
  return share ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.4f}", value);
}

void print_table(const std::vector<StageResult>& results) {
  std::vector<std::string> columns; // of values, each that any result has
  for (const auto& [stage, result] : results)
    for (const auto& [name, value] : result.values)
      if (category_of(name).empty() && name != "samples" &&
          std::find(columns.begin(), columns.end(), name) == columns.end())
        columns.push_back(name);
  std::vector<std::string> header = {"stage", "set", "mode", "samples", "not used"};
  for (const std::string& column : columns) header.push_back(column == "attention_entropy" ? "entropy" : column);
  TextTable table(header);
  for (const auto& [stage, result] : results) {
    std::vector<std::string> cells = {stage, result.set, name_of(result.mode), std::to_string(result.samples),
                                      std::to_string(result.aside)};
    for (const std::string& column : columns) {
      const auto found = std::find_if(result.values.begin(), result.values.end(),
                                      [&](const auto& value) { return value.first == column; });
      cells.push_back(found == result.values.end() ? "" : shown(column, found->second));
    }
    table.row(std::move(cells));
  }
  fmt::print("{}", table.text());
}

void print_categories(const std::vector<StageResult>& results) {
  TextTable table({"set", "mode", "category", "measure", "value"});
  bool any = false;
  for (const auto& [stage, result] : results)
    for (const auto& [name, value] : result.values) {
      const std::string category = category_of(name);
      if (category.empty()) continue;
      any = true;
      table.row({result.set, name_of(result.mode), category, name.substr(0, name.find('.')), shown(name, value)});
    }
  if (any) fmt::print("\n{}", table.text());
}

Json json_of(const std::string& model, const std::vector<StageResult>& results) {
  Json all = Json::array();
  for (const auto& [stage, result] : results) {
    Json one{{"stage", stage},
             {"set", result.set},
             {"mode", name_of(result.mode)},
             {"measure", name_of(result.measure)},
             {"not_used", result.aside}};
    for (const auto& [name, value] : result.values) one[name] = value;
    all.push_back(std::move(one));
  }
  return {{"model", model}, {"results", all}};
}

// A model at work.
struct Loaded {
  Loaded(const std::string& folder, const model::Execution& execution, Registry& registry)
      : operations(registry, execution.operations()), vlm(model::load_model(folder, execution.arena(false))) {}
  ops::Operations operations;
  std::unique_ptr<model::Vlm> vlm;
};

} // namespace

int evaluate_model(Arguments arguments) {
  Options options(
      "eval RECIPE --model DIR [--stage S] [--set-name NAME] [--samples N] [--reference DIR] [--show DIR] [--json]",
      "Evaluates a model directory or a checkpoint on the evaluation sets of a recipe: loss, multiple choice by\n"
      "likelihood (the option whose tokens have the lowest mean loss), preferences, each in the set's modes; accuracy\n"
      "by the samples' source, too, where there are several.",
      "eval recipes/quickstart.lua --model runs/quickstart/instruct/step-001500");
  add_recipe_options(options);
  with_execution_options(options)
      .needed("model", "DIR", "a model directory or a checkpoint")
      .value("stage", "NAME", "only this stage's sets")
      .value("set-name", "NAME", "only sets of this name")
      .value("samples", "N", "of each set, from all over it, always the same ones; default as the recipe says")
      .value("reference", "DIR", "a second model: preferences as rewards against it, too")
      .value("scores", "FILE", "also a line of JSON for each sample: the mean loss of each of its texts")
      .value("show", "DIR", "also what the recipe wants shown: DIR/STAGE/SET/000.json and pictures of the frames")
      .flag("json", "one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const auto resolved = recipe::resolve(recipe_request(*parsed));
  const auto stages = wanted_stages(resolved.plan, *parsed);
  const auto execution = execution_of(*parsed);
  const auto registry = open_registry(*parsed);
  const std::string model = *parsed->value("model");
  Loaded policy(model, execution, *registry);
  std::optional<Loaded> reference;
  if (const auto folder = parsed->value("reference")) reference.emplace(*folder, execution, *registry);

  Progress progress("evaluating");
  const auto note = [&](const evaluation::Moment& moment) {
    progress.steps(fmt::format("{}, {}", moment.set.name, name_of(moment.mode)), static_cast<uint64_t>(moment.done),
                   static_cast<uint64_t>(moment.all));
  };
  feed::MixDataOptions data;
  data.device = execution.operations().device;
  data.progress = [&](const std::string& source, int64_t done, int64_t all) {
    progress.steps("opening " + source, static_cast<uint64_t>(done), static_cast<uint64_t>(all));
  };
  ScoreFile score_file(parsed->value_or("scores", ""));
  std::vector<StageResult> results;
  for (const plan::Stage& stage : stages) {
    evaluation::Evaluator evaluator(resolved.plan, stage, *registry, data);
    if (reference) evaluator.remember_reference(*reference->vlm, reference->operations, note);
    for (auto& result : evaluator.evaluate(*policy.vlm, policy.operations, note,
                                           [&](const auto&... scored) { score_file.add(scored...); }))
      results.push_back({stage.name, std::move(result)});
    if (const auto folder = parsed->value("show"))
      evaluator.show(*policy.vlm, policy.operations, {std::filesystem::path(*folder) / stage.name, stage.name, 0});
  }
  score_file.finish();
  progress.finish();
  if (parsed->flag("json")) {
    fmt::print("{}", dump(json_of(model, results)));
    return 0;
  }
  print_table(results);
  print_categories(results);
  return 0;
}

} // namespace fvlm::cli
