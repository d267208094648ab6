#include "model/weights/towers.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/model_family.h"
#include "model/weights/quantized_folder.h"
#include "model/weights/whole_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

#define FVLM_ENCODER(name) EncoderFamily name##_family();
#include "model/encoder/encoders.inc"
#undef FVLM_ENCODER
#define FVLM_DECODER(name) DecoderFamily name##_family();
#include "model/decoder/decoders.inc"
#undef FVLM_DECODER

namespace {

template <class Config>
std::vector<ModelFamily<Config>>& families();

template <>
std::vector<EncoderFamily>& families() {
  static std::vector<EncoderFamily> all = {
#define FVLM_ENCODER(name) name##_family(),
#include "model/encoder/encoders.inc"
#undef FVLM_ENCODER
  };
  return all;
}

template <>
std::vector<DecoderFamily>& families() {
  static std::vector<DecoderFamily> all = {
#define FVLM_DECODER(name) name##_family(),
#include "model/decoder/decoders.inc"
#undef FVLM_DECODER
  };
  return all;
}

template <class Config>
struct Found {
  const ModelFamily<Config>* family = nullptr;
  const typename ModelFamily<Config>::Type* type = nullptr;
};

template <class Config>
Found<Config> find(const std::string& model_type) {
  for (const auto& family : families<Config>())
    for (const auto& type : family.types)
      if (model_type == type.model_type) return {&family, &type};
  return {};
}

template <class Config>
std::vector<std::string> supported_types() {
  std::vector<std::string> names;
  for (const auto& family : families<Config>())
    for (const auto& type : family.types) names.emplace_back(type.model_type);
  return names;
}

template <class Config>
Found<Config> find_or_throw(const std::string& model_type, const std::string& where = "") {
  if (const auto found = find<Config>(model_type); found.family) return found;
  constexpr bool encoder = std::is_same_v<Config, VisionConfig>;
  using Other = std::conditional_t<encoder, DecoderConfig, VisionConfig>;
  const auto& whole = whole_model_families();
  const bool is_other = find<Other>(model_type).family,
             is_whole =
                 !is_other && std::ranges::any_of(whole, [&](const auto&one) { return one.model_type == model_type; });
  throw Error(ErrorKind::data, "model_type {} is not supported as {}{}", shown(model_type),
              encoder ? "vision tower" : "decoder",
              is_other ? fmt::format(": it is that of the other part, a {}", encoder ? "decoder" : "vision tower") : "")
      .at(where)
      .advise(
          is_whole
              ? "it has all parts of a model: `fvlm-engine import --model DIR --out DIR` makes a model directory of it"
              : fmt::format("supported: {}", join(supported_types<Config>(), ", ")));
}

template <class Config>
Config read_config(const nlohmann::json& config, const std::string& where) {
  auto found = config.find("model_type");
  if (found == config.end() || !found->is_string())
    throw Error(ErrorKind::data, "'model_type' is missing or no text")
        .at(where)
        .advise("the config.json of a Hugging Face model was expected here");
  const std::string model_type = found->get<std::string>();
  const auto& family = *find_or_throw<Config>(model_type, where).family;
  ConfigReader reader(config, where);
  check_quantization_config(reader);
  Config made = family.read(reader, model_type);
  reader.finish("");
  return made;
}

template <class Config>
nlohmann::json write_config(const Config& config) {
  const auto [family, type] = find_or_throw<Config>(config.model_type);
  nlohmann::json json = family->write(config);
  json["model_type"] = type->model_type;
  json["architectures"] = {type->architecture};
  return json;
}

} // namespace

void check_quantization_config(ConfigReader& reader) {
  const nlohmann::json* quantization = reader.object("quantization_config");
  if (!quantization) return;
  const auto is = [&](const char* key, const char* word) { return quantization->value(key, nlohmann::json()) == word; };
  reader.refuse_unless(is("quant_method", "compressed-tensors") && is("format", "pack-quantized"),
                       "quantization_config",
                       "the weights must be plain numbers or compressed-tensors' pack-quantized; `fvlm-engine import` "
                       "makes plain ones of " +
                           quantized_forms());
}

const EncoderFamily& family_of(const VisionConfig& config) {
  return *find_or_throw<VisionConfig>(config.model_type).family;
}

const DecoderFamily& family_of(const DecoderConfig& config) {
  return *find_or_throw<DecoderConfig>(config.model_type).family;
}

std::vector<std::string> decoder_types() {
  return supported_types<DecoderConfig>();
}

void add_family(EncoderFamily family) {
  families<VisionConfig>().push_back(std::move(family));
}

void add_family(DecoderFamily family) {
  families<DecoderConfig>().push_back(std::move(family));
}

nlohmann::json encoder_config(nlohmann::json config) {
  const auto model_type = config.find("model_type");
  if (model_type == config.end() || !model_type->is_string()) return config;
  for (const auto& family : families<VisionConfig>())
    for (const auto& type : family.types)
      if (type.whole && *model_type == type.whole) {
        nlohmann::json part = config.value("vision_config", nlohmann::json::object());
        if (!part.is_object()) return config;
        part["model_type"] = type.model_type;
        return part;
      }
  return config;
}

VisionConfig read_vision_config(const nlohmann::json& config, const std::string& where) {
  return read_config<VisionConfig>(config, where);
}

DecoderConfig read_decoder_config(const nlohmann::json& config, const std::string& where) {
  return read_config<DecoderConfig>(config, where);
}

nlohmann::json config_json(const VisionConfig& config) {
  return write_config(config);
}

nlohmann::json config_json(const DecoderConfig& config) {
  return write_config(config);
}

WeightLayout layout_of(const VisionConfig& config) {
  return family_of(config).layout(config);
}

WeightLayout layout_of(const DecoderConfig& config) {
  return family_of(config).layout(config);
}

const std::vector<FusedNames>& fused_weights(const VisionConfig& config) {
  return family_of(config).fused_weights;
}

const std::vector<FusedNames>& fused_weights(const DecoderConfig& config) {
  return family_of(config).fused_weights;
}

int64_t tokens_per_frame(const VisionConfig& config, int64_t height, int64_t width) {
  return family_of(config).tokens_per_frame(config, height, width);
}

const char* architecture_of(const VisionConfig& config) {
  return find_or_throw<VisionConfig>(config.model_type).type->architecture;
}

const char* architecture_of(const DecoderConfig& config) {
  return find_or_throw<DecoderConfig>(config.model_type).type->architecture;
}

} // namespace fvlm
