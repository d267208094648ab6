#include "budget/described_model.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/media/override_processor.h"
#include "data/tokenizer.h"
#include "model/weights/visual_rows.h"
#include "model/weights/whole_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace fvlm::budget {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_config = uint64_t{1} << 20;

struct Tower {
  HuggingFaceFolder folder;
  std::string where;
};

Tower tower_of(const std::string& folder) {
  return {HuggingFaceFolder::open(folder), (fs::path(folder) / "config.json").string()};
}

Tower fresh_tower(nlohmann::json config, const std::string& where) {
  Tower tower{{}, where};
  tower.folder.config = std::move(config);
  return tower;
}

Tower vision_of(const plan::Model& model) {
  if (const auto* folder = std::get_if<std::string>(&model.vision)) {
    Tower tower = tower_of(*folder);
    for (ProcessorFile& file : overridden_files(*folder, model)) tower.folder.change(file.name, std::move(file.text));
    return tower;
  }
  return fresh_tower(fresh_vision_config(model), "model.vision");
}

nlohmann::json config_of(const plan::Llama& fresh) {
  const auto family = fresh.family.value_or(plan::LlamaFamily::llama);
  nlohmann::json config{{"model_type", plan::name_of(family)},
                        {"hidden_size", fresh.width},
                        {"intermediate_size", fresh.mlp.value_or(4 * fresh.width)},
                        {"num_hidden_layers", fresh.layers},
                        {"num_attention_heads", fresh.heads},
                        {"num_key_value_heads", fresh.kv_heads.value_or(fresh.heads)},
                        {"head_dim", fresh.head_width.value_or(fresh.width / fresh.heads)},
                        {"max_position_embeddings", fresh.max_positions},
                        {"rope_theta", fresh.rope_theta},
                        {"rms_norm_eps", family == plan::LlamaFamily::llama ? 1e-5 : 1e-6},
                        {"tie_word_embeddings", fresh.tied_head}};
  if (fresh.initializer_range) config["initializer_range"] = *fresh.initializer_range;
  if (fresh.embedding_range) config["embedding_initializer_range"] = *fresh.embedding_range;
  return config;
}

nlohmann::json config_of(const plan::GhostVis& fresh) {
  return {{"model_type", "ghostvis"},
          {"hidden_size", fresh.width()},
          {"intermediate_size", fresh.mlp()},
          {"num_hidden_layers", fresh.depth},
          {"num_attention_heads", fresh.heads()},
          {"num_key_value_heads", fresh.kv_heads()},
          {"max_position_embeddings", fresh.max_positions}};
}

Tower decoder_of(const plan::Model& model, const std::string& where) {
  if (const auto* folder = std::get_if<std::string>(&model.decoder)) return tower_of(*folder);
  const std::string folder = model.tokenizer_folder();
  const auto tokenizer = Tokenizer::from_file(fs::path(folder) / "tokenizer.json");
  const auto* ghostvis = std::get_if<plan::GhostVis>(&model.decoder);
  Tower tower = fresh_tower(ghostvis ? config_of(*ghostvis) : config_of(std::get<plan::Llama>(model.decoder)), where);
  tower.folder.config["vocab_size"] = tokenizer.size();
  std::vector<TokenId> ends;
  for (const char* end : {"<|im_end|>", "<|assistant_end|>", "<|bos|>"})
    if (const auto id = tokenizer.special_id(end)) ends.push_back(*id);
  if (!ends.empty()) tower.folder.config["eos_token_id"] = ends;
  tower.folder.carried = HuggingFaceFolder::carry(folder);
  return tower;
}

Error at_path(std::string path, std::string what) {
  return Error(ErrorKind::recipe, std::move(what)).at(std::move(path));
}

void check_sizes(const plan::Plan& plan, const ModelDescription& description) {
  const int64_t size = plan.model.image_size, patch = description.encoder().patch_size;
  if (patch > 0 && size % patch != 0)
    throw at_path("model.image_size", fmt::format("{} pixels are no whole number of patches of {}", size, patch))
        .advise("image_size = {}", std::max<int64_t>(1, (size + patch / 2) / patch) * patch);
  for (const plan::Stage& stage : plan.stages) {
    const auto check = [&](const char* part, const plan::Recompute& recompute, int64_t layers) {
      for (const int64_t layer : recompute.layers)
        if (layer >= layers)
          throw at_path(fmt::format("stages.{}.activation_checkpointing.{}", stage.name, part),
                        fmt::format("there is no layer {}: the tower has {}", layer, layers))
              .advise("layers are counted from 0, the last is {}", layers - 1);
    };
    check("vision", stage.activation_checkpointing.vision, description.encoder().num_hidden_layers);
    for (const DecoderConfig& decoder : description.decoders())
      check("decoder", stage.activation_checkpointing.decoder, decoder.num_hidden_layers);
  }
}

