#include "model/merge.h"

#include "base/error.h"
#include "model/loading.h"
#include "model/weights/convert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

// The weight that computes what the frozen one and its adapter compute: float32.
at::Tensor merged(const ops::Parameter& parameter) {
  at::Tensor weight = dequantized(parameter).to(at::kFloat);
  if (!parameter.adapter) return weight;
  const ops::Adapter& adapter = *parameter.adapter;
  weight = weight + at::mm(adapter.b->value, adapter.a->value) * adapter.scale;
  if (!adapter.magnitude) return weight;
  const at::Tensor norms = at::linalg_vector_norm(weight, 2, at::IntArrayRef{1}, true);
  return weight * (adapter.magnitude->value.unsqueeze(1) / norms.clamp_min(1e-15));
}

// How a tensor is stored: as in its file, or, where it is quantized there, as a plain one of its part.
DType stored_type(const ModelDirectory& directory, const fvlm::Parameter& parameter) {
  if (!parameter.scheme) return parameter.view->dtype;
  for (const fvlm::Parameter& other : directory.parameters())
    if (other.part == parameter.part && !other.scheme && !other.of_adapter) return other.view->dtype;
  return DType::bf16;
}

} // namespace

TransferReport merge_adapters(const std::filesystem::path& model, const std::filesystem::path& out,
                              std::optional<DType> dtype, const TransferProgress& progress) {
  const ModelDirectory directory = ModelDirectory::open(model);
  if (!directory.description().has_adapters())
    throw Error(ErrorKind::data, "the model has no adapters to merge").at(model.string());
  directory.verify();
  const auto loaded = load_model(directory, {.trains = [](const ParameterSpec&) { return false; }});
  std::map<std::string, const ops::Parameter*> values;
  for (const ops::Parameter& parameter : loaded->parameters().all())
    values[find_parameter(directory, parameter.name).name] = &parameter;
  ModelDescription description = directory.description();
  for (ModelPart& part : description.parts) part.adapter.reset();
  ModelDirectoryWriter writer(out, description, [&](const std::string& name) {
    return dtype.value_or(values.contains(name) ? stored_type(directory, directory.at(name)) : DType::f32);
  });
  TransferReport report;
  uint64_t done = 0, all = 0;
  for (const TensorInfo& tensor : writer.order()) all += tensor.byte_size();
  for (const TensorInfo& tensor : writer.order()) {
    const std::string part = tensor.name.substr(0, tensor.name.find('.'));
    if (report.parts.empty() || report.parts.back().name != part) report.parts.push_back({.name = part});
    report.parts.back().parameters += tensor.elements();
    report.parts.back().bytes += tensor.byte_size();
    ++report.parts.back().tensors[tensor.dtype];
    const ops::Parameter& parameter = *values.at(tensor.name);
    const at::Tensor value = in_file(parameter, merged(parameter)).contiguous();
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(value.const_data_ptr()),
                                           static_cast<size_t>(value.nbytes()));
    if (const uint64_t count = count_not_finite(bytes, DType::f32)) report.not_finite[tensor.name] = count;
    std::vector<std::byte> converted(tensor.byte_size());
    if (const uint64_t lost = convert(bytes, DType::f32, converted, tensor.dtype))
      report.overflowed[tensor.name] += lost;
    writer.append(converted);
    progress(done += tensor.byte_size(), all);
  }
  writer.commit();
  return report;
}

} // namespace fvlm::model
