#include "model/weights/attached_adapter.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/resolve_model.h"

#include <algorithm>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

ModelPart& adaptable_part(ModelDescription& description, const std::string& name, const fs::path& where) {
  std::vector<std::string> names;
  for (ModelPart& part : description.parts) {
    if (part.role() == Role::connector) continue;
    if (part.name == name) return part;
    names.push_back(part.name);
  }
  throw Error(ErrorKind::usage, "the model has no part '{}' that can have an adapter", name)
      .at(where.string())
      .advise("--part names one of " + join(names, ", "));
}

void put_adapter(AttachedAdapter& attached, ModelPart& part, PartAdapter adapter) {
  adapter.base.folder = fs::weakly_canonical(part.folder.path).string();
  for (const TensorView& view : adapter.weights->tensors()) attached.tensors[part.name + "." + view.name] = view;
  part.adapter = std::move(adapter);
}

// Replaces a parameter that was trained whole.
void put(AttachedAdapter& attached, const ModelDirectory& base, const std::string& name, const TensorView& view,
         const fs::path& file) {
  const Parameter& parameter = base.at(name);
  if (parameter.scheme || parameter.spec->shape != view.shape)
    throw Error(ErrorKind::data, "the adapter has {} whole with the shape {}, and the model has it {}", shown(name),
                shape_text(view.shape),
                parameter.scheme ? "quantized" : "with the shape " + shape_text(parameter.spec->shape))
        .at(file.string())
        .advise("name the base that it was trained on");
  attached.tensors[name] = view;
}

void put_part(AttachedAdapter& attached, const ModelDirectory& base, ModelPart& part, std::vector<PeftTensor> tensors) {
  const PeftFolder& source = *attached.peft;
  const auto is_lora = [](const PeftTensor& each) { return each.view.name.find(".lora_") != std::string::npos; };
  if (part.role() == Role::connector) {
    for (MergedWeight& weight : merged_weights(source, tensors, base, part.name)) {
      const MergedWeight& kept = attached.merged.emplace_back(std::move(weight));
      attached.tensors[kept.name] = kept.view();
    }
  } else if (std::ranges::any_of(tensors, is_lora)) {
    return put_adapter(attached, part, adapter_of(source, std::move(tensors), base.description().layout(part)));
  }
  for (const PeftTensor& each : tensors)
    if (!is_lora(each)) put(attached, base, part.name + "." + each.view.name, each.view, source.file.path());
}

bool has_same_config(const ModelPart& part, const ModelPart& other) {
  if (part.role() != other.role() || part.name != other.name) return false;
  if (const auto* config = std::get_if<VisionConfig>(&part.config))
    return *config == std::get<VisionConfig>(other.config);
  if (const auto* config = std::get_if<DecoderConfig>(&part.config))
    return *config == std::get<DecoderConfig>(other.config);
  return config_json(std::get<ConnectorConfig>(part.config)) == config_json(std::get<ConnectorConfig>(other.config));
}

} // namespace

AdapterReader::AdapterReader(ModelDirectory base) : base_(std::move(base)) {
  if (base_.description().has_adapters())
    throw Error(ErrorKind::data, "the model has adapters itself, and others cannot stand beside it")
        .at(base_.path().string())
        .advise(
            "name the model that these are on, and them as adapters; or merge them first (`fvlm-engine lora merge`)");
}

AttachedAdapter AdapterReader::read_peft(const fs::path& folder, const std::optional<std::string>& part) const {
  AttachedAdapter attached{.description = base_.description()};
  if (part) {
    ModelPart& adapted = adaptable_part(attached.description, *part, base_.path());
    put_adapter(attached, adapted, read_adapter(folder, base_.description().layout(adapted)));
    return attached;
  }
  attached.peft = PeftFolder::open(folder);
  WholeAdapter whole = divide(*attached.peft, base_);
  if (whole.parts.empty())
    throw Error(ErrorKind::data, "the adapter has no tensors for this model")
        .at(attached.peft->file.path().string())
        .advise("name the base that it was trained on");
  for (ModelPart& each : attached.description.parts)
    if (const auto found = whole.parts.find(each.name); found != whole.parts.end())
      put_part(attached, base_, each, std::move(found->second));
  attached.idle = std::move(whole.idle);
  return attached;
}

uint64_t AdapterReader::checksum_of(const ModelPart& part) {
  const auto [found, is_new] = checksums_.try_emplace(part.name);
  if (is_new) found->second = base_checksum(*part.folder.weights);
  return found->second;
}

AttachedAdapter AdapterReader::read_directory(const fs::path& folder) {
  AttachedAdapter attached{.description = base_.description(), .directory = ModelDirectory::open(folder)};
  const ModelDescription& found = attached.directory->description();
  if (!found.has_adapters())
    throw Error(ErrorKind::data, "the model has no adapters")
        .at(folder.string())
        .advise("run it as a model of its own");
  if (!std::ranges::equal(found.parts, base_.description().parts, has_same_config))
    throw Error(ErrorKind::data, "the adapters are on a model of other parts or settings than {}",
                base_.path().string())
        .at(folder.string())
        .advise("name the model that they were trained on");
  for (size_t i = 0; i < found.parts.size(); ++i) {
    const ModelPart& part = found.parts[i];
    if (!part.adapter) continue;
    if (const uint64_t own = checksum_of(base_.description().parts[i]); own != part.adapter->base.checksum)
      throw Error(ErrorKind::data,
                  "the adapters of the part {} are on the weights of {} (checksum {:016x}), and those of {} are others "
                  "({:016x})",
                  shown(part.name), shown(part.adapter->base.folder), part.adapter->base.checksum,
                  base_.path().string(), own)
          .at(folder.string())
          .advise("name the model that they were trained on");
    attached.description.parts[i].adapter = part.adapter;
  }
  for (const Parameter& parameter : attached.directory->parameters()) {
    const ModelPart& part = found.parts[parameter.part];
    if (part.adapter && !parameter.of_adapter) continue;
    if (!parameter.of_adapter) {
      const Parameter& own = base_.at(parameter.name);
      if (own.scheme == parameter.scheme && own.view->dtype == parameter.view->dtype &&
          std::ranges::equal(own.view->data, parameter.view->data))
        continue;
      if (parameter.scheme)
        throw Error(ErrorKind::data, "{} is quantized beside the adapters, and the model has other numbers for it",
                    shown(parameter.name))
            .at(folder.string());
    }
    attached.tensors[parameter.name] = *parameter.view;
  }
  return attached;
}

AttachedAdapter AdapterReader::read(const fs::path& folder) {
  if (fs::exists(folder / PartAdapter::config_file)) return read_peft(folder);
  const fs::path model = resolve_model(folder);
  if (fs::exists(model / ModelFile::name)) return read_directory(model);
  throw Error(ErrorKind::data, "there is neither {} of PEFT nor {} of a checkpoint", PartAdapter::config_file,
              ModelFile::name)
      .at(folder.string())
      .advise("name a folder that PEFT or `fvlm-engine lora export` wrote, or a checkpoint with adapters");
}

} // namespace fvlm
