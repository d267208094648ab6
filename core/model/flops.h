// What a step has to compute: the floating-point operations of matrix products and of attention, which are nearly all.
// What is computed twice to save memory counts once.
#pragma once
#include "model/vlm.h"

#include <cstdint>
#include <span>

namespace fvlm::model {

// What goes through a model, padding apart.
struct Work {
  double frames = 0;
  double rows = 0;    // of the decoder's main pass: visual tokens and text
  double labels = 0;  // that the head is held against
  double pairs = 0;   // a row and one that it attends to, itself included
  double watched = 0; // the same among the frames of the coarse pass

  // One sample: its frames, and the lengths of its texts, which share them.
  void add(int64_t frames, std::span<const int64_t> texts, int64_t labels);
};

// Which parts learn. None does: a forward pass alone.
struct Learning {
  bool vision = false, connector = false, decoder = false;
  bool any() const { return vision || connector || decoder; }
};

// `tokens`: of the vision tower a frame. `mode`: coarse_fine or refined.
double flops(const VlmConfig& config, int64_t tokens, const Work& work, const Learning& learning,
             Mode mode = Mode::coarse_fine);

} // namespace fvlm::model
