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

Part part_of(std::string_view name) {
  for (Part part : all_parts)
    if (name.starts_with(name_of(part))) return part;
  throw Error(ErrorKind::internal, fmt::format("{} belongs to no part", name));
}

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
      auto& part = report_.parts[static_cast<size_t>(part_of(tensor.name))];
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

void add_file(Sources& sources, Part part, const Safetensors& file, const WeightLayout& layout) {
  auto bound = bind(file, layout);
  for (size_t i = 0; i < bound.size(); ++i)
    if (layout.tensors[i].parameter)
      sources[fmt::format("{}.{}", name_of(part), layout.tensors[i].name)] = {bound[i], &file, {}};
}

} // namespace

TransferReport import_model(const ImportRequest& request, const TransferProgress& progress) {
  ModelDescription description;
  description.name = request.name;
  description.vision_folder = HuggingFaceFolder::open(request.vision);
  description.decoder_folder = HuggingFaceFolder::open(request.decoder);
  description.vision = read_vision_config(description.vision_folder.config, (request.vision / "config.json").string());
  description.decoder =
      read_decoder_config(description.decoder_folder.config, (request.decoder / "config.json").string());
  description.connector = request.connector_config;
  std::optional<Safetensors> connector;
  if (request.connector) {
    connector = Safetensors::open(*request.connector);
    try {
      description.connector->adopt_shapes([&](const std::string& tensor) { return connector->at(tensor).shape; });
    } catch (Error& error) {
      if (error.where().empty()) error.at(request.connector->string());
      throw;
    }
  }

  Sources sources;
  add_file(sources, Part::vision, *description.vision_folder.weights, description.layout(Part::vision));
  add_file(sources, Part::decoder, *description.decoder_folder.weights, description.layout(Part::decoder));
  WeightLayout layout = description.layout(Part::connector);
  if (connector)
    add_file(sources, Part::connector, *connector, layout);
  else
    for (const TensorSpec& spec : layout.tensors) sources["connector." + spec.name].fill = spec.fill;

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
