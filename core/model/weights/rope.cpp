#include "model/weights/rope.h"

#include "base/config_reader.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace fvlm {
namespace {

using Type = RopeScaling::Type;

constexpr const char *dynamic = "dynamic", *alpha_key = "alpha";
// Dynamic scaling begins beyond max_position_embeddings, where no text of ours ends.
constexpr std::array<std::pair<const char*, Type>, 5> types{{{"default", Type::none},
                                                             {"linear", Type::linear},
                                                             {"llama3", Type::llama3},
                                                             {"yarn", Type::yarn},
                                                             {dynamic, Type::none}}};
constexpr const char *section_key = "mrope_section", *interleaved_key = "mrope_interleaved",
                     *beta_key = "llama_4_scaling_beta", *partial_key = "partial_rotary_factor";
constexpr const char *full_key = "full_attention", *sliding_key = "sliding_attention",
                     *local_theta_key = "rope_local_base_freq", *parameters_key = "rope_parameters",
                     *theta_key = "rope_theta", *proportional = "proportional";
constexpr double max_theta = 1e12, max_factor = 1e6, min_alpha = 1e-6, max_alpha = 1e9;
constexpr int64_t max_positions = int64_t{1} << 30;

void require_full_rotation(ConfigReader& config) {
  if (config.has(partial_key))
    config.refuse_unless(config.number(partial_key, 1, 0, 1) == 1, partial_key, "all features of a head are rotated");
}

void read_partial_rotation(ConfigReader& config, Rope& rope) {
  if (!rope.may_rotate_part) return require_full_rotation(config);
  if (config.has(partial_key)) rope.partial_rotary_factor = config.number(partial_key, std::nullopt, 0, 1);
}

// The key's number; the default where it is missing, null or 0, as transformers takes it.
double number_or(ConfigReader& config, const char* key, double otherwise, double max) {
  if (!config.has(key)) return otherwise;
  const double number = config.number(key, std::nullopt, 0, max);
  return number == 0 ? otherwise : number;
}

void read_llama3(ConfigReader& config, RopeScaling& scaling) {
  scaling.factor = config.number("factor", std::nullopt, 1, max_factor);
  scaling.low_freq_factor = config.number("low_freq_factor", std::nullopt, 1e-6, max_factor);
  scaling.high_freq_factor = config.number("high_freq_factor", std::nullopt, 1e-6, max_factor);
  if (config.problems().list().empty() && scaling.high_freq_factor <= scaling.low_freq_factor)
    config.problems().add("'high_freq_factor' = {} is not larger than 'low_freq_factor' = {}", scaling.high_freq_factor,
                          scaling.low_freq_factor);
}

// The factor that YaRN's paper recommends for a scaling.
double magnitude_of(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(ConfigReader& config, int64_t max_position_embeddings, RopeScaling& scaling) {
  if (!config.has("factor") && scaling.original_max_position_embeddings == max_position_embeddings)
    config.problems().add("'factor' is missing");
  scaling.factor = number_or(config, "factor",
                             static_cast<double>(max_position_embeddings) /
                                 static_cast<double>(scaling.original_max_position_embeddings),
                             max_factor);
  scaling.beta_fast = number_or(config, "beta_fast", 32, max_factor);
  scaling.beta_slow = number_or(config, "beta_slow", 1, max_factor);
  scaling.truncate = config.flag("truncate", true);
  const double scale = number_or(config, "mscale", 0, max_factor),
               scale_of_all = number_or(config, "mscale_all_dim", 0, max_factor);
  scaling.attention_factor = number_or(config, "attention_factor",
                                       scale != 0 && scale_of_all != 0 ? magnitude_of(scaling.factor, scale) /
                                                                             magnitude_of(scaling.factor, scale_of_all)
                                                                       : magnitude_of(scaling.factor, 1),
                                       max_factor);
  if (config.has(beta_key)) scaling.llama_4_scaling_beta = config.number(beta_key, std::nullopt, 0, max_factor);
  if (scaling.factor < 1) config.problems().add("'factor' = {} is less than 1", scaling.factor);
  if (scaling.beta_fast < scaling.beta_slow)
    config.problems().add("'beta_fast' = {} is less than 'beta_slow' = {}", scaling.beta_fast, scaling.beta_slow);
}

RopeScaling read_scaling(ConfigReader& config, const char* key, ConfigReader& inner, int64_t max_position_embeddings,
                         const Rope& defaults) {
  RopeScaling scaling;
  const std::string name = inner.text("rope_type", inner.text("type", "default"));
  if (!defaults.mrope_section.empty() && name == "mrope") return scaling; // the default frequencies, whatever the axis
  const auto* type = std::find_if(types.begin(), types.end(), [&](const auto& one) { return one.first == name; });
  if (type == types.end()) {
    config.problems().add("'{}' of the type {} is not supported: default, linear, dynamic, llama3 and yarn are", key,
                          shown(name));
    return scaling;
  }
  scaling.type = type->second;
  if (name == dynamic && defaults.may_have_alpha && number_or(inner, alpha_key, 0, max_alpha) != 0) {
    scaling.type = Type::alpha;
    scaling.alpha = inner.number(alpha_key, std::nullopt, min_alpha, max_alpha);
  }
  if (scaling.type == Type::linear) scaling.factor = inner.number("factor", std::nullopt, 1, max_factor);
  if (scaling.type != Type::llama3 && scaling.type != Type::yarn) return scaling;
  // transformers prefers the key of the whole config.
  ConfigReader& has_original = config.has("original_max_position_embeddings") ? config : inner;
  scaling.original_max_position_embeddings =
      has_original.whole("original_max_position_embeddings", max_position_embeddings, 1, max_positions);
  if (scaling.type == Type::llama3)
    read_llama3(inner, scaling);
  else
    read_yarn(inner, max_position_embeddings, scaling);
  return scaling;
}

// As Llama 3 scales: dimensions of a wavelength beyond the original length by the factor, short ones not at all, and
// smoothly between.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  const double unscaled =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - unscaled) * frequency / scaling.factor + unscaled * frequency;
}

// The dimensions between which YaRN goes from unscaled to scaled frequencies.
std::pair<double, double> yarn_range(const Rope& rope, int64_t head_dim) {
  const auto dimension_of = [&](double rotations) {
    return static_cast<double>(head_dim) *
           std::log(static_cast<double>(rope.scaling.original_max_position_embeddings) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.scaling.beta_fast), high = dimension_of(rope.scaling.beta_slow);
  if (rope.scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  return {low, low == high ? high + 0.001 : high};
}

// One entry of rope_parameters, whose type has to be this one.
void read_layer_rope(ConfigReader& config, const char* layer_type, const char* rope_type, double& theta,
                     double& rotated_part) {
  const nlohmann::json* all = config.object(parameters_key);
  if (!all) return;
  ConfigReader types(*all, config.where());
  const nlohmann::json* own = types.object(layer_type);
  if (!own) return config.problems().add("'{}' has no '{}'", parameters_key, layer_type);
  ConfigReader rope(*own, config.where());
  rope.refuse_unless(rope.text("rope_type", "default") == rope_type, "rope_type", fmt::format("{} is", rope_type));
  rope.refuse_unless(rope.number("factor", 1, 0, max_factor) == 1, "factor", "positions are not scaled");
  theta = rope.number(theta_key, std::nullopt, 1, max_theta);
  rotated_part = rope.number(partial_key, 1, 0, 1);
  for (const std::string& problem : rope.problems().list())
    config.problems().add("{}: {}: {}", parameters_key, layer_type, problem);
}

} // namespace

void read_proportional_rope(ConfigReader& config, Rope& full) {
  full.scaling.type = Type::proportional;
  read_layer_rope(config, full_key, proportional, full.theta, full.scaling.rotated_part);
}

void read_sliding_rope(ConfigReader& config, double& theta) {
  double whole = 1;
  read_layer_rope(config, sliding_key, "default", theta, whole);
  if (whole != 1) config.problems().add("{}: {}: all features of a head are rotated", parameters_key, sliding_key);
}

void write_proportional_rope(nlohmann::json& config, const Rope& full, double sliding_theta) {
  config[parameters_key] = {
      {sliding_key, {{"rope_type", "default"}, {theta_key, sliding_theta}}},
      {full_key, {{"rope_type", proportional}, {theta_key, full.theta}, {partial_key, full.scaling.rotated_part}}}};
}

Rope read_rope(ConfigReader& config, int64_t max_position_embeddings, const Rope& defaults) {
  Rope rope = defaults;
  const bool has_mrope = !defaults.mrope_section.empty();
  if (config.has("rope_theta")) rope.theta = config.number("rope_theta", std::nullopt, 1, max_theta);
  read_partial_rotation(config, rope);
  // `rope_scaling` wins, as in transformers.
  const nlohmann::json* scaling = config.object("rope_scaling");
  const nlohmann::json* parameters = config.object("rope_parameters");
  const char* key = scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* used = scaling && !scaling->empty() ? scaling : parameters;
  if (!used) return rope;
  ConfigReader inner(*used, config.where());
  std::vector<const char*> unsupported_keys{full_key, sliding_key};
  if (!has_mrope) unsupported_keys.push_back(section_key);
  for (const char* unsupported : unsupported_keys)
    if (inner.has(unsupported))
      config.problems().add("'{}' has '{}', which is not supported: rotary positions are the same in all layers and "
                            "have one dimension",
                            key, unsupported);
  if (has_mrope) rope.mrope_section = inner.wholes(section_key, rope.mrope_section);
  if (has_mrope)
    inner.refuse_unless(inner.flag(interleaved_key, rope.mrope_interleaved) == rope.mrope_interleaved, interleaved_key,
                        rope.mrope_interleaved ? "the axes of this model take turns"
                                               : "this model has one axis behind the other");
  if (inner.has("rope_theta")) rope.theta = inner.number("rope_theta", std::nullopt, 1, max_theta);
  read_partial_rotation(inner, rope);
  rope.scaling = read_scaling(config, key, inner, max_position_embeddings, defaults);
  for (const std::string& problem : inner.problems().list()) config.problems().add("{}: {}", key, problem);
  return rope;
}

Rope read_rope_by_layer(ConfigReader& config, int64_t max_position_embeddings, const Rope& defaults,
                        double& local_theta) {
  Rope rope = defaults;
  if (config.has("rope_theta")) rope.theta = config.number("rope_theta", std::nullopt, 1, max_theta);
  if (config.has(local_theta_key)) local_theta = config.number(local_theta_key, std::nullopt, 1, max_theta);
  require_full_rotation(config);
  const auto read = [&](ConfigReader& inner, const char* key, double& theta) {
    if (inner.has("rope_theta")) theta = inner.number("rope_theta", std::nullopt, 1, max_theta);
    require_full_rotation(inner);
    const RopeScaling scaling = read_scaling(config, key, inner, max_position_embeddings, {});
    for (const std::string& problem : inner.problems().list()) config.problems().add("{}: {}", key, problem);
    return scaling;
  };
  if (const nlohmann::json* parameters = config.object("rope_parameters")) {
    ConfigReader types(*parameters, config.where());
    if (const nlohmann::json* full = types.object(full_key)) {
      ConfigReader inner(*full, config.where());
      rope.scaling = read(inner, full_key, rope.theta);
    }
    if (const nlohmann::json* sliding = types.object(sliding_key)) {
      ConfigReader inner(*sliding, config.where());
      if (read(inner, sliding_key, local_theta) != RopeScaling())
        config.problems().add("'rope_parameters' scales the rotary positions of layers with a sliding window, which is "
                              "not supported");
    }
    for (const std::string& problem : types.problems().list()) config.problems().add("rope_parameters: {}", problem);
  }
  const nlohmann::json* scaling = config.object("rope_scaling"); // wins, as in transformers
  if (!scaling || scaling->empty()) return rope;
  ConfigReader inner(*scaling, config.where());
  rope.scaling = read(inner, "rope_scaling", rope.theta);
  return rope;
}

void write_rope(nlohmann::json& config, const Rope& rope) {
  config["rope_theta"] = rope.theta;
  if (rope.may_rotate_part) config[partial_key] = rope.partial_rotary_factor;
  const RopeScaling& scaling = rope.scaling;
  if (scaling.type == Type::none && rope.mrope_section.empty()) return;
  nlohmann::json& out = config["rope_scaling"];
  const auto* type = std::ranges::find(types, scaling.type, &std::pair<const char*, Type>::second);
  out["rope_type"] = scaling.type == Type::alpha ? dynamic : type->first;
  if (!rope.mrope_section.empty()) out[section_key] = rope.mrope_section;
  if (rope.mrope_interleaved) out[interleaved_key] = true;
  if (scaling.type == Type::none) return;
  if (scaling.type == Type::alpha) {
    out[alpha_key] = scaling.alpha;
    out["factor"] = 1.0; // which transformers requires, and does not read
    return;
  }
  out["factor"] = scaling.factor;
  if (scaling.type == Type::linear) return;
  out["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  if (scaling.type == Type::llama3) {
    out["low_freq_factor"] = scaling.low_freq_factor;
    out["high_freq_factor"] = scaling.high_freq_factor;
    return;
  }
  out["beta_fast"] = scaling.beta_fast;
  out["beta_slow"] = scaling.beta_slow;
  out["truncate"] = scaling.truncate;
  out["attention_factor"] = scaling.attention_factor;
  if (scaling.llama_4_scaling_beta) out[beta_key] = *scaling.llama_4_scaling_beta;
}

std::vector<double> rope_frequencies(const Rope& rope, int64_t rotary_dim) {
  std::vector<double> frequencies;
  const auto [low, high] =
      rope.scaling.type == Type::yarn ? yarn_range(rope, rotary_dim) : std::pair<double, double>(0, 1);
  const auto features = static_cast<double>(rotary_dim);
  const double theta = rope.scaling.type == Type::alpha
                           ? rope.theta * std::pow(rope.scaling.alpha, features / (features - 2))
                           : rope.theta;
  const auto rotated = static_cast<int64_t>(rope.scaling.rotated_part * features / 2);
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / features);
    switch (rope.scaling.type) {
    case Type::none:
    case Type::alpha:
      frequencies.push_back(frequency);
      break;
    case Type::linear:
      frequencies.push_back(frequency / rope.scaling.factor);
      break;
    case Type::proportional:
      frequencies.push_back(i < rotated ? frequency : 0);
      break;
    case Type::llama3:
      frequencies.push_back(llama3_frequency(frequency, rope.scaling));
      break;
    case Type::yarn: {
      const double scaled = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequencies.push_back(frequency / rope.scaling.factor * scaled + frequency * (1 - scaled));
    }
    }
  }
  return frequencies;
}

} // namespace fvlm
