#include "model/loading.h"

#include "base/error.h"
#include "model/weights/safetensors_writer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>

#include <cstring>

namespace fvlm::model {
namespace {

struct TypeRow {
  DType file;
  at::ScalarType tensor;
};
constexpr TypeRow types[] = {{DType::boolean, at::kBool}, {DType::u8, at::kByte},
                             {DType::i8, at::kChar},      {DType::f8_e4m3, at::kFloat8_e4m3fn},
                             {DType::i16, at::kShort},    {DType::u16, at::kUInt16},
                             {DType::f16, at::kHalf},     {DType::bf16, at::kBFloat16},
                             {DType::i32, at::kInt},      {DType::u32, at::kUInt32},
                             {DType::f32, at::kFloat},    {DType::f64, at::kDouble},
                             {DType::i64, at::kLong},     {DType::u64, at::kUInt64}};

} // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const TypeRow& row : types)
    if (row.file == dtype) return row.tensor;
  throw Error(ErrorKind::internal, "no tensor holds {}", name_of(dtype));
}

DType dtype_of(at::ScalarType type) {
  for (const TypeRow& row : types)
    if (row.tensor == type) return row.file;
  throw Error(ErrorKind::internal, "no file holds {}", at::toString(type));
}

at::Tensor tensor_over(const TensorView& view) {
  const auto type = scalar_type(view.dtype);
  // Never written to: the mapping is read-only.
  auto* bytes = const_cast<std::byte*>(view.data.data());
  if (reinterpret_cast<uintptr_t>(bytes) % size_of(view.dtype) == 0) return at::from_blob(bytes, view.shape, type);
  at::Tensor copy = at::empty(view.shape, type);
  std::memcpy(copy.data_ptr(), bytes, view.data.size());
  return copy;
}

at::Tensor in_memory(const ops::Parameter& parameter, const at::Tensor& of_file) {
  return parameter.rows_in_file.defined() ? of_file.index_select(0, parameter.rows_in_file) : of_file;
}

at::Tensor in_file(const ops::Parameter& parameter, const at::Tensor& rows) {
  if (!parameter.rows_in_file.defined()) return rows;
  return at::empty_like(rows).index_copy_(0, parameter.rows_in_file.to(rows.device()), rows);
}

namespace {

std::string name_in_directory(const ModelDescription& description, const std::string& name) {
  const std::string part = name.substr(0, name.find('.'));
  size_t decoder = 0;
  for (const ModelPart& each : description.parts)
    if ((each.role() == Role::encoder && part == "vision") ||
        (each.role() == Role::decoder && part == plan::decoder_name(decoder++)))
      return each.name + name.substr(part.size());
  return description.sole_part(Role::connector).name + "." + name;
}

} // namespace

const fvlm::Parameter& find_parameter(const ModelDirectory& directory, const std::string& name) {
  return directory.at(name_in_directory(directory.description(), name));
}

namespace {

at::Tensor packed_codes(const PackedScheme& scheme, const TensorView& view, int64_t rows, int64_t cols) {
  const auto row_bytes = static_cast<size_t>(scheme.code_bytes(cols)),
             row_words = static_cast<size_t>(scheme.words(cols)) * 4;
  at::Tensor codes = at::empty({rows, static_cast<int64_t>(row_bytes)}, at::kByte);
  const std::span<std::byte> into(static_cast<std::byte*>(codes.data_ptr()), static_cast<size_t>(codes.nbytes()));
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    unpack_codes(scheme, view.data.subspan(row * row_words, row_words), cols, into.subspan(row * row_bytes, row_bytes));
  return codes;
}

} // namespace

void load_packed(const TensorView& codes, const TensorView& scale, const std::string& file, ops::Parameter& parameter) {
  const int64_t rows = parameter.value.size(0), cols = parameter.value.size(1);
  const at::Tensor scales = tensor_over(scale).to(at::kFloat);
  if (!at::isfinite(scales).all().item<bool>() || scales.lt(0).any().item<bool>())
    throw Error(ErrorKind::data, "a scale of the quantized weight {} is negative or not finite", shown(parameter.name))
        .at(file)
        .advise("the file is damaged: export the model anew");
  const at::Tensor unpacked = packed_codes(packed_scheme(parameter.scheme), codes, rows, cols);
  parameter.packed[0].copy_(in_memory(parameter, unpacked).view(parameter.packed[0].scalar_type()));
  parameter.packed[1].copy_(in_memory(parameter, scales).view(parameter.packed[1].sizes()));
}

