#include "train/quantized_weights.h"

#include "base/error.h"
#include "plugin/selection.h"
#include "train/groups.h"

namespace fvlm::train {
namespace {

fvlm_quantizer_query query_of(const at::Tensor& weight, at::Device device) {
  fvlm_quantizer_query query{};
  query.struct_size = sizeof query;
  query.device = ops::abi_device(device);
  query.dtype = ops::abi_dtype(at::kFloat); // whatever the model computes in: codes and gradients are float32's
  query.rows = weight.size(0);
  query.cols = weight.size(1);
  return query;
}

Choice<fvlm_quantizer_v1> chosen(const plan::Plan& plan, Registry& registry, const fvlm_quantizer_query& query) {
  try {
    return select<fvlm_quantizer_v1>(registry, BackendPreference::of(plan.kernels["quantizer"]), query,
                                     plan.quantization->scheme);
  } catch (Error& error) {
    error.at("quantization.scheme");
    throw;
  }
}

} // namespace

QuantizedWeights::QuantizedWeights(const plan::Plan& plan, Registry& registry, model::Parameters& parameters,
                                   at::Device device) {
  const auto names = directory_names(parameters);
  budget::require_matches(plan.quantization->skip, names);
  const auto quantization = budget::with_indices(*plan.quantization, names);
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<const ops::Quantizer>> by_shape;
  for (ops::Parameter& parameter : parameters.all()) {
    if (!budget::is_quantized(quantization, directory_name(parameter.name), parameter.value.sizes())) continue;
    auto& quantizer = by_shape[{parameter.value.size(0), parameter.value.size(1)}];
    if (!quantizer) {
      const auto query = query_of(parameter.value, device);
      const auto choice = chosen(plan, registry, query);
      quantizer = std::make_shared<const ops::Quantizer>(ops::Backend<fvlm_quantizer_v1>(choice, device), query);
      if (choice_.empty()) choice_ = choice.report.text();
    }
    matrices_.push_back({&parameter, quantizer, {}});
  }
  if (matrices_.empty())
    throw Error(ErrorKind::recipe, "every linear weight is skipped: there is nothing to quantise")
        .at("quantization.skip")
        .advise("narrow its patterns, or leave out quantization_aware");
}

void QuantizedWeights::quantize() {
  for (Matrix& matrix : matrices_) {
    if (matrix.quantized) continue;
    at::Tensor& value = matrix.parameter->value;
    if (matrix.original.defined())
      matrix.original.copy_(value);
    else
      matrix.original = value.clone();
    value.copy_(matrix.quantizer->fake_quantize(matrix.original.to(at::kFloat)));
    matrix.quantized = true;
  }
}

void QuantizedWeights::restore(Which which) {
  for (Matrix& matrix : matrices_) {
    if (!matrix.quantized || (which == Which::trained && !matrix.trains())) continue;
    matrix.parameter->value.copy_(matrix.original);
    matrix.quantized = false;
  }
}

void QuantizedWeights::pass_gradients() {
  for (Matrix& matrix : matrices_) {
    ops::Parameter& parameter = *matrix.parameter;
    if (!matrix.trains() || !parameter.has_gradient) continue;
    const at::Tensor original = (matrix.quantized ? matrix.original : parameter.value).to(at::kFloat);
    parameter.gradient.copy_(matrix.quantizer->fake_quantize_gradient(original, parameter.gradient.to(at::kFloat)));
  }
}

std::vector<std::string> QuantizedWeights::names() const {
  std::vector<std::string> names;
  for (const Matrix& matrix : matrices_) names.push_back(directory_name(matrix.parameter->name));
  return names;
}

int64_t QuantizedWeights::original_bytes() const {
  int64_t bytes = 0;
  for (const Matrix& matrix : matrices_)
    if (matrix.original.defined()) bytes += static_cast<int64_t>(matrix.original.nbytes());
  return bytes;
}

} // namespace fvlm::train
