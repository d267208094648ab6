#include "model/weights/adapter.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "model/weights/packed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view linear_suffix = ".weight", peft_prefix = "base_model.model.";
constexpr uint64_t largest_adapter_config = uint64_t{1} << 20;

// What families call a linear.
struct Word {
  const char* word;
  std::vector<const char*> names;
};
const std::vector<Word>& words() {
  static const std::vector<Word> all{
      {"q", {"q_proj", "query", "c_q"}},
      {"k", {"k_proj", "key", "c_k"}},
      {"v", {"v_proj", "value", "c_v"}},
      {"o", {"o_proj", "out_proj", "attention.output.dense", "attn.c_proj", "projection_layer"}},
      {"gate", {"gate_proj", "gate_up_proj", "feed_forward.w1"}},
      {"up", {"up_proj", "gate_up_proj", "fc1", "c_fc", "feed_forward.w3"}},
      {"down", {"down_proj", "fc2", "mlp.c_proj", "feed_forward.w2"}}};
  return all;
}

// What transformers 5 calls otherwise in a model than in the model's folder: DINOv2's attention, LFM3's gates of heads.
constexpr std::pair<std::string_view, std::string_view> renamed_modules[] = {
    {".attention.attention.query", ".attention.q_proj"},
    {".attention.attention.key", ".attention.k_proj"},
    {".attention.attention.value", ".attention.v_proj"},
    {".attention.output.dense", ".attention.o_proj"},
    {".self_attn.gate_proj", ".self_attn.g_proj"}};

std::string with_replaced(std::string name, std::string_view from, std::string_view to) {
  if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  return name;
}

// InternVL's folders have the names that DINOv2's modules have in transformers.
bool has_module(const WeightLayout& part, std::string_view module) {
  return std::any_of(part.tensors.begin(), part.tensors.end(),
                     [&](const TensorSpec& spec) { return spec.name.find(module) != std::string::npos; });
}

bool names_module(std::string_view module, std::string_view end) {
  return module == end ||
         (module.ends_with(end) && module.size() > end.size() && module[module.size() - end.size() - 1] == '.');
}

bool is_target(const std::string& module, const std::string& target) {
  if (target == "all" || names_module(module, target)) return true;
  for (const Word& word : words())
    if (target == word.word)
      return std::any_of(word.names.begin(), word.names.end(),
                         [&](const char* name) { return names_module(module, name); });
  return false;
}

std::vector<std::string> linears_of(const WeightLayout& layout) {
  std::vector<std::string> modules;
  for (const TensorSpec& spec : layout.tensors)
    if (spec.parameter && is_packable(spec.name, spec.shape)) modules.push_back(module_of(spec.name));
  return modules;
}

std::string module_end(const std::string& module) {
  return module.substr(module.rfind('.') + 1); // npos + 1 is 0
}

[[noreturn]] void refuse_name(const std::string& name, const char* what, std::set<std::string> known,
                              const std::string& where) {
  const std::vector<std::string> names(known.begin(), known.end());
  Error error(ErrorKind::recipe, fmt::format("'{}' names no {} of this part", name, what));
  error.at(where);
  if (const auto near = nearest(name, names))
    error.advise("did you mean '{}'? The part has {}", *near, join(names, ", "));
  else
    error.advise("the part has " + join(names, ", "));
  throw error;
}

const TensorSpec& layout_spec(const WeightLayout& layout, const std::string& name) {
  const auto found = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                                  [&](const TensorSpec& spec) { return spec.name == name; });
  if (found == layout.tensors.end()) throw Error(ErrorKind::internal, "the part has no such tensor").at(name);
  return *found;
}

} // namespace

bool PartAdapter::saves(std::string_view tensor) const {
  return std::find(saved.begin(), saved.end(), tensor) != saved.end();
}

std::string lora_a_of(const std::string& module) {
  return module + ".lora_A.weight";
}

std::string lora_b_of(const std::string& module) {
  return module + ".lora_B.weight";
}

std::string magnitude_of(const std::string& module) {
  return module + ".lora_magnitude_vector";
}

std::string module_of(const std::string& weight) {
  return weight.ends_with(linear_suffix) ? weight.substr(0, weight.size() - linear_suffix.size()) : weight;
}

std::string in_transformers(std::string module) {
  for (const auto& [folder, model] : renamed_modules) module = with_replaced(std::move(module), folder, model);
  return module;
}

std::string peft_name(const std::string& tensor) {
  return std::string(peft_prefix) + in_transformers(tensor);
}

std::string name_of_peft(const std::string& tensor, const WeightLayout& part) {
  std::string name = tensor.substr(peft_prefix.size());
  for (const auto& [folder, model] : renamed_modules)
    if (has_module(part, folder)) name = with_replaced(std::move(name), model, folder);
  return name;
}

