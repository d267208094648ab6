// Floating-point operations of a training step: matrix products and attention, which are nearly all of them.
// Recomputed activations count once.
#pragma once
#include "model/vlm.h"

#include <cstdint>
#include <span>

namespace fvlm::model {

// Amount of data that passes through a model, without padding.
struct Work {
  double frames = 0;
  double rows = 0;         // of the decoder's main pass: visual tokens and text
  double labels = 0;       // predicted by the output head
  double pairs = 0;        // attention pairs: a row and one it attends to, itself included
  double coarse_pairs = 0; // attention pairs among the frames in the coarse pass

  // Adds one sample: its frames, and the lengths of its texts, each of which has all frames before it.
  void add(int64_t frames, std::span<const int64_t> texts, int64_t labels);
};

// Which parts are trained. None: only a forward pass.
struct TrainedParts {
  bool vision = false, connector = false, decoder = false;
  bool any() const { return vision || connector || decoder; }
};

// `tokens`: tokens of a frame in the vision tower. `mode`: coarse_fine or refined.
double flops(const VlmConfig& config, int64_t tokens, const Work& work, const TrainedParts& trained,
             Mode mode = Mode::coarse_fine);

} // namespace fvlm::model
