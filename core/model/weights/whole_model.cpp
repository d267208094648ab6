#include "model/weights/whole_model.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/fused_tensors.h"
#include "model/weights/stacked_experts.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;
using Prefix = WholeModelFamily::Prefix;

// What a Hugging Face folder has for its image processor. It goes with the encoder.
constexpr const char* image_processor_files[] = {"preprocessor_config.json", "video_preprocessor_config.json",
                                                 "processor_config.json"};

// `name`, which begins with `from`, with `to` in its place.
std::string with_prefix(const std::string& name, const std::string& from, const std::string& to) {
  return to + name.substr(from.size());
}

// Completes the config.
void say_whether_tied(Json& config, const WholeModelFamily& family, const Safetensors& file) {
  constexpr const char* key = "tie_word_embeddings";
  if (!family.head_decides_tying || config.contains(key)) return;
  config[key] = std::ranges::none_of(file.tensors(),
                                     [](const TensorView& tensor) { return tensor.name.ends_with("lm_head.weight"); });
}

// What the file calls tensors of the parts.
class FileNames {
 public:
  FileNames(const WholeModelFamily& family, const Safetensors& file) : family_(family), file_(file) {}

  std::string of(const std::string& name) const {
    const Prefix* first = nullptr;
    for (const Prefix& prefix : family_.names) {
      if (!name.starts_with(prefix.in_parts)) continue;
      if (!first) first = &prefix;
      if (is_used(prefix)) return with_prefix(name, prefix.in_parts, prefix.in_file);
    }
    return first ? with_prefix(name, first->in_parts, first->in_file) : name;
  }

 private:
  bool is_used(const Prefix& prefix) const {
    return std::ranges::any_of(file_.tensors(),
                               [&](const TensorView& tensor) { return tensor.name.starts_with(prefix.in_file); });
  }
  const WholeModelFamily& family_;
  const Safetensors& file_;
};

// Binds the tensors of all parts at once, so that what is wrong is said in the file's own names.
class Binding {
 public:
  Binding(const ModelDescription& description, const WholeModelFamily& family, const Json& config,
          const Safetensors& file)
      : names_(family, file), config_(config), file_(file) {
    for (const ModelPart& part : description.parts) add(part.name + ".", description.layout(part));
    const auto bound = bind(file, layout_);
    for (size_t i = 0; i < bound.size(); ++i) {
      if (bound[i]) by_part_name_.emplace(part_names_[i], bound[i]);
      if (const PackedScheme* scheme = scheme_of_codes(layout_.tensors[i]))
        schemes_.emplace(without_suffix(part_names_[i]), scheme);
    }
  }

  const std::map<std::string, const TensorView*>& tensors() const { return by_part_name_; }
  const WeightSchemes& schemes() const { return schemes_; }

  // The tensors of one part, under the names that a folder of its own has for them.
  Safetensors view_of(const ModelPart& part) const {
    std::vector<TensorView> named;
    const std::string prefix = part.name + ".";
    for (const auto& [name, tensor] : by_part_name_)
      if (name.starts_with(prefix)) named.emplace_back(*tensor).name = name.substr(prefix.size());
    return file_.view(std::move(named));
  }

  // {name in the file: name in the model directory}, a copy of a tied tensor too. Quantized weights are one name.
  Json names() const {
    Json out = Json::object();
    for (const auto& [name, tensor] : by_part_name_)
      if (const std::string weight = without_suffix(name); !schemes_.contains(weight))
        out[tensor->name] = name;
      else
        out[without_suffix(tensor->name)] = weight;
    if (!layout_.tied_copy.empty() && file_.find(layout_.tied_copy)) out[layout_.tied_copy] = tied_to_;
    return out;
  }

 private:
  // "X.weight" of "X.weight_packed", "X.weight_scale" and "X.weight_shape".
  static std::string without_suffix(const std::string& name) { return name.substr(0, name.rfind('_')); }

  void add(const std::string& part, const WeightLayout& layout) {
    const WeightLayout stored = stored_layout(
        layout, [&](const std::string& name) { return file_.find(names_.of(part + name)); }, config_,
        file_.path().string());
    for (const TensorSpec& spec : stored.tensors) {
      part_names_.push_back(part + spec.name);
      layout_.tensors.push_back(spec);
      layout_.tensors.back().name = names_.of(part_names_.back());
    }
    for (const std::string& pattern : layout.ignored) layout_.ignored.push_back(names_.of(part + pattern));
    if (layout.tied_copy.empty()) return;
    tied_to_ = part + layout.tied_to;
    layout_.tied_copy = names_.of(part + layout.tied_copy);
    layout_.tied_to = names_.of(tied_to_);
  }

