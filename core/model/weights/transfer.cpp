#include "model/weights/transfer.h"

#include "base/error.h"
#include "base/file.h"
#include "model/weights/convert.h"
#include "model/weights/dequantizer.h"
#include "model/weights/initialize.h"
#include "model/weights/new_tokens.h"
#include "model/weights/whole_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

// "X.weight" of "X.weight_packed", "X.weight_scale" and "X.weight_shape", which a quantized weight consists of.
std::string weight_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('_'));
}

// Into a ModelDirectoryWriter or a SafetensorsWriter.
template <class Writer>
class Transfer {
 public:
  Transfer(Writer& writer, uint64_t seed, const TransferProgress& progress)
      : writer_(writer), seed_(seed), progress_(progress) {
    for (const TensorInfo& tensor : writer.order()) total_ += tensor.byte_size();
  }

  // `part_of`: the name of a tensor's part in the report.
  TransferReport run(const std::unordered_map<std::string, Source>& sources,
                     const std::function<std::string(const std::string& tensor)>& part_of) {
    for (const TensorInfo& tensor : writer_.order()) {
      const std::string name = part_of(tensor.name);
      if (report_.parts.empty() || report_.parts.back().name != name) report_.parts.push_back({.name = name});
      auto& part = report_.parts.back();
      part.bytes += tensor.byte_size();
      if (const auto shape = sources.find(weight_of(tensor.name) + "_shape"); shape == sources.end()) {
        part.parameters += tensor.elements();
        ++part.tensors[tensor.dtype];
      } else if (tensor.dtype == DType::i32) { // the codes of a quantized weight
        int64_t sizes[2];
        std::memcpy(sizes, shape->second.view->data.data(), sizeof sizes);
        part.parameters += static_cast<uint64_t>(sizes[0] * sizes[1]);
        ++part.tensors[tensor.dtype];
      }
      const Source& source = sources.at(tensor.name);
      if (source.view && source.view->reader)
        read(tensor, source);
      else
        copy(tensor, source);
    }
    writer_.commit();
    return std::move(report_);
  }

 private:
  void copy(const TensorInfo& tensor, const Source& source) {
    std::vector<float> fresh;
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
      append(tensor, bytes, from);
    }
    if (source.file) source.file->drop(*source.view);
  }

  void read(const TensorInfo& tensor, const Source& source) {
    const WeightReader& weight = *source.view->reader;
    const auto* quantized = dynamic_cast<const Dequantizer*>(&weight);
    const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(piece_elements) / weight.cols());
    std::vector<std::byte> rows;
    for (int64_t first = 0; first < weight.rows(); first += piece) {
      const int64_t count = std::min(piece, weight.rows() - first);
      rows.resize(static_cast<size_t>(count * weight.cols()) * size_of(weight.type()));
      weight.read(first, rows);
      if (quantized) require_finite(rows, source);
      append(tensor, rows, weight.type());
    }
    if (quantized) {
      auto& reported = report_.dequantized[quantized->form()];
      ++reported.weights, reported.bytes_before += weight.stored().size(), reported.bytes += tensor.byte_size();
    }
    if (source.file) source.file->drop(*source.view);
  }

  static void require_finite(std::span<const std::byte> rows, const Source& source) {
    const std::span numbers(reinterpret_cast<const float*>(rows.data()), rows.size() / sizeof(float));
    if (!std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); }))
      throw Error(ErrorKind::data, "the quantized weight {} has numbers that are not finite", shown(source.view->name))
          .at(source.file->path().string())
          .advise("the file is damaged: fetch it again");
  }

  // A piece of a tensor, in the element type that it is stored in.
  void append(const TensorInfo& tensor, std::span<const std::byte> bytes, DType from) {
    if (is_floating(from))
      if (const uint64_t count = count_not_finite(bytes, from)) report_.not_finite[tensor.name] += count;
    if (from != tensor.dtype) {
      converted_.resize(bytes.size() / size_of(from) * size_of(tensor.dtype));
      if (uint64_t lost = convert(bytes, from, converted_, tensor.dtype)) report_.overflowed[tensor.name] += lost;
      bytes = converted_;
    }
    writer_.append(bytes);
    progress_(done_ += bytes.size(), total_);
  }

  Writer& writer_;
  uint64_t seed_, total_ = 0, done_ = 0;
  const TransferProgress& progress_;
  TransferReport report_;
  std::vector<std::byte> converted_;
};

using Sources = std::unordered_map<std::string, Source>;

void add_file(Sources& sources, WeightSchemes& schemes, const std::string& part, const Safetensors& file,
              const WeightLayout& layout, const nlohmann::json& config) {
  const WeightLayout stored = stored_layout(layout, file, config);
  auto bound = bind(file, stored);
  for (size_t i = 0; i < bound.size(); ++i) {
    const TensorSpec& spec = stored.tensors[i];
    if (spec.parameter) sources[part + "." + spec.name] = {bound[i], &file, {}};
    if (const PackedScheme* scheme = scheme_of_codes(spec)) schemes[part + "." + weight_of(spec.name)] = scheme;
  }
}