// Rank and alpha of each module with an adapter of one fvlm.lora.
class AdapterSizes {
 public:
  AdapterSizes(const plan::Lora& lora, const std::string& where, const ModelDescription& description)
      : lora_(lora), where_(where), names_(WholeNames::of(description)),
        ranks_("rank_pattern", ErrorKind::recipe, where + ".rank_pattern"),
        alphas_("alpha_pattern", ErrorKind::recipe, where + ".alpha_pattern") {
    for (const auto& [key, rank] : lora.rank_pattern)
      ranks_.add({key, expression_of_target(key), static_cast<double>(rank)});
    for (const auto& [key, alpha] : lora.alpha_pattern) alphas_.add({key, expression_of_target(key), alpha});
  }

  AdaptedModule of(const std::string& part, const std::string& module) {
    const std::string name = part + "." + module;
    std::vector<std::string> names{name, module, in_transformers(module)};
    if (names_) names.push_back(names_->in_transformers(name));
    const ModulePatterns::Pattern *rank = ranks_.find(names), *alpha = alphas_.find(names);
    used_.insert({rank, alpha});
    ends_.insert(module.substr(module.rfind('.') + 1));
    const int64_t own = rank ? std::llround(rank->value) : lora_.rank;
    return {module, own, alpha ? alpha->value : lora_.alpha.value_or(2 * static_cast<double>(own))};
  }

  void require_all_used() const {
    require_used(ranks_, "rank_pattern");
    require_used(alphas_, "alpha_pattern");
  }

 private:
  void require_used(const ModulePatterns& patterns, const std::string& field) const {
    for (const ModulePatterns::Pattern& pattern : patterns.all()) {
      if (used_.contains(&pattern)) continue;
      const std::vector<std::string> ends(ends_.begin(), ends_.end());
      const auto near = nearest(pattern.key, ends);
      throw at_path(where_ + "." + field, fmt::format("'{}' matches no module that has an adapter", pattern.key))
          .advise("{}adapters are on {}", near ? fmt::format("did you mean '{}'? ", *near) : "", join(ends, ", "));
    }
  }

  const plan::Lora& lora_;
  std::string where_;
  std::optional<WholeNames> names_;
  ModulePatterns ranks_, alphas_;
  std::set<const ModulePatterns::Pattern*> used_; // with a null
  std::set<std::string> ends_;                    // of the names of modules with adapters
};

} // namespace

void add_adapters(const plan::Model& model, ModelDescription& description) {
  if (!model.adapters) return;
  for (size_t i = 0; i < model.adapters->size(); ++i) {
    const plan::Lora& lora = (*model.adapters)[i];
    const std::string where = fmt::format("model.adapters[{}]", i + 1);
    AdapterSizes sizes(lora, where, description);
    for (const std::string& name : lora.parts) {
      const auto part = std::ranges::find_if(description.parts, [&](const ModelPart& each) {
        return each.name == name && each.role() != Role::connector;
      });
      if (part == description.parts.end() || !part->folder.weights)
        throw at_path(where + ".parts", fmt::format("the model has no part '{}' with weights of a folder", name));
      const WeightLayout layout = description.layout(*part);
      PartAdapter adapter{.dropout = lora.dropout, .dora = lora.dora};
      for (const std::string& module : adapted_modules(layout, lora.targets, where + ".targets"))
        adapter.modules.push_back(sizes.of(name, module));
      if (lora.modules_to_save)
        adapter.saved = saved_tensors(layout, *lora.modules_to_save, where + ".modules_to_save");
      adapter.base.folder = fs::weakly_canonical(part->folder.path).string();
      part->adapter = std::move(adapter);
    }
    sizes.require_all_used();
  }
}

ModelDescription describe(const plan::Plan& plan) {
  const Tower vision = vision_of(plan.model);
  ModelDescription description;
  description.name = plan.name;
  description.parts = {{"vision", read_vision_config(vision.folder.config, vision.where), vision.folder},
                       {"connector", plan.model.connector, {}}};
  for (size_t i = 0; i < plan.model.decoder_count(); ++i) {
    const std::string where = i == 0 ? "model.decoder" : fmt::format("model.decoders[{}]", i);
    const Tower decoder = decoder_of(plan.model.with_decoder(i), where);
    description.parts.push_back(
        {plan::decoder_name(i), read_decoder_config(decoder.folder.config, decoder.where), decoder.folder});
  }
  check_sizes(plan, description);
  add_adapters(plan.model, description);
  // A part without a folder brings no config.json: it gets the one that says what was read.
  for (ModelPart& part : description.parts) {
    if (part.folder.weights) continue;
    if (const auto* config = std::get_if<VisionConfig>(&part.config)) part.folder.config = config_json(*config);
    if (const auto* config = std::get_if<DecoderConfig>(&part.config)) part.folder.config = config_json(*config);
  }
  return description;
}

std::optional<int64_t> decoder_positions(const plan::Model& model) {
  const auto* folder = std::get_if<std::string>(&model.decoder);
  if (!folder) return {};
  const fs::path config = fs::path(*folder) / "config.json";
  std::error_code ignored;
  if (!fs::is_regular_file(config, ignored)) return {};
  try {
    return read_decoder_config(read_json_object(config, largest_config), config.string()).max_position_embeddings;
  } catch (const Error&) { // check --files, train and plan say what is wrong with it
    return {};
  }
}

} // namespace fvlm::budget
