// How parameters lie in memory: what one matrix product reads together (q, k, v; gate, up) lies side by side.
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
  int64_t elements() const;
};
using ParameterBlock = std::vector<ParameterSpec>; // side by side, in this order

// Elements that a block takes in a buffer: each begins where wide loads like it.
int64_t room_for(const ParameterBlock& block);

// Ends of names: where a layer has the first, it has them all, and one operation reads them as one matrix.
using ReadTogether = std::vector<std::string>;
const std::vector<ReadTogether>& read_together(const VisionConfig& config);
const std::vector<ReadTogether>& read_together(const DecoderConfig& config);

std::vector<ParameterBlock> blocks_of(const WeightLayout& layout, const std::string& folder,
                                      const std::vector<ReadTogether>& read_together);

// Of a whole model. The connector's names have no folder before them.
std::vector<ParameterBlock> blocks_of(const VisionConfig& vision, const ConnectorConfig& connector,
                                      const DecoderConfig& decoder);

} // namespace fvlm
