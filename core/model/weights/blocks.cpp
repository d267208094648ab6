#include "model/weights/blocks.h"

#include <string_view>
#include <unordered_map>

namespace fvlm {
namespace {

constexpr int64_t alignment = 64; // elements

ParameterSpec parameter_of(const TensorSpec& spec, const std::string& folder) {
  return {folder + spec.name, spec.shape, spec.is_fixed, spec.pairs};
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
  std::unordered_map<std::string_view, const TensorSpec*> specs;
  for (const TensorSpec& spec : layout.tensors) specs.emplace(spec.name, &spec);
  std::unordered_map<std::string_view, size_t> stacks; // which block each is
  std::vector<ParameterBlock> blocks;
  for (const TensorSpec& spec : layout.tensors) {
    if (!spec.parameter) continue;
    if (!spec.stack.empty()) {
      const auto [stack, is_new] = stacks.emplace(spec.stack, blocks.size());
      if (is_new) blocks.emplace_back();
      blocks[stack->second].push_back(parameter_of(spec, folder));
      continue;
    }
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
      if (const auto each = specs.find(name); each != specs.end()) block.push_back(parameter_of(*each->second, folder));
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
