#include "model/weights/transfer.h"

#include "base/error.h"
#include "model/weights/convert.h"
#include "model/weights/initialize.h"

#include <fmt/format.h>

#include <unordered_map>

namespace fvlm {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t piece_elements = uint64_t{1} << 18;

// Where the numbers of a parameter come from: a file, or the dice.
struct Source {
  const TensorView* view = nullptr;
  const Safetensors* file = nullptr;
  Initializer fill;
};

class Transfer {
 public:
  Transfer(ModelDirectoryWriter& writer, uint64_t seed, const TransferProgress& progress)
      : writer_(writer), seed_(seed), progress_(progress) {
    for (const TensorInfo& tensor : writer.order()) total_ += tensor.byte_size();
  }

  TransferReport run(const std::unordered_map<std::string, Source>& sources) {
    for (const TensorInfo& tensor : writer_.order()) {
      const std::string name = tensor.name.substr(0, tensor.name.find('.'));
      if (report_.parts.empty() || report_.parts.back().name != name) report_.parts.push_back({.name = name});
      auto& part = report_.parts.back();
      part.parameters += tensor.elements();
      part.bytes += tensor.byte_size();
      ++part.tensors[tensor.dtype];
      copy(tensor, sources.at(tensor.name));
    }
    writer_.commit();
    return std::move(report_);
  }

 private:
  void copy(const TensorInfo& tensor, const Source& source) {
    std::vector<float> fresh;
    std::vector<std::byte> converted;
    DType from = source.view ? source.view->dtype : DType::f32;
    for (uint64_t first = 0; first < tensor.elements(); first += piece_elements) {
      uint64_t count = std::min(piece_elements, tensor.elements() - first);
      std::span<const std::byte> bytes;
      if (source.view) {
        bytes = source.view->data.subspan(first * size_of(from), count * size_of(from));
      } else {
        fresh.resize(count);
        initialize_weights(fresh, source.fill, seed_, tensor.name, first);
        bytes = std::as_bytes(std::span(fresh));
      }
      if (from != tensor.dtype) {
        converted.resize(count * size_of(tensor.dtype));
        if (uint64_t lost = convert(bytes, from, converted, tensor.dtype)) report_.overflowed[tensor.name] += lost;
        bytes = converted;
      }
      writer_.append(bytes);
      progress_(done_ += bytes.size(), total_);
    }
    if (source.file) source.file->drop(*source.view);
  }

  ModelDirectoryWriter& writer_;
  uint64_t seed_, total_ = 0, done_ = 0;
  const TransferProgress& progress_;
  TransferReport report_;
};

using Sources = std::unordered_map<std::string, Source>;

void add_file(Sources& sources, const std::string& part, const Safetensors& file, const WeightLayout& layout) {
  auto bound = bind(file, layout);
  for (size_t i = 0; i < bound.size(); ++i)
    if (layout.tensors[i].parameter) sources[part + "." + layout.tensors[i].name] = {bound[i], &file, {}};
}

} // namespace

TransferReport import_model(const ImportRequest& request, const TransferProgress& progress) {
  ModelPart encoder{.name = "vision"}, connector{.name = "connector"}, decoder{.name = "decoder"};
  encoder.folder = HuggingFaceFolder::open(request.vision);
  decoder.folder = HuggingFaceFolder::open(request.decoder);
  encoder.config = read_vision_config(encoder.folder.config, (request.vision / "config.json").string());
  decoder.config = read_decoder_config(decoder.folder.config, (request.decoder / "config.json").string());
  ConnectorConfig connector_config = request.connector_config;
  std::optional<Safetensors> connector_file;
  if (request.connector) {
    connector_file = Safetensors::open(*request.connector);
    try {
      connector_config->adopt_shapes([&](const std::string& tensor) { return connector_file->at(tensor).shape; });
    } catch (Error& error) {
      if (error.where().empty()) error.at(request.connector->string());
      throw;
    }
  }
  connector.config = std::move(connector_config);
  ModelDescription description;
  description.name = request.name;
  description.parts = {std::move(encoder), std::move(connector), std::move(decoder)};

  Sources sources;
  for (const ModelPart& part : description.parts) {
    const WeightLayout layout = description.layout(part);
    const auto& file = part.role() == Role::connector ? connector_file : part.folder.weights;
    if (file)
      add_file(sources, part.name, *file, layout);
    else
      for (const TensorSpec& spec : layout.tensors) sources[part.name + "." + spec.name].fill = spec.fill;
  }

  if (request.check_before_writing) request.check_before_writing();
  ModelDirectoryWriter writer(request.out, description, [&](const std::string& name) {
    const Source& source = sources.at(name);
    return request.dtype.value_or(source.view ? source.view->dtype : DType::f32);
  });
  return Transfer(writer, request.seed, progress).run(sources);
}

TransferReport export_model(const fs::path& model, const fs::path& out, DType dtype, const TransferProgress& progress) {
  ModelDirectory directory = ModelDirectory::open(model);
  directory.verify();
  Sources sources;
  for (const Parameter& parameter : directory.parameters()) sources[parameter.name] = {parameter.view, nullptr, {}};
  ModelDirectoryWriter writer(out, directory.description(), [&](const std::string&) { return dtype; });
  return Transfer(writer, 0, progress).run(sources);
}

} // namespace fvlm