std::vector<std::string> adapted_modules(const WeightLayout& layout, const std::vector<std::string>& targets,
                                         const std::string& where) {
  const auto linears = linears_of(layout);
  std::vector<std::string> modules;
  for (const std::string& module : linears)
    if (std::any_of(targets.begin(), targets.end(),
                    [&](const std::string& target) { return is_target(module, target); }))
      modules.push_back(module);
  for (const std::string& target : targets) {
    if (std::any_of(linears.begin(), linears.end(),
                    [&](const std::string& module) { return is_target(module, target); }))
      continue;
    std::set<std::string> known{"all"};
    for (const std::string& module : linears) known.insert(module_end(module));
    for (const Word& word : words())
      if (std::any_of(linears.begin(), linears.end(),
                      [&](const std::string& module) { return is_target(module, word.word); }))
        known.insert(word.word);
    refuse_name(target, "linear", std::move(known), where);
  }
  return modules;
}

std::vector<std::string> saved_tensors(const WeightLayout& layout, const std::vector<std::string>& modules,
                                       const std::string& where) {
  std::vector<std::string> saved;
  for (const std::string& module : modules) {
    std::set<std::string> known;
    bool found = false;
    for (const TensorSpec& spec : layout.tensors) {
      const std::string owner = spec.name.substr(0, spec.name.rfind('.'));
      if (!spec.parameter) continue;
      if (!is_packable(spec.name, spec.shape)) known.insert(module_end(owner));
      if (!names_module(owner, module)) continue;
      found = true;
      const bool is_linear = std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const TensorSpec& other) {
        return other.name == owner + ".weight" && is_packable(other.name, other.shape);
      });
      if (is_linear)
        throw Error(ErrorKind::recipe, "'{}' is a linear, which does not train whole", module)
            .at(where)
            .advise("name it in `targets`, so that it has an adapter");
      if (std::find(saved.begin(), saved.end(), spec.name) == saved.end()) saved.push_back(spec.name);
    }
    if (!found) refuse_name(module, "module", std::move(known), where);
  }
  return saved;
}

WeightLayout adapter_layout(const PartAdapter& adapter, const WeightLayout& part) {
  WeightLayout layout;
  for (const std::string& module : adapter.modules) {
    const TensorSpec& weight = layout_spec(part, module + ".weight");
    const auto& shape = weight.shape;
    const double bound = 1 / std::sqrt(static_cast<double>(shape[1])); // Kaiming's with a = sqrt(5), as in PEFT
    layout.tensors.push_back(
        {.name = lora_a_of(module), .shape = {adapter.rank, shape[1]}, .fill = {Initializer::Kind::uniform, bound}});
    layout.tensors.push_back({.name = lora_b_of(module), .shape = {shape[0], adapter.rank}, .pairs = weight.pairs});
    if (adapter.dora)
      layout.tensors.push_back({.name = magnitude_of(module), .shape = {shape[0]}, .pairs = weight.pairs});
  }
  for (const std::string& name : adapter.saved) layout.tensors.push_back(layout_spec(part, name));
  return layout;
}

void append_adapter_blocks(std::vector<ParameterBlock>& blocks, const PartAdapter& adapter, const std::string& prefix) {
  const std::set<std::string> modules(adapter.modules.begin(), adapter.modules.end());
  for (size_t i = 0, count = blocks.size(); i < count; ++i) {
    ParameterBlock of_a, of_b, magnitudes;
    for (const ParameterSpec& spec : blocks[i]) {
      if (!spec.name.starts_with(prefix) || !spec.name.ends_with(linear_suffix)) continue;
      const std::string module = module_of(spec.name);
      if (!modules.contains(module.substr(prefix.size()))) continue;
      of_a.push_back({lora_a_of(module), {adapter.rank, spec.shape[1]}});
      of_b.push_back({.name = lora_b_of(module), .shape = {spec.shape[0], adapter.rank}, .pairs = spec.pairs});
      if (adapter.dora)
        magnitudes.push_back({.name = magnitude_of(module), .shape = {spec.shape[0]}, .pairs = spec.pairs});
    }
    for (ParameterBlock* block : {&of_a, &of_b, &magnitudes})
      if (!block->empty()) blocks.push_back(std::move(*block));
  }
}

// PEFT matches it with the whole name of a module, and a list with ends of names: those end in the same words in a
// whole SmolVLM or LLaVA, on which PEFT would then leave out all of the adapter's weights and only warn.
static std::string target_expression(const PartAdapter& adapter, const WeightLayout& part) {
  const auto expression = [](const std::string& module, bool of_all_layers) {
    std::string text;
    for (const std::string& word : split(in_transformers(module), '.')) {
      const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
      text += (text.empty() ? "" : "\\.") + (is_number && of_all_layers ? "[0-9]+" : word);
    }
    return text;
  };
  std::set<std::string> all, each;
  for (const std::string& module : adapter.modules)
    all.insert(expression(module, true)), each.insert(expression(module, false));
  const auto linears = linears_of(part);
  const auto named = std::count_if(linears.begin(), linears.end(),
                                   [&](const std::string& module) { return all.contains(expression(module, true)); });
  const std::set<std::string>& chosen = static_cast<size_t>(named) == adapter.modules.size() ? all : each;
  return join(std::vector<std::string>(chosen.begin(), chosen.end()), "|");
}

