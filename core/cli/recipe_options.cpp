#include "cli/recipe_options.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "budget/described_model.h"
#include "budget/frame_rows.h"
#include "data/preprocess.h"
#include "model/weights/resolve_model.h"
#include "recipe/positions.h"
#include "recipe/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {

void add_recipe_options(Options& options) {
  options.positional("RECIPE", "a recipe (.lua), or a plan file that `plan --json` wrote (.json)")
      .repeated_value("set", "PATH=VALUE",
                      "change a value of the plan, e.g. --set stages.align.samples=1000 (repeatable)")
      .repeated_value("arg", "NAME=VALUE", "set what fvlm.arg(\"NAME\") returns in the recipe (repeatable)")
      .advise_by(recipe::advice_on_option);
}

namespace {

// A recipe is right on a machine without its models, too: what is wrong with a folder is reported by who needs it.
std::optional<int64_t> processor_frame_size(const plan::Model& model) {
  try {
    const auto processor = image_processor(model);
    const auto size = processor ? frame_size(*processor) : std::nullopt;
    return size ? std::optional(size->height) : std::nullopt;
  } catch (const Error&) {
    return {};
  }
}

// Files of a model directory that was made from a checkpoint.
constexpr const char *kept_plan = "plan.json", *kept_stage = "stage.json";

// By which plan, and in which of its stages, a checkpoint or a model directory made from one was trained.
struct Training {
  std::filesystem::path plan;
  std::string stage;
};

std::optional<Training> training_of(const std::filesystem::path& model) {
  const auto folder = std::filesystem::weakly_canonical(model), file = folder / kept_stage;
  if (std::filesystem::exists(file)) {
    const nlohmann::json stage = read_json_object(file, 1 << 16);
    const auto name = stage.find("stage");
    if (name == stage.end() || !name->is_string())
      throw Error(ErrorKind::data, "expected {\"stage\": the name of the stage that the model was trained in}")
          .at(file.string());
    return Training{folder / kept_plan, name->get<std::string>()};
  }
  const auto plan = folder.parent_path().parent_path() / kept_plan;
  if (!std::filesystem::exists(plan)) return {};
  const std::string stage = folder.parent_path().filename().string();
  const std::vector<std::string> stages = stages_of(plan);
  if (std::ranges::find(stages, stage) == stages.end()) return {}; // another folder that lies in that of a run
  return Training{plan, stage};
}

} // namespace

recipe::Request recipe_request(const ParsedOptions& parsed, const std::string& file) {
  recipe::Request request;
  request.file = file.empty() ? *parsed.value("RECIPE") : file;
  request.sets = parsed.values("set");
  request.read_model_directory = read_model_directory;
  request.image_size = processor_frame_size;
  request.library = program_folder() / ".." / "share" / "fvlm" / "recipes" / "lib";
  for (const auto& word : parsed.values("arg")) {
    size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::usage, "--arg: expected NAME=VALUE, got '{}'", word)
          .advise("for example --arg data=/data, for a recipe that reads fvlm.arg(\"data\")");
    request.args[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return request;
}

namespace {

// A recipe is right on a machine without its models, too: what is wrong with a folder is said by who needs it.
std::optional<int64_t> rows_per_frame(const plan::Model& model) {
  try {
    return budget::most_rows_per_frame(model);
  } catch (const Error&) {
    return {};
  }
}

// Of the decoder with the fewest, among those that are known.
std::optional<int64_t> positions_of(const plan::Model& model) {
  std::optional<int64_t> least;
  for (size_t i = 0; i < model.decoder_count(); ++i) {
    const plan::Model one = model.with_decoder(i);
    const auto fresh = one.decoder_positions(), own = fresh ? fresh : budget::decoder_positions(one);
    if (own) least = std::min(least.value_or(*own), *own);
  }
  return least;
}

} // namespace

void require_positions(const recipe::Resolved& resolved) {
  const auto positions = positions_of(resolved.plan.model), rows = rows_per_frame(resolved.plan.model);
  if (positions && rows) recipe::require_positions(resolved, *positions, *rows);
}

nlohmann::ordered_json validation_json(const recipe::Resolved& resolved, bool ok) {
  nlohmann::ordered_json document = {{"ok", ok}, {"hash", resolved.hash}, {"stages", nlohmann::ordered_json::array()}};
  for (const auto& stage : resolved.plan.stages) {
    document["stages"].push_back({{"name", stage.name}, {"samples", stage.samples}});
    if (stage.steps) document["stages"].back()["steps"] = *stage.steps;
  }
  return document;
}

int64_t requested_memory(const ParsedOptions& parsed, const plan::Plan& plan, bool always) {
  if (!parsed.value("memory-mib")) return 0;
  const int64_t mebibytes = parsed.integer_or("memory-mib", 0, 1, 1 << 30);
  const bool fills =
      std::ranges::any_of(plan.stages, [](const plan::Stage& stage) { return stage.packing.tokens.fill_memory; });
  if (!always && !fills)
    throw Error(ErrorKind::usage,
                "--memory-mib: no stage of this recipe has packing.tokens = \"memory\", which it limits")
        .advise("--set stages.NAME.packing.tokens=memory, or leave the option out");
  return mebibytes << 20;
}

std::map<std::string, std::string> source_fields(const ParsedOptions& parsed) {
  std::map<std::string, std::string> fields;
  for (const std::string& field : parsed.values("field")) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::usage, "--field: expected PART=KEY, got {}", field);
    fields[field.substr(0, equals)] = field.substr(equals + 1);
  }
  return fields;
}

std::optional<CheckpointPlan> plan_of_checkpoint(const std::filesystem::path& model) {
  const auto found = training_of(model);
  if (!found) return {};
  recipe::Request request;
  request.file = found->plan;
  return CheckpointPlan{recipe::resolve(request).plan, found->stage};
}

void keep_plan(const std::filesystem::path& model, const std::filesystem::path& out) {
  const auto found = training_of(model);
  if (!found) return;
  write_file_atomic(out / kept_plan, read_file(found->plan));
  write_file_atomic(out / kept_stage, nlohmann::json{{"stage", found->stage}}.dump() + "\n");
}

const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::Stage& stage : plan.stages) {
    if (stage.name == name) return stage;
    names.push_back(stage.name);
  }
  Error error(ErrorKind::usage, "the recipe has no stage '{}'", name);
  const auto near = nearest(name, names);
  throw error.advise(near ? fmt::format("did you mean '{}'?", *near) : "it has " + join_or(names));
}

} // namespace fvlm::cli
