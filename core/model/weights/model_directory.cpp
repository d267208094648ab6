#include "model/weights/model_directory.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"
#include "base/path_hint.h"
#include "base/problems.h"
#include "base/text.h"
#include "model/weights/quantized_folder.h"
#include "model/weights/stacked_experts.h"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t largest_config = uint64_t{16} << 20;

// What transformers keeps beside weights and belongs to them.
constexpr const char* carried_files[] = {"LICENSE",
                                         "preprocessor_config.json",
                                         "video_preprocessor_config.json",
                                         "chat_template.json",
                                         "added_tokens.json",
                                         "NOTICE",
                                         "processor_config.json",
                                         "tokenizer.model",
                                         "merges.txt",
                                         "tokenizer.json",
                                         "vocab.json",
                                         "special_tokens_map.json",
                                         "tokenizer_config.json",
                                         "LICENSE.txt",
                                         "generation_config.json",
                                         "chat_template.jinja"};

HuggingFaceFolder open_folder(const fs::path& path, bool is_plain) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const bool is_there = fs::exists(path, ignored);
    std::string hint = is_there ? "" : hint_on_model(path);
    if (hint.empty()) hint = "name a Hugging Face folder: config.json and model.safetensors";
    throw Error(ErrorKind::data, is_there ? "this is no folder" : "there is no such folder")
        .at(path.string())
        .advise(is_there ? hint : with_start_of(path, hint));
  }
  HuggingFaceFolder out;
  out.path = path;
  out.config = read_json_object(path / "config.json", largest_config);
  out.weights = Safetensors::open(path);
  if (is_plain) out.weights = plain_weights(*out.weights, out.config, (path / "config.json").string());
  out.stacks = stacks_of(*out.weights);
  if (!out.stacks.empty()) out.weights = with_experts_apart(*out.weights, is_plain);
  out.config = encoder_config(std::move(out.config));
  out.carried = HuggingFaceFolder::carry(path);
  std::error_code none;
  if (fs::exists(path / HuggingFaceFolder::whole_model_file, none))
    out.whole_model = read_json_object(path / HuggingFaceFolder::whole_model_file, largest_config);
  return out;
}

} // namespace

HuggingFaceFolder HuggingFaceFolder::open(const fs::path& path) {
  return open_folder(path, false);
}

HuggingFaceFolder HuggingFaceFolder::open_plain(const fs::path& path) {
  return open_folder(path, true);
}

std::vector<HuggingFaceFolder::Carried> HuggingFaceFolder::carry(const fs::path& path) {
  std::vector<Carried> out;
  std::error_code ignored;
  for (const char* name : carried_files)
    if (fs::is_regular_file(path / name, ignored)) out.push_back({name, MappedFile::open(path / name)});
  return out;
}

void HuggingFaceFolder::change(const std::string& name, std::string text) {
  auto file = std::ranges::find_if(carried, [&](const auto& each) { return each.name == name; });
  if (file == carried.end()) file = carried.insert(file, {name, nullptr});
  file->changed = std::move(text);
}

const ModelPart& ModelDescription::sole_part(Role role) const {
  std::vector<std::string> names;
  const ModelPart* found = nullptr;
  for (const ModelPart& part : parts)
    if (part.role() == role) names.push_back((found = &part)->name);
  if (names.size() == 1) return *found;
  throw Error(ErrorKind::data, names.empty() ? fmt::format("the model has no {}", name_of(role))
                                             : fmt::format("the model has {} {}s where one is expected: {}",
                                                           names.size(), name_of(role), join(names, ", ")))
      .at(name);
}

std::vector<DecoderConfig> ModelDescription::decoders() const {
  if (!connector()->goes_with_several_decoders()) return {decoder()};
  std::vector<DecoderConfig> all;
  for (const ModelPart& part : parts)
    if (const auto* config = std::get_if<DecoderConfig>(&part.config)) all.push_back(*config);
  if (all.empty()) (void)decoder(); // throws
  return all;
}

