#include "quantize/own_head.h"

namespace fvlm::quantize {
namespace {

constexpr const char* tied_key = "tie_word_embeddings";

// What `export --huggingface` writes of a whole model: its config.json, and the parts' tensors by the file's names.
void give_own_head(nlohmann::json& whole, const std::string& part) {
  nlohmann::json &config = whole["config"], &tensors = whole["tensors"];
  config[tied_key] = false;
  if (config.contains("text_config")) config["text_config"][tied_key] = false;
  const std::string level = "language_model."; // above the head as well, where a file's names begin with it
  std::string head = "lm_head.weight";
  for (const auto& [name, own] : tensors.items())
    if (own == part + ".model.embed_tokens.weight" && name.starts_with(level)) head = level + "lm_head.weight";
  tensors[head] = part + ".lm_head.weight";
}

} // namespace

void give_own_heads(ModelDescription& description) {
  for (ModelPart& part : description.parts) {
    auto* decoder = std::get_if<DecoderConfig>(&part.config);
    if (!decoder || !decoder->tie_word_embeddings) continue;
    decoder->tie_word_embeddings = false;
    part.folder.config[tied_key] = false;
    if (!part.folder.whole_model.is_null()) give_own_head(part.folder.whole_model, part.name);
  }
}

const Parameter& source_of(const ModelDirectory& directory, const std::string& name) {
  for (const ModelPart& part : directory.description().parts) {
    const WeightLayout layout = directory.description().layout(part);
    if (!layout.tied_copy.empty() && name == part.name + "." + layout.tied_copy)
      return directory.at(part.name + "." + layout.tied_to);
  }
  return directory.at(name);
}

} // namespace fvlm::quantize