  FileNames names_;
  const Json& config_;
  const Safetensors& file_;
  WeightLayout layout_; // of all parts, in the file's names
  std::vector<std::string> part_names_;
  std::string tied_to_;
  std::map<std::string, const TensorView*> by_part_name_;
  WeightSchemes schemes_;
};

bool belongs_to(Role role, const std::string& file, std::string_view content) {
  const bool is_of_images = std::ranges::any_of(image_processor_files, [&](const char* name) { return file == name; });
  if (role == Role::encoder) return is_of_images;
  // Of a processor of text and images, which may have the chat template.
  return !is_of_images ||
         (file == "processor_config.json" && Json::parse(content, nullptr, false).contains("chat_template"));
}

// Of the model directory, also what is no parameter.
const TensorView* find_tensor(const ModelDirectory& directory, const std::string& name) {
  for (const ModelPart& part : directory.description().parts)
    if (part.folder.weights && name.starts_with(part.name + "."))
      if (const TensorView* found = part.folder.weights->find(std::string_view(name).substr(part.name.size() + 1)))
        return found;
  for (const Parameter& parameter : directory.parameters())
    if (parameter.name == name) return parameter.view;
  return nullptr;
}

// `name`: of the weight in the folder.
void add_quantized(WholeModelForm& form, const std::string& name, const Parameter& parameter) {
  TensorSpec spec = *parameter.spec;
  spec.name = name;
  const auto views = stored_tensors(parameter);
  size_t i = 0;
  for (TensorSpec& each : packed_specs(spec, *parameter.scheme)) {
    form.tensors.emplace(each.name, views[i++].second);
    form.quantized.tensors.push_back(std::move(each));
  }
}

// Whether two models are made of parts of the same kinds and sizes.
bool same_parts(const ModelDescription& a, const ModelDescription& b) {
  return a.encoder() == b.encoder() && a.decoder() == b.decoder() &&
         config_json(a.connector()) == config_json(b.connector());
}

} // namespace

const WholeModelFamily& whole_model_family(const Json& config, const std::string& where) {
  const auto model_type = config.find("model_type");
  const std::string word =
      model_type != config.end() && model_type->is_string() ? model_type->get<std::string>() : std::string();
  std::vector<std::string> supported;
  for (const WholeModelFamily& family : whole_model_families()) {
    if (word == family.model_type) return family;
    supported.push_back(family.model_type);
  }
  throw Error(ErrorKind::data, word.empty()
                                   ? std::string("'model_type' is missing or no text")
                                   : fmt::format("model_type {} is not supported as a whole model", shown(word)))
      .at(where)
      .advise("supported: {}; the folders of an encoder and of a decoder by themselves are imported with "
              "--vision and --decoder",
              join(supported, ", "));
}

WholeModelParts read_whole_config(const Json& config, const std::string& where) {
  const WholeModelFamily& family = whole_model_family(config, where);
  ConfigReader reader(config, where);
  check_quantization_config(reader);
  WholeModelFamily::Configs configs = family.read(reader);
  const bool reads_text_only = configs.image_token_id < 0;
  // Beside an encoder heads are of their own in transformers: only Granite Docling's divides logits, and only
  // PaliGemma's bounds them.
  if (!reads_text_only && family.model_type != "granite_docling" && configs.decoder.contains("logits_scaling"))
    configs.decoder["logits_scaling"] = 1;
  if (!reads_text_only && family.model_type != "paligemma" && configs.decoder["model_type"] == "gemma2")
    configs.decoder["final_logit_softcapping"] = nullptr;
  reader.finish("");
  const std::string vision = where + ": vision_config", decoder = reads_text_only ? where : where + ": text_config";
  const DecoderConfig decoder_config = read_decoder_config(configs.decoder, decoder);
  if (configs.image_token_id >= decoder_config.vocab_size)
    throw Error(ErrorKind::data, "the image token {} is outside the vocabulary of {} tokens", configs.image_token_id,
                decoder_config.vocab_size)
        .at(where)
        .advise(
            "image_token_id (LLaVA: image_token_index) must be less than vocab_size of text_config; take config.json "
            "and weights of the same model");
  WholeModelParts out{{}, configs.image_token_id};
  out.parts = {{"vision", read_vision_config(configs.vision, vision), {.config = configs.vision}},
               {"connector", read_connector_config(configs.connector, where), {}},
               {"decoder", decoder_config, {.config = configs.decoder}}};
  return out;
}

