#include "model/weights/adapter.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/weights/packed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view linear_suffix = ".weight";

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

// Of experts, which transformers has no modules for.
void refuse_experts(const WeightLayout& layout, const std::string& target, const std::string& where) {
  const auto is_meant = [&](const TensorSpec& spec) {
    const std::string module = module_of(spec.name);
    return module.find(".experts.") != module.npos &&
           (is_target(module, target) || module.find("." + target + ".") != module.npos);
  };
  if (std::ranges::any_of(layout.tensors, is_meant))
    throw Error(ErrorKind::recipe, fmt::format("'{}' names matrices of experts, which can have no adapters", target))
        .at(where)
        .advise("they are no linears in transformers, so that PEFT could not read them; name linears of attention: "
                "q, k, v, o");
}

const TensorSpec& layout_spec(const WeightLayout& layout, const std::string& name) {
  const auto found = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                                  [&](const TensorSpec& spec) { return spec.name == name; });
  if (found == layout.tensors.end()) throw Error(ErrorKind::internal, "the part has no such tensor").at(name);
  return *found;
}

} // namespace

const AdaptedModule* PartAdapter::find(std::string_view module) const {
  const auto found = std::ranges::find(modules, module, &AdaptedModule::name);
  return found == modules.end() ? nullptr : &*found;
}

std::string PartAdapter::summary() const {
  const bool is_even = std::ranges::all_of(modules, [&](const AdaptedModule& each) {
    return each.rank == modules.front().rank && each.alpha == modules.front().alpha;
  });
  const auto [least, most] = std::ranges::minmax(modules, {}, &AdaptedModule::rank);
  const std::string sizes = is_even ? fmt::format("rank {}, alpha {:g}", least.rank, least.alpha)
                                    : fmt::format("ranks from {} to {} and alphas by module", least.rank, most.rank);
  return fmt::format("{} on {}{}", sizes, counted(static_cast<int64_t>(modules.size()), "linear"),
                     dora ? " (DoRA)" : "");
}

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

std::string in_folder(std::string module, const WeightLayout& part) {
  for (const auto& [folder, model] : renamed_modules)
    if (has_module(part, folder)) module = with_replaced(std::move(module), model, folder);
  return module;
}

std::string peft_name(const std::string& tensor) {
  return std::string(PeftFolder::prefix) + in_transformers(tensor);
}

std::string name_of_peft(const std::string& tensor, const WeightLayout& part) {
  return in_folder(tensor.substr(PeftFolder::prefix.size()), part);
}

