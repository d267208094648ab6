// Activation checkpointing: which layers recompute their activations in the backward pass.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace fvlm::plan {
struct Recompute; // as a recipe says it: recipe/plan.h
}

namespace fvlm::model {

struct Recompute {
  std::function<bool(int64_t layer)> layer = [](int64_t) { return false; };
  bool light = false; // recompute only the outputs of norms, GELU and SwiGLU

  static Recompute none() { return {}; }
  static Recompute all();
  static Recompute every(int64_t nth); // layers 0, nth, 2 nth, ...
  static Recompute only(std::vector<int64_t> layers);
  static Recompute light_only();
  static Recompute from_plan(const plan::Recompute& plan);
  // "none", "light", "all", "every:2" or "layers:0,3", of a model whose deepest tower has `depth` layers. Throws
  // Error(usage).
  static Recompute parse(std::string_view text, int64_t depth);
};

} // namespace fvlm::model
