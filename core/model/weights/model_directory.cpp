#include "model/weights/model_directory.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"
#include "base/path_hint.h"
#include "base/problems.h"
#include "base/text.h"
#include "model/weights/model_file.h"

#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t largest_config = uint64_t{16} << 20;

// What transformers keeps beside weights and belongs to them.
constexpr const char* carried_files[] = {
    "LICENSE",     "preprocessor_config.json", "chat_template.json", "added_tokens.json",       "NOTICE",
    "merges.txt",  "tokenizer.json",           "vocab.json",         "special_tokens_map.json", "tokenizer_config.json",
    "LICENSE.txt", "generation_config.json",   "chat_template.jinja"};

} // namespace

const char* name_of(Part part) {
  constexpr std::array<const char*, all_parts.size()> names{"vision", "connector", "decoder"};
  return names[static_cast<size_t>(part)];
}

HuggingFaceFolder HuggingFaceFolder::open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const std::string hint = fs::exists(path, ignored) ? "" : hint_on_model(path);
    throw Error(ErrorKind::data, fs::exists(path, ignored) ? "this is no folder" : "there is no such folder")
        .at(path.string())
        .advise(hint.empty() ? "name a Hugging Face folder: config.json and model.safetensors" : hint);
  }
  HuggingFaceFolder out;
  out.path = path;
  out.config = read_json_object(path / "config.json", largest_config);
  out.weights = Safetensors::open(path);
  out.carried = carry(path);
  return out;
}

std::vector<HuggingFaceFolder::Carried> HuggingFaceFolder::carry(const fs::path& path) {
  std::vector<Carried> out;
  std::error_code ignored;
  for (const char* name : carried_files)
    if (fs::is_regular_file(path / name, ignored)) out.push_back({name, MappedFile::open(path / name)});
  return out;
}

WeightLayout ModelDescription::layout(Part part) const {
  switch (part) {
  case Part::vision:
    return layout_of(vision);
  case Part::connector:
    return layout_of(connector, vision, decoder);
  case Part::decoder:
    return layout_of(decoder);
  }
  throw Error(ErrorKind::internal, "no such part of a model");
}

struct ModelDirectory::Content {
  struct Checked {
    std::string name;
    const TensorView* view;
    uint64_t checksum;
  };
  fs::path path;
  ModelDescription description;
  std::array<std::optional<Safetensors>, all_parts.size()> files;
  std::array<WeightLayout, all_parts.size()> layouts;
  std::vector<Parameter> parameters;
  std::unordered_map<std::string_view, size_t> by_name; // in `parameters`
  std::vector<Checked> checked;

  void bind_all(const ModelFile& model_file) {
    Problems problems;
    std::unordered_set<std::string> names;
    for (Part part : all_parts) {
      auto index = static_cast<size_t>(part);
      layouts[index] = description.layout(part);
      auto bound = bind(*files[index], layouts[index]);
      for (size_t i = 0; i < bound.size(); ++i) {
        const TensorSpec& spec = layouts[index].tensors[i];
        std::string name = std::string(name_of(part)) + "." + spec.name;
        if (!bound[i]) continue;
        if (model_file.checksums) {
          auto checksum = model_file.checksums->find(name);
          if (checksum == model_file.checksums->end())
            problems.add("there is no checksum of {}", shown(name));
          else
            checked.push_back({name, bound[i], checksum->second});
        }
        names.insert(name);
        if (spec.parameter) parameters.push_back({std::move(name), part, &spec, bound[i]});
      }
    }
    for (const auto& [name, checksum] : model_file.checksums.value_or(decltype(model_file.checksums)::value_type()))
      if (!names.contains(name)) problems.add("there is a checksum of {}, and no such tensor", shown(name));
    problems.raise((path / ModelFile::name).string(), "the directory was put together from several: import it anew");
    for (size_t i = 0; i < parameters.size(); ++i) by_name.emplace(parameters[i].name, i);
  }
};

ModelDirectory ModelDirectory::open(const fs::path& path) {
  auto content = std::make_shared<Content>();
  content->path = path;
  ModelFile model_file = ModelFile::read(path);
  ModelDescription& description = content->description;
  description.name = model_file.model;
  description.stage = model_file.stage;
  description.step = model_file.step;
  description.plan_hash = model_file.plan_hash;
  description.connector = model_file.connector;
  description.vision_folder = HuggingFaceFolder::open(path / "vision");
  description.decoder_folder = HuggingFaceFolder::open(path / "decoder");
  description.vision = read_vision_config(description.vision_folder.config, (path / "vision/config.json").string());
  description.decoder = read_decoder_config(description.decoder_folder.config, (path / "decoder/config.json").string());
  content->files = {description.vision_folder.weights, Safetensors::open(path / "connector.safetensors"),
                    description.decoder_folder.weights};
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
  Error error(ErrorKind::data, fmt::format("the model has no parameter {}", shown(name)));
  error.at(path().string());
  if (auto near = nearest(name, names)) error.advise("the nearest name is " + shown(*near));
  throw error;
}

void ModelDirectory::drop(const Parameter& parameter) const {
  content_->files[static_cast<size_t>(parameter.part)]->drop(*parameter.view);
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
}

} // namespace fvlm