std::string first_part(const std::string& tensor) {
  return tensor.substr(0, tensor.find('.'));
}

} // namespace

TransferReport import_model(const ImportRequest& request, const TransferProgress& progress) {
  ModelPart encoder{.name = "vision"}, connector{.name = "connector"}, decoder{.name = "decoder"};
  encoder.folder = HuggingFaceFolder::open_plain(request.vision);
  decoder.folder = HuggingFaceFolder::open_plain(request.decoder);
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
  WeightSchemes schemes;
  for (const ModelPart& part : description.parts) {
    const WeightLayout layout = description.layout(part);
    const auto& file = part.role() == Role::connector ? connector_file : part.folder.weights;
    if (file)
      add_file(sources, schemes, part.name, *file, layout, part.folder.config);
    else
      for (const TensorSpec& spec : layout.tensors) sources[part.name + "." + spec.name].fill = spec.fill;
  }

  if (request.check_before_writing) request.check_before_writing(description);
  NewTokens tokens(request.new_tokens);
  if (!tokens.empty()) tokens.add_to(description.parts.back(), schemes);
  for (auto& [name, source] : sources) source.view = tokens.grown(name, source.view);
  ModelDirectoryWriter writer(
      request.out, description,
      [&](const std::string& name) {
        const Source& source = sources.at(name);
        return request.dtype.value_or(source.view ? source.view->dtype : DType::f32);
      },
      schemes);
  return Transfer(writer, request.seed, progress).run(sources, first_part);
}

TransferReport import_whole_model(const WholeImportRequest& request, const TransferProgress& progress) {
  WholeModel whole = WholeModel::open(request.model);
  if (request.check_before_writing) request.check_before_writing(whole.description, whole.image_token_id);
  whole.description.name = request.name;
  NewTokens tokens(request.new_tokens);
  if (!tokens.empty()) tokens.add_to(whole.description.parts.back(), whole.schemes);
  Sources sources;
  for (const auto& [name, tensor] : whole.tensors) sources[name] = {tokens.grown(name, tensor), &whole.file, {}};
  ModelDirectoryWriter writer(
      request.out, whole.description,
      [&](const std::string& name) { return request.dtype.value_or(sources.at(name).view->dtype); }, whole.schemes);
  return Transfer(writer, 0, progress).run(sources, first_part);
}

TransferReport export_model(const fs::path& model, const fs::path& out, DType dtype, const TransferProgress& progress) {
  ModelDirectory directory = ModelDirectory::open(model);
  directory.require_no_adapters("export");
  directory.verify();
  Sources sources;
  for (const Parameter& parameter : directory.parameters())
    for (const auto& [name, view] : stored_tensors(parameter)) sources[name] = {view, nullptr, {}};
  ModelDirectoryWriter writer(
      out, directory.description(), [&](const std::string&) { return dtype; }, directory.schemes());
  return Transfer(writer, 0, progress).run(sources, first_part);
}

TransferReport export_whole_model(const fs::path& model, const fs::path& out, std::optional<DType> dtype,
                                  const TransferProgress& progress) {
  const ModelDirectory directory = ModelDirectory::open(model);
  directory.require_no_adapters("export --huggingface");
  directory.verify();
  WholeModelForm form = assemble(directory);
  Sources sources;
  std::vector<TensorInfo> tensors;
  for (const auto& [name, tensor] : form.tensors) {
    sources[name] = {tensor, nullptr, {}};
    tensors.push_back(*tensor);
    tensors.back().name = name;
    if (dtype && is_floating(tensor->dtype) && !name.ends_with(".weight_scale")) tensors.back().dtype = *dtype;
  }
  AtomicFolder folder(out);
  const fs::path& into = folder.temporary_path();
  SafetensorsWriter writer(into / "model.safetensors", tensors);
  TransferReport report = Transfer(writer, 0, progress).run(sources, [](const std::string&) { return "model"; });
  HuggingFaceFolder::set_dtype(form.config, tensors);
  HuggingFaceFolder::set_quantization(form.config, form.quantized);
  write_file_atomic(into / "config.json", form.config.dump(2) + "\n");
  // A processor_config.json goes along with encoder and decoder, and says in that of the encoder how images are
  // prepared.
  for (const ModelPart& part : directory.description().parts)
    for (const auto& file : part.folder.carried)
      if (part.role() == Role::encoder || !exists(into / file.name)) write_file_atomic(into / file.name, file.text());
  folder.commit();
  return report;
}

} // namespace fvlm
