// The memory layout of parameters: weights that one matrix product reads together (q, k, v; gate, up) are contiguous.
#pragma once
#include "model/weights/connector.h"
#include "model/weights/layout.h"
#include "model/weights/towers.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm {

struct ParameterSpec {
  std::string name; // as in the model directory, with its folder: "decoder.model.norm.weight"
  std::vector<int64_t> shape;
  bool is_fixed = false; // it never trains: see TensorSpec
  AdjacentPairs pairs = {};
  int64_t elements() const;
};
using ParameterBlock = std::vector<ParameterSpec>; // side by side, in this order

// Elements that a block occupies in a buffer, padded so that the next block is aligned for wide loads.
int64_t padded_elements(const ParameterBlock& block);

// Name suffixes of weights that one operation reads as one matrix: those of them that a layer has, the first among
// them. Tensors of a stack (TensorSpec) are a block besides.
using FusedNames = std::vector<std::string>;
const std::vector<FusedNames>& fused_weights(const VisionConfig& config);
const std::vector<FusedNames>& fused_weights(const DecoderConfig& config);

std::vector<ParameterBlock> blocks_of(const WeightLayout& layout, const std::string& folder,
                                      const std::vector<FusedNames>& fused_weights);

// Of a whole model. The connector's names have no folder before them.
std::vector<ParameterBlock> blocks_of(const VisionConfig& vision, const ConnectorConfig& connector,
                                      const std::vector<DecoderConfig>& decoders);

} // namespace fvlm
