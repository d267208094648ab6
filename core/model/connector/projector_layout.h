// The weights of the projector that GhostVis has behind its resampler or its pooling: see Projector in framewise.h.
#pragma once
#include "model/weights/layout.h"

namespace fvlm::connector {

inline void append_projector(WeightLayout& layout, int64_t in, int64_t inner, int64_t out) {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const std::string stem = "vision_projector.mlp";
  layout.tensors.push_back({stem + ".0.weight", {inner, in}, normal});
  layout.tensors.push_back({stem + ".0.bias", {inner}, zero});
  layout.tensors.push_back({stem + ".3.weight", {out, inner}, normal});
  layout.tensors.push_back({stem + ".3.bias", {out}, zero});
  layout.tensors.push_back({stem + ".4.weight", {out}, one});
  layout.tensors.push_back({stem + ".4.bias", {out}, zero});
}

} // namespace fvlm::connector
