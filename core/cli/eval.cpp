// fvlm-engine eval: evaluates a model on held-out samples of a recipe or on the questions of a benchmark.
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/text.h"
#include "budget/model_tokens.h"
#include "cli/execution_options.h"
#include "cli/media_options.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "cli/processor_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "data/tokenizer.h"
#include "evaluation/answers.h"
#include "evaluation/boxes.h"
#include "evaluation/evaluator.h"
#include "evaluation/questions.h"
#include "model/loading.h"
#include "model/weights/model_file.h"
#include "model/weights/visual_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace fvlm::cli {
namespace {

using evaluation::Result;
using plan::name_of;

struct StageResult {
  std::string stage;
  Result result;
};

// Empty where --mode is absent.
std::vector<std::string> modes_of(const ParsedOptions& parsed, const plan::ConnectorSettings& connector) {
  const auto known = connector.mode_names();
  std::vector<std::string> modes = parsed.values("mode");
  for (const std::string& name : modes)
    if (std::ranges::find(known, name) == known.end())
      throw Error(ErrorKind::usage, "unknown --mode '{}'", name).advise("use " + join_or(known));
  return modes;
}

[[noreturn]] void refuse_no_set(const plan::Plan& plan, const ParsedOptions& parsed) {
  const auto stage_name = parsed.value("stage"), set_name = parsed.value("set-name");
  std::vector<std::string> sets, stages;
  for (const plan::Stage& stage : plan.stages) {
    for (const auto& set : stage.evaluation.sets)
      if (!stage_name || stage.name == *stage_name) sets.push_back(set.name);
    if (!stage.evaluation.sets.empty()) stages.push_back(stage.name);
  }
  const std::string whose = stage_name ? fmt::format("the stage '{}'", *stage_name) : "the recipe";
  if (set_name && !sets.empty())
    throw Error(ErrorKind::usage, "{} has no evaluation set '{}'", whose, *set_name).advise("it has " + join_or(sets));
  throw Error(ErrorKind::usage, "nothing to evaluate: {} has no evaluation set", whose)
      .advise(stages.empty()
                  ? "add evaluation = { fvlm.evaluation \"name\" { data = ..., measure = \"choice\" } } to a stage"
                  : "name a stage that has one, or leave out --stage: " + join_or(stages));
}

// The stages of the recipe, each with only those evaluation sets that --stage and --set-name select.
std::vector<plan::Stage> selected_stages(const plan::Plan& plan, const ParsedOptions& parsed) {
  const auto stage_name = parsed.value("stage"), set_name = parsed.value("set-name");
  const int64_t samples = parsed.integer_or("samples", 0, 1);
  if (stage_name) stage_named(plan, *stage_name); // throws where it does not exist
  std::vector<plan::Stage> selected;
  for (plan::Stage stage : plan.stages) {
    if (stage_name && stage.name != *stage_name) continue;
    std::erase_if(stage.evaluation.sets, [&](const auto& set) { return set_name && set.name != *set_name; });
    for (auto& set : stage.evaluation.sets)
      if (samples > 0) set.samples = samples;
    if (!stage.evaluation.sets.empty()) selected.push_back(std::move(stage));
  }
  if (selected.empty()) refuse_no_set(plan, parsed);
  return selected;
}

// --scores: one line of JSON per sample.
class ScoreFile {
 public:
  explicit ScoreFile(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void add(const evaluation::SampleSet& set, const std::string& mode, const evaluation::Scores& scores) {
    if (!file_) return;
    for (const auto& sample : scores.samples) {
      Json line{{"set", set.name(scores.decoder)}, {"mode", mode},
                {"position", sample.position},     {"key", sample.key},
                {"source", sample.source},         {"right", sample.correct}};
      for (const auto& text : sample.texts) {
        line["losses"].push_back(text.mean());
        line["labels"].push_back(text.labels);
      }
      if (!sample.inputs.empty()) {
        const auto &query = sample.inputs[0].vector, &positive = sample.inputs[1].vector;
        line["similarity"] = std::inner_product(query.begin(), query.end(), positive.begin(), 0.0);
      }
      if (sample.generated) {
        const auto& [answer, expected] = *sample.generated;
        line.update({{"answer", answer},
                     {"expected", expected},
                     {"exact_match", evaluation::exact_match(answer, expected)},
                     {"f1", evaluation::f1(answer, expected)},
                     {"anls", evaluation::anls(answer, expected)}});
        if (set.headline() != "accuracy")
          line[set.headline()] = evaluation::answer_score(set.headline())(answer, expected);
        if (set.settings().measure == plan::Measure::iou)
          line.update({{"iou", evaluation::iou(answer, expected)},
                       {"box_accuracy", evaluation::box_accuracy(answer, expected)}});
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
  return evaluation::is_share(name) ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.4f}", value);
}

// The terminal is narrower than all names of generated answers beside each other.
std::string title_of(const std::string& column) {
  static const std::map<std::string, std::string> shorter{{"attention_entropy", "entropy"},
                                                          {"character_error_rate", "CER"},
                                                          {"word_error_rate", "WER"},
                                                          {"relaxed_accuracy", "relaxed"},
                                                          {"first_token_accuracy", "first token"},
                                                          {"first_token_top5_accuracy", "in top 5"}};
  const auto found = shorter.find(column);
  return found == shorter.end() ? column : found->second;
}

void print_table(const std::vector<StageResult>& results) {
  std::vector<std::string> columns; // every value that any of the results has
  for (const auto& [stage, result] : results)
    for (const auto& [name, value] : result.values)
      if (category_of(name).empty() && name != "samples" && std::ranges::find(columns, name) == columns.end())
        columns.push_back(name);
  std::vector<std::string> header = {"stage", "set", "mode", "samples", "not used"};
  for (const std::string& column : columns) header.push_back(title_of(column));
  TextTable table(header);
  for (const auto& [stage, result] : results) {
    std::vector<std::string> cells = {stage, result.set, result.mode, grouped(result.samples), grouped(result.unused)};
    for (const std::string& column : columns) {
      const auto found = std::ranges::find_if(result.values, [&](const auto& value) { return value.first == column; });
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
      table.row({result.set, result.mode, category, name.substr(0, name.find('.')), shown(name, value)});
    }
  if (any) fmt::print("\n{}", table.text());
}

Json json_of(const std::string& model, const std::vector<StageResult>& results) {
  Json all = Json::array();
  for (const auto& [stage, result] : results) {
    Json one{{"stage", stage},
             {"set", result.set},
             {"mode", result.mode},
             {"measure", name_of(result.measure)},
             {"not_used", result.unused}};
    for (const auto& [name, value] : result.values) one[name] = value;
    all.push_back(std::move(one));
  }
  return {{"model", model}, {"results", all}};
}

// A loaded model and the operations it runs on.
struct LoadedModel {
  LoadedModel(const std::string& folder, const model::Execution& execution, Registry& registry)
      : operations(registry, execution.operations()), model(model::load_model(folder, execution.answering_arena())) {}
  ops::Operations operations;
  std::unique_ptr<model::Model> model;
};

// Evaluates one model on several sets, and prints the results at the end.
class EvaluationRun {
 public:
  EvaluationRun(const ParsedOptions& parsed, std::string model)
      : parsed_(parsed), model_(std::move(model)), execution_(answering_execution_of(parsed)),
        registry_(open_registry(parsed)), policy_(model_, execution_, *registry_), progress_("evaluating"),
        scores_(parsed.value_or("scores", "")) {
    log_info("{} computes {}", model_, execution_.text());
  }

  Registry& registry() { return *registry_; }
  const model::ModelConfig& config() const { return policy_.model->config(); }

  // Reports progress while the data is opened.
  feed::MixDataOptions data_options() {
    feed::MixDataOptions options;
    options.device = execution_.operations().device;
    options.progress = [this](const std::string& source, int64_t done, int64_t all) {
      progress_.steps("opening " + source, done, all);
    };
    return options;
  }

  Progress& progress() { return progress_; }

  void add(const std::string& stage, evaluation::Evaluator& evaluator) {
    const auto note = [this](const evaluation::EvaluationState& state) {
      progress_.steps(fmt::format("{}, {}", state.set.name, state.mode), state.done, state.all);
    };
    if (const auto folder = parsed_.value("reference")) {
      LoadedModel reference(model_named(*folder).string(), execution_, *registry_);
      evaluator.cache_reference(*reference.model, reference.operations, note);
    }
    const auto take = [this](const auto&... scored) { scores_.add(scored...); };
    for (auto& result : evaluator.evaluate(*policy_.model, policy_.operations, note, take)) {
      for (const auto& [name, value] : result.values)
        if (name == "loss" && !std::isfinite(value))
          log_warning(
              "{}, {}: the loss is not finite, so the other figures say nothing; weights of the model are NaN or "
              "infinite, or its numbers overflow",
              result.set, result.mode);
      results_.push_back({stage, std::move(result)});
    }
    if (const auto folder = parsed_.value("show"))
      evaluator.show(*policy_.model, policy_.operations, {std::filesystem::path(*folder) / stage, stage, 0});
  }

  int finish() {
    scores_.finish();
    progress_.finish();
    if (parsed_.flag("json")) {
      fmt::print("{}", dump(json_of(model_, results_)));
      return 0;
    }
    print_table(results_);
    print_categories(results_);
    return 0;
  }

 private:
  const ParsedOptions& parsed_;
  std::string model_;
  model::Execution execution_;
  std::unique_ptr<Registry> registry_;
  LoadedModel policy_;
  Progress progress_;
  ScoreFile scores_;
  std::vector<StageResult> results_;
};

// The sets become tokens and pictures as the recipe's first decoder reads them, which mean nothing to one of another
// family.
void require_same_tokens(const plan::Model& recipe, const std::filesystem::path& model) {
  if (const auto different = budget::different_token(recipe, model))
    throw Error(ErrorKind::data, "the model has another tokenizer than the recipe's: {} in the recipe's", *different)
        .at(model.string())
        .advise("evaluate it by a recipe whose model it is: --set model.directory=DIR, for example");
}

// Where a recipe says what an option of media_option_names says.
std::string key_of_media_option(std::string_view option) {
  for (const ProcessorLimit& limit : processor_limits)
    if (option_of(limit) == option) return fmt::format("--set model.{}=N", limit.key);
  if (option == "image-size") return "--set model.image_size=N";
  static const std::map<std::string_view, const char*> keys = {{"system", "system"},
                                                               {"chat-template", "chat_template"},
                                                               {"frames", "max_frames"},
                                                               {"image-frames", "replicate_image_frames"}};
  return fmt::format("{} of the evaluation set's mix", keys.at(option));
}

std::optional<plan::Measure> measure_of(const ParsedOptions& parsed) {
  const auto name = parsed.value("measure");
  if (!name) return {};
  for (const auto measure : {plan::Measure::choice, plan::Measure::answer, plan::Measure::loss})
    if (*name == name_of(measure)) return measure;
  throw Error(ErrorKind::usage, "unknown --measure '{}'", *name).advise("use choice, answer or loss");
}

constexpr int64_t default_shown = 8;

// With --show, samples of all sets where the recipe shows none of any.
void show_some(std::vector<plan::Stage>& stages, const ParsedOptions& parsed) {
  const auto shows = [](const plan::EvaluationSet& set) { return set.show > 0; };
  if (!parsed.value("show") || std::ranges::any_of(stages, [&](const plan::Stage& stage) {
        return std::ranges::any_of(stage.evaluation.sets, shows);
      }))
    return;
  for (plan::Stage& stage : stages)
    for (plan::EvaluationSet& set : stage.evaluation.sets) set.show = default_shown;
}

int evaluate_recipe(const ParsedOptions& parsed) {
  for (const char* name : {"form", "field", "media", "by", "split", "measure"})
    if (parsed.value(name)) throw Error(ErrorKind::usage, "--{} needs --questions", name);
  for (const char* name : media_option_names)
    if (parsed.value(name))
      throw Error(ErrorKind::usage, "--{} needs --questions", name)
          .advise("a recipe says it itself: {}", key_of_media_option(name));
  if (parsed.value("max-tokens"))
    throw Error(ErrorKind::usage, "--max-tokens needs --questions")
        .advise("a recipe says it itself: max_new_tokens of the evaluation set");
  if (!parsed.value("model"))
    throw Error(ErrorKind::usage, "--model is missing: a model directory or a checkpoint")
        .advise("or give --questions FILE, with the model in place of the recipe");
  const auto resolved = recipe::resolve(recipe_request(parsed));
  auto stages = selected_stages(resolved.plan, parsed);
  const std::string model = model_named(*parsed.value("model")).string();
  require_same_tokens(resolved.plan.model, model);
  EvaluationRun run(parsed, model);
  const auto modes = modes_of(parsed, *run.config().connector);
  show_some(stages, parsed);
  for (plan::Stage& stage : stages) {
    for (auto& set : stage.evaluation.sets)
      if (!modes.empty()) set.modes = modes;
    evaluation::Evaluator evaluator(resolved.plan, stage, run.registry(), run.data_options());
    run.add(stage.name, evaluator);
  }
  return run.finish();
}

int evaluate_questions(const ParsedOptions& parsed) {
  for (const char* name : {"model", "stage", "set-name", "reference", "set", "arg"})
    if (parsed.value(name)) throw Error(ErrorKind::usage, "--{} needs a recipe and excludes --questions", name);
  evaluation::QuestionsRequest request;
  request.form = parsed.value_or("form", "");
  if (request.form.empty())
    throw Error(ErrorKind::usage, "--form is missing: the format of the questions")
        .advise("use " + evaluation::forms_text());
  const std::string model = model_named(*parsed.value("RECIPE")).string();
  plan::EvaluationSet set;
  set.name = evaluation::form_named(request.form).name;
  set.samples = parsed.integer_or("samples", 0, 1);
  if (parsed.value("max-tokens")) set.max_new_tokens = parsed.integer_or("max-tokens", 1, 1);
  set.show = parsed.value("show") ? default_shown : 0;
  EvaluationRun run(parsed, model);
  set.modes = modes_of(parsed, *run.config().connector);
  if (set.modes.empty()) {
    set.modes = {run.config().connector->inference_mode()};
    log_info("frames are encoded in the mode {}, that of inference; --mode chooses another", set.modes.front());
  }
  const auto tokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::from_file(decoder_folder(model) / "tokenizer.json"));
  request.files = parsed.values("questions");
  request.fields = source_fields(parsed);
  request.measure = measure_of(parsed);
  request.progress = [&run](int64_t done, int64_t all) { run.progress().steps("reading the questions", done, all); };
  request.media = parsed.value_or("media", "");
  request.category = parsed.value_or("by", "");
  request.split = parsed.value_or("split", "");
  const InputSettings input = input_settings(parsed, model, run.config(), *tokenizer);
  request.system = input.system;
  request.chat_template = input.chat_template;
  request.media_options = input.media;
  request.positions = run.config().decoder.max_position_embeddings;
  request.visual_rows = visual_rows(*run.config().connector, run.config().vision, input.media.image_size);
  evaluation::Evaluator evaluator(evaluation::open_questions(set, request, tokenizer, run.registry()));
  run.add(set.name, evaluator);
  return run.finish();
}

} // namespace

int evaluate_model(Arguments arguments) {
  Options options(
      "eval RECIPE --model DIR [--stage S] [--set-name NAME] [--mode M]... [--samples N] [--reference DIR] [--show "
      "DIR]\n"
      "      [--json]\n"
      "  fvlm-engine eval MODEL --questions FILE... --form FORM [--media DIR] [--measure M] [--mode M]... [--by KEY]\n"
      "      [--max-tokens N] [--json]",
      "Evaluate a model directory or a checkpoint on the evaluation sets of a recipe, or on a benchmark's questions:\n"
      "loss, multiple choice by likelihood (the option whose tokens have the lowest mean loss; the question does not\n"
      "list them), preferences, what queries find, and generated answers (exact match, F1, ANLS, ROUGE-L,\n"
      "character and word error rates, VQA, ChartQA, OCRBench, CIDEr), in each mode of the set. Where there are\n"
      "several sources or categories, the measure is also printed by them.",
      "eval recipes/quickstart.lua --model runs/quickstart");
  add_recipe_options(options);
  with_media_options(
      with_answering_options(options)
          .value("model", "DIR", named_model_help)
          .value("stage", "NAME", "only the sets of this stage")
          .value("set-name", "NAME", "only the set of this name")
          .value("samples", "N", "samples of each set, spread over it, always the same")
          .value("reference", "DIR", "reference model: also report preference rewards against it")
          .value("scores", "FILE",
                 "also write a line of JSON per sample: the mean loss of each text, and a generated answer beside the "
                 "expected ones, with its exact_match, f1 and anls")
          .value("show", "DIR",
                 "also write samples with answers and frames: DIR/STAGE/SET/000.json, 000-0.png; "
                 "so many as the recipe's sets say in `show`, or 8 of each where none does")
          .repeated_value("questions", "FILE",
                          "a benchmark's questions: .json, .jsonl, .tsv or .parquet, or a pattern of them (repeatable)")
          .value("form", "FORM", "format of the questions: " + evaluation::forms_text() + " (docs/evaluation.md)")
          .repeated_value("field", "PART=KEY", "the key of a part of an entry, such as question=query (repeatable)")
          .value("media", "DIR", "folder of the questions' images and videos, at any depth")
          .value("measure", "choice|answer|loss",
                 "of the questions: options by likelihood, generated answers, or the loss of the right ones; default: "
                 "choice where an entry has options, else answer")
          .value("max-tokens", "N", "length of a generated answer, with its thoughts; default 128")
          .repeated_value(
              "mode", "MODE",
              "how frames are encoded (repeatable); default: the modes of each set; with --questions that of inference")
          .value("by", "KEY",
                 "group results by this key of the entries, such as category or metadata.task, in place of the "
                 "format's own")
          .value("split", "NAME", "only entries of this split")
          .flag("json", "print one JSON document on standard output"));
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  return parsed->value("questions") ? evaluate_questions(*parsed) : evaluate_recipe(*parsed);
}

} // namespace fvlm::cli
