#include "model/weights/blocks.h"

#include <algorithm>

namespace fvlm {
namespace {

constexpr int64_t alignment = 64; // elements

const TensorSpec* find(const WeightLayout& layout, const std::string& name) {
  const auto found = std::ranges::find(layout.tensors, name, &TensorSpec::name);
  return found == layout.tensors.end() ? nullptr : &*found;
}

} // namespace

int64_t ParameterSpec::elements() const {
  return elements_of(shape);
}

int64_t padded_elements(const ParameterBlock& block) {
  int64_t size = 0;
  for (const ParameterSpec& spec : block) size += spec.elements();
  return (size + alignment - 1) / alignment * alignment;
}

std::vector<ParameterBlock> blocks_of(const WeightLayout& layout, const std::string& folder,
                                      const std::vector<FusedNames>& fused_weights) {
  std::vector<ParameterBlock> blocks;
  for (const TensorSpec& spec : layout.tensors) {
    if (!spec.parameter) continue;
    std::vector<std::string> names{spec.name};
    bool leads = true;
    for (const FusedNames& ends : fused_weights)
      for (const std::string& end : ends) {
        if (!spec.name.ends_with(end)) continue;
        const std::string stem = spec.name.substr(0, spec.name.size() - end.size());
        leads = end == ends.front();
        names.clear();
        for (const std::string& each : ends) names.push_back(stem + each);
      }
    if (!leads) continue;
    ParameterBlock& block = blocks.emplace_back();
    for (const std::string& name : names)
      if (const TensorSpec* each = find(layout, name))
        block.push_back({folder + name, each->shape, each->is_fixed, each->pairs});
  }
  return blocks;
}

std::vector<ParameterBlock> blocks_of(const VisionConfig& vision, const ConnectorConfig& connector,
                                      const std::vector<DecoderConfig>& decoders) {
  auto blocks = blocks_of(layout_of(vision), "vision.", fused_weights(vision));
  for (auto& block : blocks_of(layout_of(connector, vision, decoders), "", {})) blocks.push_back(std::move(block));
  for (size_t i = 0; i < decoders.size(); ++i)
    for (auto& block : blocks_of(layout_of(decoders[i]), plan::decoder_name(i) + ".", fused_weights(decoders[i])))
      blocks.push_back(std::move(block));
  return blocks;
}

} // namespace fvlm