std::vector<std::string> linears_of(const WeightLayout& layout) {
  std::vector<std::string> modules;
  for (const TensorSpec& spec : layout.tensors)
    if (spec.parameter && takes_adapter(spec.name, spec.shape)) modules.push_back(module_of(spec.name));
  return modules;
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
    refuse_experts(layout, target, where);
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

std::string expression_of_target(const std::string& target) {
  if (target == "all") return ".*";
  for (const Word& word : words())
    if (target == word.word) return join(std::vector<std::string>(word.names.begin(), word.names.end()), "|");
  return target;
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
      if (!takes_adapter(spec.name, spec.shape)) known.insert(module_end(owner));
      if (!names_module(owner, module)) continue;
      found = true;
      const bool is_linear = std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const TensorSpec& other) {
        return other.name == owner + ".weight" && takes_adapter(other.name, other.shape);
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
  for (const auto& [module, rank, alpha] : adapter.modules) {
    const TensorSpec& weight = layout_spec(part, module + ".weight");
    const auto& shape = weight.shape;
    const double bound = 1 / std::sqrt(static_cast<double>(shape[1])); // Kaiming's with a = sqrt(5), as in PEFT
    layout.tensors.push_back(
        {.name = lora_a_of(module), .shape = {rank, shape[1]}, .fill = {Initializer::Kind::uniform, bound}});
    layout.tensors.push_back({.name = lora_b_of(module), .shape = {shape[0], rank}, .pairs = weight.pairs});
    if (adapter.dora)
      layout.tensors.push_back({.name = magnitude_of(module), .shape = {shape[0]}, .pairs = weight.pairs});
  }
  for (const std::string& name : adapter.saved) layout.tensors.push_back(layout_spec(part, name));
  return layout;
}

void append_adapter_blocks(std::vector<ParameterBlock>& blocks, const PartAdapter& adapter, const std::string& prefix) {
  std::map<std::string_view, int64_t> ranks;
  for (const AdaptedModule& each : adapter.modules) ranks.emplace(each.name, each.rank);
  for (size_t i = 0, count = blocks.size(); i < count; ++i) {
    ParameterBlock of_a, of_b, magnitudes;
    for (const ParameterSpec& spec : blocks[i]) {
      if (!spec.name.starts_with(prefix) || !spec.name.ends_with(linear_suffix)) continue;
      const std::string module = module_of(spec.name);
      const auto rank = ranks.find(std::string_view(module).substr(prefix.size()));
      if (rank == ranks.end()) continue;
      of_a.push_back({lora_a_of(module), {rank->second, spec.shape[1]}});
      of_b.push_back({.name = lora_b_of(module), .shape = {spec.shape[0], rank->second}, .pairs = spec.pairs});
      if (adapter.dora)
        magnitudes.push_back({.name = magnitude_of(module), .shape = {spec.shape[0]}, .pairs = spec.pairs});
    }
    for (ParameterBlock* block : {&of_a, &of_b, &magnitudes})
      if (!block->empty()) blocks.push_back(std::move(*block));
  }
}

PeftConfig peft_config(const PartAdapter& adapter, const WeightLayout& part) {
  PeftConfig out{.base = adapter.base.folder, .dropout = adapter.dropout, .dora = adapter.dora};
  for (const std::string& linear : linears_of(part))
    if (const AdaptedModule* module = adapter.find(linear))
      out.modules.push_back({in_transformers(linear), module->rank, module->alpha});
    else
      out.other_linears.push_back(in_transformers(linear));
  for (const std::string& name : adapter.saved)
    if (const std::string owner = name.substr(0, name.rfind('.')); out.saved.empty() || out.saved.back() != owner)
      out.saved.push_back(owner);
  return out;
}

namespace {

// The module with its rank, which the shape of A has to confirm.
AdaptedModule adapted_module(const PeftFolder& source, const std::vector<PeftTensor>& tensors,
                             const std::string& name) {
  const auto a = std::ranges::find(tensors, lora_a_of(name), [](const PeftTensor& each) { return each.view.name; });
  if (a == tensors.end())
    throw Error(ErrorKind::data, "the adapter of {} has no lora_A.weight", shown(name)).at(source.file.path().string());
  AdaptedModule module = source.settings.module(a->module);
  module.name = name;
  if (a->view.shape.size() == 2 && a->view.shape[0] != module.rank)
    throw Error(ErrorKind::data, "the adapter of {} has rank {}, and by r and rank_pattern of {} its rank is {}",
                shown(a->module), a->view.shape[0], PartAdapter::config_file, module.rank)
        .at(source.file.path().string())
        .advise("take the configuration and the tensors of the same adapter");
  return module;
}

} // namespace

PartAdapter adapter_of(const PeftFolder& source, std::vector<PeftTensor> tensors, const WeightLayout& part) {
  constexpr const char* other_base = "name the base that it was trained on";
  PartAdapter adapter{.dropout = source.settings.dropout, .dora = source.settings.dora};
  std::set<std::string> modules, others;
  std::vector<TensorView> named;
  for (const PeftTensor& tensor : tensors) {
    const std::string& name = tensor.view.name;
    const size_t lora = name.find(".lora_");
    (lora == name.npos ? others : modules).insert(name.substr(0, lora));
    named.push_back(tensor.view);
  }
  for (const std::string& linear : linears_of(part))
    if (modules.erase(linear) > 0) adapter.modules.push_back(adapted_module(source, tensors, linear));
  for (const TensorSpec& spec : part.tensors)
    if (spec.parameter && others.erase(spec.name) > 0) adapter.saved.push_back(spec.name);
  const std::string where = source.file.path().string();
  for (const auto* unknown : {&modules, &others})
    if (!unknown->empty())
      throw Error(ErrorKind::data, "the adapter is for {}, which the base does not have as {}",
                  shown(*unknown->begin()), unknown == &modules ? "a linear" : "a parameter")
          .at(where)
          .advise(other_base);
  if (adapter.modules.empty()) throw Error(ErrorKind::data, "the adapter has no tensors of LoRA").at(where);
  adapter.weights = source.file.view(std::move(named));
  try {
    (void)bind(*adapter.weights, adapter_layout(adapter, part)); // throws for what is missing or misshapen
  } catch (const Error& error) {
    throw Error(error.kind(), error.what()).at(error.where()).advise(other_base);
  }
  return adapter;
}

PartAdapter read_adapter(const fs::path& folder, const WeightLayout& part) {
  const PeftFolder source = PeftFolder::open(folder);
  std::vector<PeftTensor> tensors;
  for (const TensorView& view : source.file.tensors()) {
    const std::string in_model = view.name.substr(PeftFolder::prefix.size());
    PeftTensor tensor{view, in_model.substr(0, in_model.find(".lora_"))};
    tensor.view.name = in_folder(in_model, part);
    if (!part.optional_prefix.empty() && tensor.view.name.starts_with(part.optional_prefix))
      tensor.view.name.erase(0, part.optional_prefix.size());
    tensors.push_back(std::move(tensor));
  }
  return adapter_of(source, std::move(tensors), part);
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