WholeModel WholeModel::open(const fs::path& path) {
  HuggingFaceFolder source = HuggingFaceFolder::open_plain(path);
  const std::string where = (path / "config.json").string();
  const WholeModelFamily& family = whole_model_family(source.config, where);
  say_whether_tied(source.config, family, *source.weights);
  if (family.left_out && source.config.contains(family.left_out)) source.config[family.left_out] = nullptr;
  WholeModelParts read = read_whole_config(source.config, where);
  WholeModel out{{}, read.image_token_id, with_divided(*source.weights, family.fused), {}, {}};
  out.description.parts = std::move(read.parts);
  const Binding binding(out.description, family, source.config, out.file);
  out.tensors = binding.tensors();
  out.schemes = binding.schemes();
  for (ModelPart& part : out.description.parts) {
    if (part.role() == Role::connector) continue;
    part.folder.path = path;
    part.folder.weights = binding.view_of(part);
    for (const auto& file : source.carried)
      if (belongs_to(part.role(), file.name, file.text())) part.folder.carried.push_back(file);
    if (part.role() != Role::decoder) continue;
    part.folder.whole_model = {{"config", source.config}, {"tensors", binding.names()}};
    if (!source.stacks.empty()) part.folder.whole_model["stacks"] = source.stacks;
    if (!family.fused.empty()) part.folder.whole_model["fused"] = fused_names(*source.weights, family.fused);
  }
  return out;
}

WholeModelForm assemble(const ModelDirectory& directory) {
  const ModelDescription& description = directory.description();
  const ModelPart& decoder = description.sole_part(Role::decoder);
  const Json& whole = decoder.folder.whole_model;
  if (whole.is_null())
    throw Error(ErrorKind::data, "this model was not imported from one Hugging Face folder")
        .at(directory.path().string())
        .advise("export it without --huggingface: transformers loads its folders of encoder and decoder by themselves");
  const std::string where = (decoder.folder.path / HuggingFaceFolder::whole_model_file).string();
  ConfigReader reader(whole, where);
  const Json *config = reader.object("config"), *tensors = reader.object("tensors");
  if (!config || !tensors) reader.problems().add("'config' or 'tensors' is missing");
  reader.finish("the file was changed or damaged: import the model anew");

  WholeModelForm out{*config, {}, {}, {}};
  Problems problems;
  ModelDescription imported;
  imported.name = description.name;
  imported.parts = read_whole_config(*config, where).parts;
  if (!same_parts(description, imported))
    problems.add("its parts are of other kinds or sizes than those that were imported");
  std::map<std::string, bool> is_placed;
  std::map<std::string, const Parameter*> quantized;
  for (const Parameter& parameter : directory.parameters()) {
    is_placed[parameter.name] = false;
    if (parameter.scheme) quantized[parameter.name] = &parameter;
  }
  for (const auto& [name, part_name] : tensors->items()) {
    if (const auto weight = quantized.find(part_name.is_string() ? part_name.get<std::string>() : std::string());
        weight != quantized.end()) {
      add_quantized(out, name, *weight->second);
      is_placed[part_name] = true;
      continue;
    }
    const TensorView* found = part_name.is_string() ? find_tensor(directory, part_name) : nullptr;
    if (!found) {
      problems.add("tensor {} of the imported folder is not in the model", shown(name));
      continue;
    }
    out.tensors.emplace(name, found);
    is_placed[part_name] = true;
  }
  for (const auto& [name, placed] : is_placed)
    if (!placed) problems.add("parameter {} has no place in the imported folder", shown(name));
  problems.raise(directory.path().string(),
                 "a part was exchanged since the import: export it without --huggingface, as a model directory");
  stack_experts(out, whole.value("stacks", Json::object()), where);
  join(out, whole.value("fused", Json::array()), whole_model_family(*config, where).fused, where);
  return out;
}

} // namespace fvlm
