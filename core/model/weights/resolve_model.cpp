#include "model/weights/resolve_model.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/weights/model_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_plan = 64 << 20, largest_state = 64 << 20, largest_encoder_config = 16 << 20;

// The newest checkpoint in a stage's folder. Unfinished and damaged ones are not called step-NUMBER.
std::optional<fs::path> newest_checkpoint(const fs::path& stage) {
  std::optional<fs::path> newest;
  int64_t newest_step = -1;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(stage, none)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view prefix = "step-";
    int64_t step = 0;
    if (!name.starts_with(prefix) || !fs::exists(entry.path() / ModelFile::name, none)) continue;
    const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (error != std::errc() || end != name.data() + name.size() || step <= newest_step) continue;
    newest_step = step;
    newest = entry.path();
  }
  return newest;
}

std::optional<fs::path> newest_of_run(const fs::path& run) {
  const std::vector<std::string> stages = stages_of(run / "plan.json");
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
    if (auto found = newest_checkpoint(run / *stage)) return found;
  return std::nullopt;
}

} // namespace

std::vector<std::string> stages_of(const fs::path& plan_file) {
  const nlohmann::json document = read_json_object(plan_file, largest_plan);
  std::vector<std::string> names;
  try {
    for (const auto& stage : document.at("plan").at("stages")) names.push_back(stage.at("name"));
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::data, "this is no run's plan: it names no stages").at(plan_file.string());
  }
  return names;
}

fs::path resolve_model(const fs::path& named) {
  std::error_code ignored;
  if (fs::exists(named / ModelFile::name, ignored)) return named;
  const bool is_run = fs::exists(named / "plan.json", ignored);
  if (const auto newest = is_run ? newest_of_run(named) : newest_checkpoint(named)) {
    log_info("{}: using its newest checkpoint, {}", named.string(), newest->string());
    return *newest;
  }
  if (is_run)
    throw Error(ErrorKind::data, "this run has no finished checkpoint yet")
        .at(named.string())
        .advise("`fvlm-engine train` writes them as the recipe's `checkpoint` says, and at the end of each stage");
  return named; // opening it reports what is wrong
}

void require_lasting(const fs::path& model) {
  const fs::path own = fs::weakly_canonical(model);
  const fs::path state = newest_checkpoint(own.parent_path()).value_or(own) / "training_state" / "state.json";
  std::error_code ignored;
  if (!fs::exists(own / "training_state", ignored) || !fs::exists(state, ignored)) return;
  if (read_json_object(state, largest_state).value("stage_done", nlohmann::json()) == true) return;
  throw Error(ErrorKind::data, "the run has not finished this checkpoint's stage, and will remove it for newer ones")
      .at(model.string())
      .advise("name it when the stage is done, or a copy of now: fvlm-engine export {} --dtype fp32 --out models/NAME",
              model.string());
}

void read_model_directory(plan::Model& model) {
  const fs::path directory = *model.directory;
  const ModelFile file = ModelFile::read(directory);
  for (const ModelFile::Part& part : file.parts)
    if (part.base)
      throw Error(ErrorKind::data, "these are adapters of the part {}, and a recipe's model needs its weights",
                  part.name)
          .at(directory.string())
          .advise("name the base as `directory` and this one as the stage's `from`; or merge them: `fvlm-engine lora "
                  "merge`");
  const fs::path vision = directory / file.sole_part(Role::encoder, directory).location;
  model.vision = vision.string();
  model.connector = file.sole_part(Role::connector, directory).connector;
  if (model.connector->goes_with_several_decoders()) {
    std::vector<plan::Decoder> decoders;
    for (const ModelFile::Part& part : file.parts)
      if (part.role == Role::decoder) decoders.emplace_back((directory / part.location).string());
    if (decoders.size() > 1) model.decoders = {decoders.begin() + 1, decoders.end()};
    if (!decoders.empty()) model.decoder = decoders.front();
    if (!decoders.empty()) return;
  }
  model.decoder = (directory / file.sole_part(Role::decoder, directory).location).string();
  const fs::path config = vision / "config.json";
  const int64_t own_size =
      read_vision_config(read_json_object(config, largest_encoder_config), config.string()).image_size;
  if (own_size < 1) return; // an encoder of bytes has none
  // Encoders whose positions are interpolated have configs of larger images than those that they read best.
  model.image_size = model.connector->known_rows_per_frame() ? std::min(own_size, model.image_size) : own_size;
}

} // namespace fvlm
