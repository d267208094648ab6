// A pack as the loader hands it out: samples with their tokens, and their frames one after the other in one buffer.
#pragma once
#include "data/samples/sample.h"
#include "data/stream/cursor.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace fvlm {

struct PackedSample {
  int64_t position = 0; // in the stage's order
  std::shared_ptr<const Sample> sample;
  int64_t first_frame = 0; // in the pack
};

struct HostPack {
  std::vector<PackedSample> samples; // in the order of their positions
  int64_t frame_count = 0;
  std::span<const float> frames;     // [frame_count, 3, H, W], normalised
  std::shared_ptr<std::byte> buffer; // what holds them; goes back to the loader with the last copy of this

  // Of all that the model sees.
  uint64_t hash() const;
};

// A pack of a step, which is what the optimizer learns from at once.
struct LoadedPack {
  HostPack pack;
  int64_t step = 0; // of the stage, from 0
  bool last = true; // of this rank's in the step; the only one that may be empty
  Cursor after;     // of the last: where a run that took this step goes on
  // Every sample of the step, all ranks', as it was put together: what a loss is the mean over. Who turns out broken
  // when it is decoded is among them.
  std::shared_ptr<const std::vector<std::shared_ptr<const Sample>>> of_step;
};

} // namespace fvlm