std::vector<int64_t> ModelDescription::vocabulary_sizes() const {
  std::vector<int64_t> sizes;
  for (const DecoderConfig& decoder : decoders()) sizes.push_back(decoder.vocab_size);
  return sizes;
}

const ModelPart& ModelDescription::neighbour(const ModelPart& connector, const std::string& named, Role role) const {
  if (named.empty()) return sole_part(role);
  for (const ModelPart& part : parts)
    if (part.name == named && part.role() == role) return part;
  throw Error(ErrorKind::data, "the connector {} names the {} {}, and the model has none of that name",
              shown(connector.name), name_of(role), shown(named))
      .at(name);
}

WeightLayout ModelDescription::layout(const ModelPart& part) const {
  if (const auto* encoder = std::get_if<VisionConfig>(&part.config)) return layout_of(*encoder);
  if (const auto* decoder = std::get_if<DecoderConfig>(&part.config)) return layout_of(*decoder);
  const auto& config = std::get<ConnectorConfig>(part.config);
  const auto& encoder = std::get<VisionConfig>(neighbour(part, part.encoder, Role::encoder).config);
  if (part.decoder.empty() && config->goes_with_several_decoders()) return layout_of(config, encoder, decoders());
  return layout_of(config, encoder, {std::get<DecoderConfig>(neighbour(part, part.decoder, Role::decoder).config)});
}

bool ModelDescription::has_adapters() const {
  return std::ranges::any_of(parts, [](const ModelPart& part) { return part.adapter.has_value(); });
}

void ModelDescription::seal_bases() {
  for (ModelPart& part : parts)
    if (part.adapter) part.adapter->base.checksum = base_checksum(*part.folder.weights);
}

struct ModelDirectory::Content {
  struct Checked {
    std::string name;
    const TensorView* view;
    uint64_t checksum;
  };
  fs::path path;
  ModelDescription description;
  // One a part.
  std::vector<Safetensors> files;
  std::vector<WeightLayout> layouts, adapter_layouts;
  std::vector<Parameter> parameters;
  std::unordered_map<std::string_view, size_t> by_name; // in `parameters`
  std::vector<Checked> checked;

  void note_checksum(const std::string& name, const TensorView* view, const ModelFile& model_file,
                     std::unordered_set<std::string>& names, Problems& problems) {
    names.insert(name);
    if (!model_file.checksums) return;
    const auto checksum = model_file.checksums->find(name);
    if (checksum == model_file.checksums->end())
      problems.add("there is no checksum of {}", shown(name));
    else
      checked.push_back({name, view, checksum->second});
  }

