#include "model/weights/peft_folder.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/weights/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_adapter_config = uint64_t{1} << 20;
constexpr int64_t largest_rank = int64_t{1} << 16;

// Keys that say nothing about what is computed, or only which modules have adapters, as the tensors do too.
constexpr std::array passive_keys = {"auto_mapping",
                                     "base_model_name_or_path",
                                     "ensure_weight_tying",
                                     "eva_config",
                                     "exclude_modules",
                                     "inference_mode",
                                     "layers_pattern",
                                     "layers_to_transform",
                                     "loftq_config",
                                     "megatron_core",
                                     "modules_to_save",
                                     "peft_version",
                                     "qalora_group_size",
                                     "revision",
                                     "runtime_config",
                                     "target_modules",
                                     "task_type"};
constexpr std::array active_keys = {"alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "lora_dropout",
                                    "peft_type",     "r",    "rank_pattern",      "use_dora",   "use_rslora"};

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

// Initializations that leave the base as it is: what they made is in the adapter's own tensors.
bool keeps_base(const nlohmann::json& initialization) {
  return initialization.is_boolean() || initialization == "gaussian" || initialization == "eva" ||
         initialization == "orthogonal";
}

ModulePatterns read_patterns(ConfigReader& reader, const char* key, const std::string& where) {
  ModulePatterns patterns(key, ErrorKind::data, where);
  if (!reader.has(key)) return patterns;
  const nlohmann::json* object = reader.object(key);
  if (!object) return patterns;
  for (const auto& [expression, value] : object->items())
    if (value.is_number() && value.get<double>() > 0 && value.get<double>() < 1e9)
      patterns.add({expression, expression, value.get<double>()});
    else
      reader.problems().add("'{}' has {} for {}, where a number above 0 is expected", key, value.dump(),
                            shown(expression));
  return patterns;
}

// The same expression for the modules of all layers, or for one.
std::string expression_of(const std::string& module, bool of_all_layers) {
  std::string text;
  for (const std::string& word : split(module, '.')) {
    const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
    text += (text.empty() ? "" : "\\.") + (is_number && of_all_layers ? "[0-9]+" : word);
  }
  return text;
}

// PEFT matches it with the whole name of a module, and a list with ends of names: those end in the same words in the
// encoder and the decoder of a model.
std::string target_expression(const PeftConfig& config) {
  std::set<std::string> others, chosen;
  for (const std::string& linear : config.other_linears) others.insert(expression_of(linear, true));
  for (const AdaptedModule& module : config.modules) {
    const std::string of_all = expression_of(module.name, true);
    chosen.insert(others.contains(of_all) ? expression_of(module.name, false) : of_all);
  }
  return join(std::vector<std::string>(chosen.begin(), chosen.end()), "|");
}

} // namespace

nlohmann::json PeftConfig::json() const {
  std::map<std::pair<int64_t, double>, size_t> counts;
  for (const AdaptedModule& module : modules) ++counts[{module.rank, module.alpha}];
  const auto usual =
      std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; })->first; // most have these
  nlohmann::json ranks = nlohmann::json::object(), alphas = nlohmann::json::object();
  for (const AdaptedModule& module : modules) {
    if (module.rank != usual.first) ranks[module.name] = module.rank;
    if (module.alpha != usual.second) alphas[module.name] = module.alpha;
  }
  nlohmann::json out = {{"peft_type", "LORA"},
                        {"base_model_name_or_path", base},
                        {"r", usual.first},
                        {"lora_alpha", usual.second},
                        {"lora_dropout", dropout},
                        {"use_dora", dora},
                        {"use_rslora", false},
                        {"bias", "none"},
                        {"fan_in_fan_out", false},
                        {"inference_mode", true},
                        {"init_lora_weights", true},
                        {"target_modules", target_expression(*this)},
                        {"modules_to_save", saved.empty() ? nlohmann::json() : nlohmann::json(saved)},
                        {"rank_pattern", ranks},
                        {"alpha_pattern", alphas},
                        {"task_type", nullptr}};
  if (ties_weights) out["ensure_weight_tying"] = true;
  return out;
}

PeftSettings PeftSettings::read(const fs::path& file) {
  const nlohmann::json json = read_json_object(file, largest_adapter_config);
  ConfigReader reader(json, file.string());
  PeftSettings out;
  reader.refuse_unless(reader.text("peft_type", std::nullopt) == "LORA", "peft_type", "LORA is");
  out.rank_ = static_cast<double>(reader.whole("r", std::nullopt, 1, largest_rank));
  out.alpha_ = reader.number("lora_alpha", std::nullopt, 0, 1e9);
  out.dropout = reader.number("lora_dropout", 0.0, 0, 1);
  out.dora = reader.flag("use_dora", false);
  out.rank_stabilized_ = reader.flag("use_rslora", false);
  out.ranks_ = read_patterns(reader, "rank_pattern", file.string());
  out.alphas_ = read_patterns(reader, "alpha_pattern", file.string());
  reader.refuse_unless(!reader.has("bias") || reader.text("bias", "none") == "none", "bias", "only none is");
  if (constexpr const char* key = "init_lora_weights"; reader.has(key))
    reader.refuse_unless(keeps_base(json.at(key)), key,
                         "it changes the base, too; save_pretrained(path_initial_model_for_weight_conversion=...) "
                         "makes it an adapter of the base as it was");
  const auto is_in = [](const auto& keys, const std::string& key) {
    return std::ranges::any_of(keys, [&](const char* known) { return key == known; });
  };
  for (const auto& [key, value] : json.items())
    if (!is_in(passive_keys, key) && !is_in(active_keys, key))
      reader.refuse_unless(is_off(value), key.c_str(), "it has to be null, false or empty");
  reader.finish("train the adapter without it, or merge it with PEFT (merge_and_unload()) and import the result");
  return out;
}

AdaptedModule PeftSettings::module(const std::string& name) const {
  const ModulePatterns::Pattern *rank = ranks_.find({&name, 1}), *alpha = alphas_.find({&name, 1});
  AdaptedModule out{name, std::llround(rank ? rank->value : rank_), alpha ? alpha->value : alpha_};
  if (rank_stabilized_) out.alpha *= std::sqrt(static_cast<double>(out.rank));
  return out;
}

PeftFolder PeftFolder::open(const fs::path& folder) {
  PeftFolder out{PeftSettings::read(folder / PartAdapter::config_file),
                 Safetensors::open(folder / PartAdapter::weights_file)};
  for (const TensorView& view : out.file.tensors())
    if (!view.name.starts_with(prefix))
      throw Error(ErrorKind::data, "{} is no tensor of a PEFT adapter", shown(view.name))
          .at(out.file.path().string())
          .advise("names begin with " + std::string(prefix));
  return out;
}

} // namespace fvlm
