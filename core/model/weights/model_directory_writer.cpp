// ModelDirectoryWriter.
#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"
#include "model/weights/convert.h"
#include "model/weights/initialize.h"
#include "model/weights/model_directory.h"

#include <algorithm>
#include <map>
#include <set>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

// As transformers spells the element type in config.json.
const char* torch_name(DType dtype) {
  return dtype == DType::bf16  ? "bfloat16"
         : dtype == DType::f16 ? "float16"
         : dtype == DType::f64 ? "float64"
                               : "float32";
}

// Where a part's weights lie in a directory that is written here.
std::string location_of(const ModelPart& part) {
  return part.role() == Role::connector ? part.name + ".safetensors" : part.name;
}

// In the model directory, of a tensor in the part's file.
std::string own_name(const ModelPart& part, const WeightLayout& layout, const std::string& tensor) {
  return part.name + "." + (part.adapter ? name_of_peft(tensor, layout) : tensor);
}

} // namespace

void HuggingFaceFolder::set_dtype(nlohmann::json& config, const std::vector<TensorInfo>& tensors) {
  // What a quantized weight is stored as is no element type of the model.
  std::set<DType> types;
  for (const TensorInfo& tensor : tensors)
    if (is_floating(tensor.dtype) && !tensor.name.ends_with(".weight_scale")) types.insert(tensor.dtype);
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] =
      torch_name(types.size() == 1 ? *types.begin() : DType::f32);
}

void HuggingFaceFolder::set_quantization(nlohmann::json& config, const WeightLayout& stored) {
  config.erase("quantization_config");
  QuantizedModules modules;
  for (size_t i = 0; i < stored.tensors.size(); ++i) {
    const TensorSpec& codes = stored.tensors[i];
    const PackedScheme* scheme = scheme_of_codes(codes);
    if (!scheme) continue;
    const int64_t groups = stored.tensors[i + 1].shape[1],
                  group = groups == 1 ? 0 : codes.shape[1] * 32 / scheme->bits / groups;
    modules[{scheme, group}].push_back(codes.name.substr(0, codes.name.rfind('.')));
  }
  if (!modules.empty()) config["quantization_config"] = quantization_config(modules);
}

ModelDirectoryWriter::ModelDirectoryWriter(fs::path path, ModelDescription description,
                                           const std::function<DType(const std::string&)>& dtype_of,
                                           const WeightSchemes& schemes)
    : folder_(std::move(path)), description_(std::move(description)) {
  for (size_t i = 0; i < description_.parts.size(); ++i) open_part(i, dtype_of, schemes);
  missing_ = steps_.empty() ? 0 : steps_[0].info.byte_size();
  pass_over();
}

void ModelDirectoryWriter::open_part(size_t index, const std::function<DType(const std::string&)>& dtype_of,
                                     const WeightSchemes& schemes) {
  const ModelPart& part = description_.parts[index];
  if (part.adapter) return open_adapter(index, dtype_of);
  WeightLayout layout = description_.layout(part);
  const std::string prefix = part.name + ".";
  const DType first = layout.tensors.empty() ? DType::f32 : dtype_of(prefix + layout.tensors[0].name);
  std::vector<TensorInfo> tensors;
  std::vector<TensorSpec> stored;
  for (const TensorSpec& spec : layout.tensors) {
    const auto scheme = schemes.find(prefix + spec.name);
    if (scheme == schemes.end()) {
      tensors.push_back({spec.name, spec.parameter ? dtype_of(prefix + spec.name) : first, spec.shape});
      stored.push_back(spec);
      continue;
    }
    for (TensorSpec& each : packed_specs(spec, *scheme->second)) {
      tensors.push_back({each.name, each.dtype.value_or(DType::f32), each.shape});
      stored.push_back(std::move(each));
    }
  }
  layout.tensors = std::move(stored);
  fs::path file = folder() / location_of(part);
  if (part.role() != Role::connector) {
    make_folders(file);
    file /= "model.safetensors";
  }
  const auto& writer = writers_.emplace_back(file, std::move(tensors));
  for (const TensorInfo& tensor : writer.order()) {
    auto spec = std::ranges::find(layout.tensors, tensor.name, &TensorSpec::name);
    steps_.push_back({index, tensor, spec->parameter});
    if (spec->parameter) order_.push_back({prefix + tensor.name, tensor.dtype, tensor.shape});
  }
  if (part.role() != Role::connector) write_config(index, layout);
}

// The adapters alone, in PEFT's form, and beside them what goes along with the base.
void ModelDirectoryWriter::open_adapter(size_t index, const std::function<DType(const std::string&)>& dtype_of) {
  const ModelPart& part = description_.parts[index];
  const WeightLayout base = description_.layout(part), layout = adapter_layout(*part.adapter, base);
  const fs::path folder = this->folder() / location_of(part);
  make_folders(folder);
  std::vector<TensorInfo> tensors;
  for (const TensorSpec& spec : layout.tensors)
    tensors.push_back({peft_name(spec.name), dtype_of(part.name + "." + spec.name), spec.shape});
  const auto& writer = writers_.emplace_back(folder / PartAdapter::weights_file, std::move(tensors));
  for (const TensorInfo& tensor : writer.order()) {
    steps_.push_back({index, {name_of_peft(tensor.name, base), tensor.dtype, tensor.shape}, true});
    order_.push_back({own_name(part, base, tensor.name), tensor.dtype, tensor.shape});
  }
  write_file_atomic(folder / PartAdapter::config_file, peft_config(*part.adapter, base).json().dump(2) + "\n");
  write_beside(part, part.folder.config);
}