  void bind_all(const ModelFile& model_file) {
    Problems problems;
    std::unordered_set<std::string> names;
    try {
      for (const ModelPart& part : description.parts) {
        layouts.push_back(description.layout(part));
        adapter_layouts.push_back(part.adapter ? adapter_layout(*part.adapter, layouts.back()) : WeightLayout());
      }
    } catch (Error& error) { // a connector without its neighbours
      error.at((path / ModelFile::name).string());
      throw;
    }
    for (size_t part = 0; part < layouts.size(); ++part) {
      const WeightLayout stored = stored_layout(layouts[part], files[part], description.parts[part].folder.config);
      const auto bound = bind(files[part], stored);
      const std::string prefix = description.parts[part].name + ".";
      const std::optional<PartAdapter>& adapter = description.parts[part].adapter;
      for (size_t i = 0; i < bound.size() && !adapter; ++i)
        if (bound[i]) note_checksum(prefix + stored.tensors[i].name, bound[i], model_file, names, problems);
      size_t i = 0; // in the file: three tensors for a quantized weight
      for (const TensorSpec& spec : layouts[part].tensors) {
        const PackedScheme* scheme = scheme_of_codes(stored.tensors[i]);
        if (scheme && std::memcmp(bound[i + 2]->data.data(), spec.shape.data(), 2 * sizeof(int64_t)) != 0)
          problems.add("{}{}_shape is not the shape of this model's weight, {}", prefix, spec.name,
                       shape_text(spec.shape));
        if (bound[i] && spec.parameter && !(adapter && adapter->saves(spec.name)))
          parameters.push_back({prefix + spec.name, part, &spec, bound[i], scheme, scheme ? bound[i + 1] : nullptr,
                                scheme ? bound[i + 2] : nullptr});
        i += scheme ? 3 : 1;
      }
      if (!adapter) continue;
      for (const TensorSpec& spec : adapter_layouts[part].tensors) {
        const TensorView& view = adapter->weights->at(spec.name);
        note_checksum(prefix + spec.name, &view, model_file, names, problems);
        parameters.push_back({prefix + spec.name, part, &spec, &view, nullptr, nullptr, nullptr, true});
      }
    }
    for (const auto& [name, checksum] : model_file.checksums.value_or(decltype(model_file.checksums)::value_type()))
      if (!names.contains(name)) problems.add("there is a checksum of {}, and no such tensor", shown(name));
    problems.raise((path / ModelFile::name).string(), "the directory was put together from several: import it anew");
    for (size_t i = 0; i < parameters.size(); ++i) by_name.emplace(parameters[i].name, i);
  }
};

namespace {

// The folder of a part's frozen weights.
HuggingFaceFolder open_base(const fs::path& path, const ModelFile::Part& listed) {
  std::error_code ignored;
  if (fs::is_directory(listed.base->folder, ignored)) return HuggingFaceFolder::open(listed.base->folder);
  throw Error(ErrorKind::data, "these are adapters, and the weights that they were trained on are not in {}",
              shown(listed.base->folder))
      .at((path / ModelFile::name).string())
      .advise("put the base of the part {} back there, or write its new place into \"base\" of this file",
              shown(listed.name));
}

// A part's config and, in the same order, its weights.
std::pair<ModelPart, Safetensors> open_part(const fs::path& path, const ModelFile::Part& listed) {
  ModelPart part{.name = listed.name};
  const fs::path location = path / listed.location;
  if (listed.role == Role::connector) {
    part.config = listed.connector;
    part.encoder = listed.encoder, part.decoder = listed.decoder;
    std::error_code ignored;
    if (!fs::exists(location, ignored))
      throw Error(ErrorKind::data, "the weights of the part {} are not there: {}", shown(listed.name),
                  shown(listed.location))
          .at(location.string())
          .advise("copy the whole model directory, or write it anew: `fvlm-engine import` makes new weights of a "
                  "connector, and training writes its own into each checkpoint");
    return {std::move(part), Safetensors::open(location)};
  }
  part.folder = listed.base ? open_base(path, listed) : HuggingFaceFolder::open(location);
  const std::string where = (location / "config.json").string();
  const auto same_type = [&](const std::string& model_type) {
    if (listed.model_type.empty() || listed.model_type == model_type) return;
    throw Error(ErrorKind::data, "model_type is {}, and {} lists {}", shown(model_type), ModelFile::name,
                shown(listed.model_type))
        .at(where)
        .advise("the directory was put together from several: import it anew");
  };
  if (listed.role == Role::encoder) {
    VisionConfig config = read_vision_config(part.folder.config, where);
    same_type(config.model_type);
    part.config = std::move(config);
  } else {
    DecoderConfig config = read_decoder_config(part.folder.config, where);
    same_type(config.model_type);
    part.config = std::move(config);
  }
  if (listed.base) {
    const auto* encoder = std::get_if<VisionConfig>(&part.config);
    part.adapter =
        read_adapter(location, encoder ? layout_of(*encoder) : layout_of(std::get<DecoderConfig>(part.config)));
    part.adapter->base = {listed.base->folder, listed.base->checksum};
    // The image processor may have other limits than that of the base.
    part.folder.carried = HuggingFaceFolder::carry(location);
  }
  Safetensors weights = *part.folder.weights;
  return {std::move(part), std::move(weights)};
}

} // namespace

