#include "model/weights/mixed_adapter.h"

#include "model/weights/packed_weight.h"
#include "model/weights/quantized_form.h"

#include <algorithm>

namespace fvlm {
namespace {

struct Factors {
  const AdaptedModule* module;
  const TensorView *a, *b;
};

// [ranks, in]
MergedWeight all_a(const std::string& name, const std::vector<Factors>& all) {
  MergedWeight made{name, {}, {0, all.front().a->shape.at(1)}};
  for (const Factors& each : all) {
    const std::vector<float> own = quantized::floats_of(*each.a, 0, each.a->elements());
    made.values.insert(made.values.end(), own.begin(), own.end());
    made.shape[0] += each.module->rank;
  }
  return made;
}

// [out, ranks]
MergedWeight all_b(const std::string& name, const std::vector<Factors>& all) {
  const int64_t rows = all.front().b->shape.at(0);
  int64_t ranks = 0, begin = 0;
  for (const Factors& each : all) ranks += each.module->rank;
  MergedWeight made{name, std::vector<float>(static_cast<size_t>(rows * ranks)), {rows, ranks}};
  for (const Factors& each : all) {
    const std::vector<float> own = quantized::floats_of(*each.b, 0, each.b->elements());
    const auto scale = static_cast<float>(each.module->scale());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < each.module->rank; ++column)
        made.values[static_cast<size_t>(row * ranks + begin + column)] =
            scale * own[static_cast<size_t>(row * each.module->rank + column)];
    begin += each.module->rank;
  }
  return made;
}

} // namespace

bool may_mix(const AttachedAdapter& adapter) {
  const ModelDescription& description = adapter.description;
  const ModelPart& decoder = description.sole_part(Role::decoder);
  if (decoder.adapter && decoder.adapter->dora) return false;
  // All linears in layers read all rows of a pass.
  const auto is_in_layer = [](const AdaptedModule& module) { return module.name.find("layers.") != std::string::npos; };
  if (decoder.adapter && !std::ranges::all_of(decoder.adapter->modules, is_in_layer)) return false;
  return std::ranges::all_of(adapter.tensors, [&](const auto& each) {
    return !each.first.starts_with(decoder.name + ".") || each.first.find(".lora_") != std::string::npos;
  });
}

MixedAdapter mixed(const ModelDescription& base, const std::map<int32_t, const AttachedAdapter*>& adapters) {
  MixedAdapter made{{.description = base}, {}};
  ModelPart& part = *std::ranges::find(made.adapter.description.parts, Role::decoder, &ModelPart::role);
  const WeightLayout layout = base.layout(part);
  PartAdapter all;
  const auto tensor = [&](const AttachedAdapter& adapter, const std::string& name) {
    return &adapter.tensors.at(part.name + "." + name);
  };
  for (const std::string& linear : linears_of(layout)) {
    std::vector<Factors> factors;
    std::vector<int32_t>& owners = made.owners[linear];
    for (const auto& [number, adapter] : adapters) {
      const auto& own = adapter->description.sole_part(Role::decoder).adapter;
      const AdaptedModule* const module = own ? own->find(linear) : nullptr;
      if (!module) continue;
      factors.push_back({module, tensor(*adapter, lora_a_of(linear)), tensor(*adapter, lora_b_of(linear))});
      owners.insert(owners.end(), static_cast<size_t>(module->rank), number);
    }
    if (factors.empty()) {
      made.owners.erase(linear);
      continue;
    }
    const auto ranks = static_cast<int64_t>(owners.size());
    all.modules.push_back({linear, ranks, static_cast<double>(ranks)}); // its scale is 1
    for (MergedWeight weight :
         {all_a(part.name + "." + lora_a_of(linear), factors), all_b(part.name + "." + lora_b_of(linear), factors)}) {
      const MergedWeight& kept = made.adapter.merged.emplace_back(std::move(weight));
      made.adapter.tensors[kept.name] = kept.view();
    }
  }
  if (!all.modules.empty()) part.adapter = std::move(all);
  return made;
}

} // namespace fvlm