// config.json with the element type that the weights have now, and the files that go along.
void ModelDirectoryWriter::write_config(size_t index, const WeightLayout& stored) {
  const ModelPart& part = description_.parts[index];
  nlohmann::json config = part.folder.config;
  const auto* encoder = std::get_if<VisionConfig>(&part.config);
  config["architectures"] = {encoder ? architecture_of(*encoder)
                                     : architecture_of(std::get<DecoderConfig>(part.config))};
  HuggingFaceFolder::set_dtype(config, writers_[index].order());
  HuggingFaceFolder::set_quantization(config, stored);
  write_beside(part, config);
}

void ModelDirectoryWriter::write_beside(const ModelPart& part, const nlohmann::json& config) {
  const fs::path folder = this->folder() / location_of(part);
  write_file_atomic(folder / "config.json", config.dump(2) + "\n");
  if (!part.folder.whole_model.is_null())
    write_file_atomic(folder / HuggingFaceFolder::whole_model_file, part.folder.whole_model.dump(1) + "\n");
  for (const auto& file : part.folder.carried) write_file_atomic(folder / file.name, file.text());
}

// A tensor that is no parameter: what the part's own folder has, or else what a fresh part would have.
std::vector<std::byte> ModelDirectoryWriter::passenger_bytes(const Step& step) const {
  const ModelPart& part = description_.parts[step.part];
  const WeightLayout layout = description_.layout(part);
  const HuggingFaceFolder& folder = part.folder;
  std::vector<std::byte> out(step.info.byte_size());
  for (const char* prefix : {"", layout.optional_prefix.c_str()})
    if (const TensorView* found = folder.weights ? folder.weights->find(prefix + step.info.name) : nullptr) {
      if (!found->reader) {
        convert(found->data, found->dtype, out, step.info.dtype);
        return out;
      }
      std::vector<std::byte> numbers(step.info.elements() * size_of(found->reader->type()));
      found->reader->read(0, numbers);
      convert(numbers, found->reader->type(), out, step.info.dtype);
      return out;
    }
  auto spec = std::ranges::find(layout.tensors, step.info.name, &TensorSpec::name);
  std::vector<float> values(step.info.elements());
  initialize_weights(values, spec->fill, 0, step.info.name);
  convert(std::as_bytes(std::span(values)), DType::f32, out, step.info.dtype);
  return out;
}

// Goes on to the next parameter that wants bytes, and writes what is none on the way.
void ModelDirectoryWriter::pass_over() {
  while (next_ < steps_.size() && (missing_ == 0 || !steps_[next_].parameter)) {
    if (!steps_[next_].parameter) writers_[steps_[next_].part].append(passenger_bytes(steps_[next_]));
    if (++next_ < steps_.size()) missing_ = steps_[next_].info.byte_size();
  }
}

void ModelDirectoryWriter::append(std::span<const std::byte> bytes) {
  if (next_ == steps_.size() || bytes.size() > missing_)
    throw Error(ErrorKind::internal, "more bytes than {} has",
                next_ == steps_.size() ? "the model" : shown(steps_[next_].info.name));
  writers_[steps_[next_].part].append(bytes);
  missing_ -= bytes.size();
  pass_over();
}

void ModelDirectoryWriter::commit() {
  if (!finished_) finish();
  folder_.commit();
}

void ModelDirectoryWriter::finish() {
  ModelFile file{.model = description_.name,
                 .stage = description_.stage,
                 .plan_hash = description_.plan_hash,
                 .step = description_.step};
  auto& noted = file.checksums.emplace();
  for (size_t part = 0; part < writers_.size(); ++part) {
    const ModelPart& described = description_.parts[part];
    auto& listed = file.parts.emplace_back();
    listed.name = described.name, listed.role = described.role(), listed.location = location_of(described);
    listed.encoder = described.encoder, listed.decoder = described.decoder;
    if (const auto* encoder = std::get_if<VisionConfig>(&described.config)) listed.model_type = encoder->model_type;
    if (const auto* decoder = std::get_if<DecoderConfig>(&described.config)) listed.model_type = decoder->model_type;
    if (described.adapter) listed.base = {described.adapter->base.folder, described.adapter->base.checksum};
    if (const auto* connector = std::get_if<ConnectorConfig>(&described.config)) listed.connector = *connector;
    const WeightLayout layout = description_.layout(described);
    const auto checksums = writers_[part].commit();
    for (size_t i = 0; i < checksums.size(); ++i)
      noted.emplace(own_name(described, layout, writers_[part].order()[i].name), checksums[i]);
  }
  write_file_atomic(folder() / ModelFile::name, file.text());
  finished_ = true;
}

} // namespace fvlm