ModelDirectory ModelDirectory::open(const fs::path& path) {
  auto content = std::make_shared<Content>();
  content->path = path;
  ModelFile model_file = ModelFile::read(path);
  ModelDescription& description = content->description;
  description.name = model_file.model;
  description.stage = model_file.stage;
  description.step = model_file.step;
  description.plan_hash = model_file.plan_hash;
  for (const ModelFile::Part& listed : model_file.parts) {
    auto [part, weights] = open_part(path, listed);
    description.parts.push_back(std::move(part));
    content->files.push_back(std::move(weights));
  }
  content->bind_all(model_file);
  return ModelDirectory(std::move(content));
}

const fs::path& ModelDirectory::path() const {
  return content_->path;
}

const ModelDescription& ModelDirectory::description() const {
  return content_->description;
}

const std::vector<Parameter>& ModelDirectory::parameters() const& {
  return content_->parameters;
}

const Parameter& ModelDirectory::at(std::string_view name) const& {
  auto found = content_->by_name.find(name);
  if (found != content_->by_name.end()) return parameters()[found->second];
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters()) names.push_back(parameter.name);
  Error error(ErrorKind::data, "the model has no parameter {}", shown(name));
  error.at(path().string());
  if (auto near = nearest(name, names)) error.advise("the nearest name is " + shown(*near));
  throw error;
}

std::vector<std::pair<std::string, const TensorView*>> stored_tensors(const Parameter& parameter) {
  if (!parameter.scheme) return {{parameter.name, parameter.view}};
  return {{parameter.name + "_packed", parameter.view},
          {parameter.name + "_scale", parameter.scale},
          {parameter.name + "_shape", parameter.shape}};
}

WeightSchemes ModelDirectory::schemes() const {
  WeightSchemes schemes;
  for (const Parameter& parameter : parameters())
    if (parameter.scheme) schemes.emplace(parameter.name, parameter.scheme);
  return schemes;
}

void ModelDirectory::require_plain(const char* reader) const {
  for (const Parameter& parameter : parameters())
    if (parameter.scheme)
      throw Error(ErrorKind::data, "the model is quantized ({} to {}), and {} needs plain weights",
                  shown(parameter.name), parameter.scheme->name, reader)
          .at(path().string())
          .advise("use the model that it was quantized from");
}

void ModelDirectory::require_no_adapters(const char* reader) const {
  if (description().has_adapters())
    throw Error(ErrorKind::data, "the model has adapters on a base, and {} needs plain weights", reader)
        .at(path().string())
        .advise("`fvlm-engine lora merge` adds them to the base");
}

void ModelDirectory::verify_bases() const {
  for (const ModelPart& part : description().parts)
    if (part.adapter && base_checksum(*part.folder.weights) != part.adapter->base.checksum)
      throw Error(ErrorKind::data, "the weights in {} are not those that the adapters of the part {} were trained on",
                  shown(part.adapter->base.folder), shown(part.name))
          .at((path() / ModelFile::name).string())
          .advise("put the base back as it was; what was trained on other weights cannot be used with these");
}

void ModelDirectory::drop(const Parameter& parameter) const {
  if (parameter.of_adapter) return; // a few pages
  content_->files[parameter.part].drop(*parameter.view);
}

void ModelDirectory::verify() const {
  Problems problems;
  for (const Content::Checked& one : content_->checked) {
    Xxh64 hash;
    hash.update(one.view->data);
    if (hash.value() != one.checksum)
      problems.add("the bytes of {} are not those that were written: their checksum is {:016x}, and should be {:016x}",
                   one.name, hash.value(), one.checksum);
  }
  problems.raise(path().string(), "the files are damaged, or were changed by another program: fetch or import it anew");
  verify_bases();
}

} // namespace fvlm