ModelConfig config_of(const ModelDescription& description) {
  std::vector<DecoderConfig> decoders = description.decoders();
  const DecoderConfig first = decoders.front();
  decoders.erase(decoders.begin());
  ModelConfig config{description.encoder(), first, description.connector(), std::move(decoders)};
  size_t decoder = 0;
  for (const ModelPart& part : description.parts) {
    const std::string name = part.role() == Role::decoder ? plan::decoder_name(decoder++) : "vision";
    if (part.adapter) config.adapters.emplace(name, *part.adapter);
  }
  return config;
}

void load_weights(const ModelDirectory& directory, Model& model, const IsWanted& is_wanted) {
  for (ops::Parameter& parameter : model.parameters().all()) {
    if (is_wanted && !is_wanted(parameter)) continue;
    const fvlm::Parameter& source = find_parameter(directory, parameter.name);
    if (source.spec->shape != parameter.value.sizes().vec())
      throw Error(ErrorKind::data, "{} has the shape {}, and the recipe's model has {}", shown(source.name),
                  shape_text(source.spec->shape), shape_text(parameter.value.sizes()))
          .at(directory.path().string());
    if (!parameter.scheme.empty()) {
      load_packed(*source.view, *source.scale, directory.path().string(), parameter);
    } else {
      if (source.scheme) directory.require_plain("training");
      parameter.value.copy_(in_memory(parameter, tensor_over(*source.view)));
    }
    directory.drop(source);
  }
}

namespace {

// A matrix that linears or experts read, or the table that embeds tokens.
bool is_linear_weight(const ParameterSpec& spec) {
  return is_packable(spec.name, spec.shape) || spec.name.ends_with(".embed_tokens.weight") ||
         spec.name.ends_with(".lm_head.weight");
}

std::unique_ptr<Model> load_parameters(const ModelDirectory& directory, const ConnectorConfig& connector,
                                       const ArenaOptions& arena) {
  ModelConfig config = config_of(directory.description());
  config.connector = connector;
  ArenaOptions options = arena;
  options.scheme_of = [&directory](const ParameterSpec& spec) { return find_parameter(directory, spec.name).scheme; };
  if (arena.keeps_bfloat16)
    options.is_bfloat16 = [&directory](const ParameterSpec& spec) {
      const fvlm::Parameter& source = find_parameter(directory, spec.name);
      return is_linear_weight(spec) && !source.of_adapter && source.view->dtype == DType::bf16;
    };
  auto model = std::make_unique<Model>(config, options);
  load_weights(directory, *model);
  directory.verify_bases();
  return model;
}

} // namespace

std::unique_ptr<Model> load_model(const ModelDirectory& directory, const ArenaOptions& options) {
  return load_parameters(directory, directory.description().connector(), options);
}

std::unique_ptr<Model> load_model(const std::filesystem::path& folder, const ArenaOptions& options) {
  return load_model(ModelDirectory::open(folder), options);
}

std::unique_ptr<Model> load_attached(const AttachedAdapter& adapter, const ModelDirectory& directory,
                                     const Model& model, const ArenaOptions& options) {
  ModelConfig config = config_of(adapter.description);
  config.connector = model.config().connector; // in the mode that was selected
  const auto view_of = [&](const std::string& name) {
    const auto found = adapter.tensors.find(name_in_directory(adapter.description, name));
    return found == adapter.tensors.end() ? nullptr : &found->second;
  };
  ArenaOptions own = options;
  own.shares_base_with = &model.parameters();
  own.is_shared = [&](const ParameterSpec& spec) { return !view_of(spec.name); };
  own.scheme_of = [&](const ParameterSpec& spec) {
    return view_of(spec.name) ? nullptr : find_parameter(directory, spec.name).scheme;
  };
  auto made = std::make_unique<Model>(config, own);
  for (ops::Parameter& parameter : made->parameters().all()) {
    if (const TensorView* view = view_of(parameter.name))
      parameter.value.copy_(in_memory(parameter, tensor_over(*view)));
    else if (parameter.scheme.empty() && !parameter.value.is_alias_of(model.parameters().at(parameter.name).value))
      parameter.value.copy_(model.parameters().at(parameter.name).value); // in a block of which some differ
  }
  return made;
}

ModelInMode load_model_in_mode(const std::filesystem::path& folder, const ArenaOptions& options,
                               std::string_view mode) {
  const ModelDirectory directory = ModelDirectory::open(folder);
  ConnectorConfig connector = directory.description().connector();
  std::string selected = connector->select_mode(mode);
  return {load_parameters(directory, connector, options), std::move(selected)};
}

void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    infos.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  SafetensorsWriter writer(path, std::move(infos));
  for (const TensorInfo& info : writer.order()) {
    const at::Tensor flat = tensors.at(info.name).cpu().contiguous();
    writer.append({static_cast<const std::byte*>(flat.data_ptr()), static_cast<size_t>(flat.nbytes())});
  }
  writer.commit();
}

} // namespace fvlm::model