nlohmann::json adapter_config_json(const PartAdapter& adapter, const WeightLayout& part) {
  std::vector<std::string> saved;
  for (const std::string& name : adapter.saved)
    if (const std::string owner = name.substr(0, name.rfind('.')); saved.empty() || saved.back() != owner)
      saved.push_back(owner);
  return {{"peft_type", "LORA"},
          {"base_model_name_or_path", adapter.base.folder},
          {"r", adapter.rank},
          {"lora_alpha", adapter.alpha},
          {"lora_dropout", adapter.dropout},
          {"use_dora", adapter.dora},
          {"use_rslora", false},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"target_modules", target_expression(adapter, part)},
          {"modules_to_save", saved.empty() ? nlohmann::json() : nlohmann::json(saved)},
          {"rank_pattern", nlohmann::json::object()},
          {"alpha_pattern", nlohmann::json::object()},
          {"task_type", nullptr}};
}

namespace {

// Rank, scale and the rest as PEFT writes them; what it would compute otherwise is refused.
PartAdapter read_adapter_config(const fs::path& file) {
  const nlohmann::json json = read_json_object(file, largest_adapter_config);
  ConfigReader reader(json, file.string());
  PartAdapter adapter;
  reader.refuse_unless(reader.text("peft_type", std::nullopt) == "LORA", "peft_type", "LORA is");
  adapter.rank = reader.whole("r", std::nullopt, 1);
  adapter.alpha = reader.number("lora_alpha", std::nullopt, 0, 1e9);
  adapter.dropout = reader.number("lora_dropout", 0.0, 0, 1);
  adapter.dora = reader.flag("use_dora", false);
  if (reader.flag("use_rslora", false)) adapter.alpha *= std::sqrt(static_cast<double>(adapter.rank));
  for (const char* key : {"fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"})
    reader.refuse_unless(!reader.has(key) || !reader.flag(key, false), key, "it has to be false");
  reader.refuse_unless(!reader.has("bias") || reader.text("bias", "none") == "none", "bias", "only none is");
  for (const char* key : {"rank_pattern", "alpha_pattern"})
    if (const auto* pattern = reader.has(key) ? reader.object(key) : nullptr)
      reader.refuse_unless(pattern->empty(), key, "all modules have one rank and one alpha");
  for (const char* key : {"layer_replication", "trainable_token_indices", "target_parameters", "megatron_config",
                          "kasa_config", "velora_config", "alora_invocation_tokens", "arrow_config"})
    reader.refuse_unless(!reader.has(key), key, "it has to be null");
  reader.finish("train the adapter without it, or merge it with PEFT and import the result");
  return adapter;
}

} // namespace

PartAdapter read_adapter(const fs::path& folder, const WeightLayout& part) {
  constexpr const char* other_base = "name the base that it was trained on";
  PartAdapter adapter = read_adapter_config(folder / PartAdapter::config_file);
  const auto file = Safetensors::open(folder / PartAdapter::weights_file);
  std::set<std::string> modules, others;
  std::vector<TensorView> named;
  for (const TensorView& view : file.tensors()) {
    if (!view.name.starts_with(peft_prefix))
      throw Error(ErrorKind::data, "{} is no tensor of a PEFT adapter", shown(view.name))
          .at(file.path().string())
          .advise("names begin with " + std::string(peft_prefix));
    std::string name = name_of_peft(view.name, part);
    if (!part.optional_prefix.empty() && name.starts_with(part.optional_prefix))
      name = name.substr(part.optional_prefix.size());
    const size_t lora = name.find(".lora_");
    (lora == name.npos ? others : modules).insert(name.substr(0, lora));
    named.emplace_back(view).name = name;
  }
  const auto linears = linears_of(part);
  for (const std::string& module : linears)
    if (modules.erase(module) > 0) adapter.modules.push_back(module);
  for (const TensorSpec& spec : part.tensors)
    if (others.erase(spec.name) > 0) adapter.saved.push_back(spec.name);
  for (const auto* unknown : {&modules, &others})
    if (!unknown->empty())
      throw Error(ErrorKind::data, "the adapter is for {}, which the base does not have as {}",
                  shown(*unknown->begin()), unknown == &modules ? "a linear" : "a parameter")
          .at(file.path().string())
          .advise(other_base);
  if (adapter.modules.empty())
    throw Error(ErrorKind::data, "the adapter has no tensors of LoRA").at(file.path().string());
  adapter.weights = file.view(std::move(named));
  try {
    (void)bind(*adapter.weights, adapter_layout(adapter, part)); // throws for what is missing or misshapen
  } catch (const Error& error) {
    throw Error(error.kind(), error.what()).at(error.where()).advise(other_base);
  }
  return adapter;
}

uint64_t base_checksum(const Safetensors& weights) {
  std::map<std::string_view, const TensorView*> by_name;
  for (const TensorView& view : weights.tensors()) by_name.emplace(view.name, &view);
  Xxh64 hash;
  for (const auto& [name, view] : by_name) {
    hash.update(std::as_bytes(std::span(name)));
    hash.update(view->data);
  }
  return hash.value();
}

} // namespace fvlm
