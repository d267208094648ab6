#include "model/weights/towers.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/tower.h"

#include <fmt/format.h>

#include <array>

namespace fvlm {
namespace {

const std::array<const Tower*, 2> towers{&dinov2_tower, &llama_tower};

template <class Config>
constexpr const char* role = std::is_same_v<Config, VisionConfig> ? "vision tower" : "decoder";

template <class Config>
std::vector<std::string> known_types() {
  std::vector<std::string> names;
  for (const Tower* tower : towers)
    if (std::holds_alternative<TowerFunctions<Config>>(tower->functions)) names.emplace_back(tower->model_type);
  return names;
}

const Tower* find_tower(const std::string& model_type) {
  for (const Tower* tower : towers)
    if (model_type == tower->model_type) return tower;
  return nullptr;
}

// Of a config that was read, which has a tower.
const Tower& tower_of(const std::string& model_type) {
  const Tower* tower = find_tower(model_type);
  if (!tower) throw Error(ErrorKind::internal, "no tower " + model_type);
  return *tower;
}

// Throws when `model_type` is no tower of this role.
template <class Config>
const TowerFunctions<Config>& functions_of(const std::string& model_type, const std::string& where) {
  const Tower* tower = find_tower(model_type);
  if (tower && std::holds_alternative<TowerFunctions<Config>>(tower->functions))
    return std::get<TowerFunctions<Config>>(tower->functions);
  throw Error(ErrorKind::data, fmt::format("model_type {} is not supported as {}{}", shown(model_type), role<Config>,
                                           tower ? ": it has the other part in the model" : ""))
      .at(where)
      .advise(fmt::format("supported: {}", join(known_types<Config>(), ", ")));
}

template <class Config>
Config read_config(const nlohmann::json& config, const std::string& where) {
  auto found = config.find("model_type");
  if (found == config.end() || !found->is_string())
    throw Error(ErrorKind::data, "'model_type' is missing or no text")
        .at(where)
        .advise("the config.json of a Hugging Face model was expected here");
  std::string model_type = found->get<std::string>();
  const auto& functions = functions_of<Config>(model_type, where);
  ConfigReader reader(config, where);
  reader.refuse_unless(!reader.has("quantization_config"), "quantization_config", "the weights must be plain numbers");
  Config made = functions.read(reader);
  made.model_type = std::move(model_type);
  reader.finish("");
  return made;
}

} // namespace

VisionConfig read_vision_config(const nlohmann::json& config, const std::string& where) {
  return read_config<VisionConfig>(config, where);
}

DecoderConfig read_decoder_config(const nlohmann::json& config, const std::string& where) {
  return read_config<DecoderConfig>(config, where);
}

nlohmann::json config_json(const VisionConfig& config) {
  return functions_of<VisionConfig>(config.model_type, "").write(config);
}

nlohmann::json config_json(const DecoderConfig& config) {
  return functions_of<DecoderConfig>(config.model_type, "").write(config);
}

WeightLayout layout_of(const VisionConfig& config) {
  return functions_of<VisionConfig>(config.model_type, "").layout(config);
}

WeightLayout layout_of(const DecoderConfig& config) {
  return functions_of<DecoderConfig>(config.model_type, "").layout(config);
}

const std::vector<FusedNames>& fused_weights(const VisionConfig& config) {
  return tower_of(config.model_type).fused_weights();
}

const std::vector<FusedNames>& fused_weights(const DecoderConfig& config) {
  return tower_of(config.model_type).fused_weights();
}

int64_t tokens_per_frame(const VisionConfig& config, int64_t height, int64_t width) {
  return tower_of(config.model_type).tokens_per_frame(config, height, width);
}

const char* architecture_of(const std::string& model_type) {
  return tower_of(model_type).architecture;
}

} // namespace fvlm
