#include "model/adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <memory>
#include <string_view>

namespace fvlm::model {

std::vector<ParameterBlock> with_adapters(std::vector<ParameterBlock> blocks, const Adapters& adapters) {
  for (const auto& [part, adapter] : adapters) append_adapter_blocks(blocks, adapter, part + ".");
  return blocks;
}

bool is_of_adapter(const std::string& name) {
  return name.find(".lora_") != name.npos;
}

bool is_in_base(const Adapters& adapters, const std::string& name) {
  const size_t dot = name.find('.');
  const auto found = adapters.find(name.substr(0, dot));
  return found != adapters.end() && !is_of_adapter(name) && !found->second.saves(name.substr(dot + 1));
}

int64_t joined_rank(const Adapters& adapters, const std::string& name) {
  constexpr std::string_view suffix = ".weight";
  const size_t dot = name.find('.');
  const auto found = adapters.find(name.substr(0, dot));
  if (found == adapters.end() || !name.ends_with(suffix)) return 0;
  const PartAdapter& adapter = found->second;
  const std::string module = name.substr(dot + 1, name.size() - dot - 1 - suffix.size());
  const AdaptedModule* adapted = adapter.find(module);
  return adapted && !adapter.dora && adapter.dropout == 0 ? adapted->rank : 0;
}

bool has_dropout(const Adapters& adapters) {
  return std::ranges::any_of(adapters, [](const auto& each) { return each.second.dropout > 0; });
}

void attach_adapters(Parameters& parameters, const Adapters& adapters, const at::Tensor& dropout_seed) {
  if (adapters.empty()) return;
  for (ops::Parameter& parameter : parameters.all()) parameter.in_base = is_in_base(adapters, parameter.name);
  int64_t id = 0;
  for (const auto& [part, adapter] : adapters)
    for (const AdaptedModule& module : adapter.modules) {
      const std::string name = part + "." + module.name;
      auto made = std::make_shared<ops::Adapter>();
      made->a = &parameters.at(lora_a_of(name));
      made->b = &parameters.at(lora_b_of(name));
      if (adapter.dora) made->magnitude = &parameters.at(magnitude_of(name));
      made->scale = module.scale();
      made->dropout = adapter.dropout;
      made->dropout_seed = dropout_seed;
      made->id = ++id;
      parameters.at(name + ".weight").adapter = std::move(made);
    }
}

void mix_adapters(Parameters& parameters, const std::map<std::string, std::vector<int32_t>>& owners,
                  const std::shared_ptr<ops::RowAdapters>& rows) {
  for (const auto& [linear, of_columns] : owners) {
    ops::Parameter& weight = parameters.at("decoder." + linear + ".weight");
    auto made = std::make_shared<ops::Adapter>();
    made->a = weight.adapter->a;
    made->b = weight.adapter->b;
    made->rows = rows;
    made->owners = of_columns;
    weight.adapter = std::move(made);
  }
}

// int8 and int4 as fvlm/quantizer.h lays them out.
at::Tensor dequantized(const ops::Parameter& parameter) {
  if (parameter.packed.empty()) return parameter.value;
  const at::Tensor &codes = parameter.packed[0], &scales = parameter.packed[1];
  const int64_t rows = parameter.value.size(0), cols = parameter.value.size(1);
  if (codes.scalar_type() == at::kChar) return codes.to(at::kFloat) * scales.unsqueeze(1);
  const at::Tensor halves = at::stack({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, 2).to(at::kFloat) - 8;
  const at::Tensor values = halves.view({rows, -1}).narrow(1, 0, cols);
  return (values.reshape({rows, scales.size(1), -1}) * scales.unsqueeze(2)).view({rows, cols});
}

void initialize_magnitudes(Parameters& parameters, const Adapters& adapters) {
  for (const auto& [part, adapter] : adapters) {
    if (!adapter.dora) continue;
    for (const AdaptedModule& module : adapter.modules) {
      const std::string name = part + "." + module.name;
      const ops::Parameter& weight = parameters.at(name + ".weight");
      const at::Tensor values = dequantized(weight);
      const auto type = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      parameters.at(magnitude_of(name)).value.copy_(at::linalg_vector_norm(values, 2, at::IntArrayRef{1}, false, type));
    }
  }
}

} // namespace fvlm::model
