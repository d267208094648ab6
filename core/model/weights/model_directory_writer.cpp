// ModelDirectoryWriter.
#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"
#include "model/weights/convert.h"
#include "model/weights/initialize.h"
#include "model/weights/model_directory.h"
#include "model/weights/model_file.h"

#include <fmt/format.h>

#include <algorithm>

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

fs::path file_of(Part part) {
  return part == Part::connector ? "connector.safetensors" : fs::path(name_of(part)) / "model.safetensors";
}

} // namespace

ModelDirectoryWriter::ModelDirectoryWriter(fs::path path, ModelDescription description,
                                           const std::function<DType(const std::string&)>& dtype_of)
    : folder_(std::move(path)), description_(std::move(description)) {
  for (Part part : {Part::vision, Part::decoder}) make_folders(folder() / name_of(part));
  for (Part part : all_parts) {
    WeightLayout layout = description_.layout(part);
    std::string prefix = std::string(name_of(part)) + ".";
    DType first = dtype_of(prefix + layout.tensors.at(0).name);
    std::vector<TensorInfo> tensors;
    for (const TensorSpec& spec : layout.tensors)
      tensors.push_back({spec.name, spec.parameter ? dtype_of(prefix + spec.name) : first, spec.shape});
    auto& writer = writers_[static_cast<size_t>(part)].emplace(folder() / file_of(part), std::move(tensors));
    for (const TensorInfo& tensor : writer.order()) {
      auto spec = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                               [&](const TensorSpec& one) { return one.name == tensor.name; });
      steps_.push_back({static_cast<size_t>(part), tensor, spec->parameter});
      if (spec->parameter) order_.push_back({prefix + tensor.name, tensor.dtype, tensor.shape});
    }
  }
  write_tower(Part::vision, description_.vision_folder, architecture_of(description_.vision));
  write_tower(Part::decoder, description_.decoder_folder, architecture_of(description_.decoder));
  missing_ = steps_[0].info.byte_size();
  pass_over();
}

// config.json with the element type that the weights have now, and the files that go along.
void ModelDirectoryWriter::write_tower(Part part, const HuggingFaceFolder& source, const char* architecture) {
  nlohmann::json config = source.config;
  config["architectures"] = {architecture};
  const auto& tensors = writers_[static_cast<size_t>(part)]->order();
  bool alike =
      std::all_of(tensors.begin(), tensors.end(), [&](const TensorInfo& one) { return one.dtype == tensors[0].dtype; });
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(alike ? tensors[0].dtype : DType::f32);
  fs::path folder = this->folder() / name_of(part);
  write_file_atomic(folder / "config.json", config.dump(2) + "\n");
  for (const auto& file : source.carried) write_file_atomic(folder / file.name, file.content->text());
}

// A tensor that is no parameter: what the tower's own folder has, or else what a fresh tower would have.
std::vector<std::byte> ModelDirectoryWriter::passenger_bytes(const Step& step) const {
  WeightLayout layout = description_.layout(all_parts[step.part]);
  const HuggingFaceFolder& folder =
      all_parts[step.part] == Part::vision ? description_.vision_folder : description_.decoder_folder;
  std::vector<std::byte> out(step.info.byte_size());
  for (const char* prefix : {"", layout.optional_prefix.c_str()})
    if (const TensorView* found = folder.weights ? folder.weights->find(prefix + step.info.name) : nullptr) {
      convert(found->data, found->dtype, out, step.info.dtype);
      return out;
    }
  auto spec = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                           [&](const TensorSpec& one) { return one.name == step.info.name; });
  std::vector<float> values(step.info.elements());
  initialize_weights(values, spec->fill, 0, step.info.name);
  convert(std::as_bytes(std::span(values)), DType::f32, out, step.info.dtype);
  return out;
}

// Goes on to the next parameter that wants bytes, and writes what is none on the way.
void ModelDirectoryWriter::pass_over() {
  while (next_ < steps_.size() && (missing_ == 0 || !steps_[next_].parameter)) {
    if (!steps_[next_].parameter) writers_[steps_[next_].part]->append(passenger_bytes(steps_[next_]));
    if (++next_ < steps_.size()) missing_ = steps_[next_].info.byte_size();
  }
}

void ModelDirectoryWriter::append(std::span<const std::byte> bytes) {
  if (next_ == steps_.size() || bytes.size() > missing_)
    throw Error(
        ErrorKind::internal,
        fmt::format("more bytes than {} has", next_ == steps_.size() ? "the model" : shown(steps_[next_].info.name)));
  writers_[steps_[next_].part]->append(bytes);
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
                 .step = description_.step,
                 .connector = description_.connector};
  auto& noted = file.checksums.emplace();
  for (Part part : all_parts) {
    SafetensorsWriter& writer = *writers_[static_cast<size_t>(part)];
    auto checksums = writer.commit();
    for (size_t i = 0; i < checksums.size(); ++i)
      noted.emplace(fmt::format("{}.{}", name_of(part), writer.order()[i].name), checksums[i]);
  }
  write_file_atomic(folder() / ModelFile::name, file.text());
  finished_ = true;
}

} // namespace fvlm
