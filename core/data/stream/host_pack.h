// A pack in host memory as the loader delivers it: samples with their tokens, and all frames in one buffer, where an
// image that is repeated stands once.
#pragma once
#include "data/media/normalise.h"
#include "data/samples/sample.h"
#include "data/stream/cursor.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace fvlm {

struct PackedSample {
  int64_t position = 0; // in the order of the stage
  std::shared_ptr<const Sample> sample;
  int64_t first_frame = 0; // in the pack's memory
};

struct HostPack {
  std::vector<PackedSample> samples; // in the order of their positions
  int64_t frame_count = 0;           // in its memory
  std::span<const float> frames;     // [frame_count, 3, H, W], normalised; or empty, where they are `pixels`:
  std::span<const uint8_t> pixels;   // [frame_count, H, W, 3] before normalization,
  const NormalizationTable* normalization = nullptr; // and the values that it gives them
  std::shared_ptr<std::byte> buffer; // what holds them; goes back to the loader with the last copy of this

  // How many decoders read the pack, and the pack as one of them reads it.
  size_t decoders() const { return samples.empty() ? 1 : samples.front().sample->decoders(); }
  HostPack for_decoder(size_t decoder) const;
  // Hashes what the model sees of one of the samples: its texts and its frames.
  uint64_t content_of(const PackedSample& packed) const;
  // Hashes everything that the model sees.
  uint64_t hash() const;
};

// A pack with the step that it belongs to.
struct LoadedPack {
  HostPack pack;
  int64_t step = 0;       // of the stage, from 0
  bool last = true;       // of this rank's in the step; the only one that may be empty
  int64_t most_packs = 1; // that a rank has in the step
  Cursor after;           // of the last: where a run that took this step goes on
  // Of the samples of this rank alone, those that the loader could not decode so far. `after` counts no other rank's.
  int64_t failed_decodes = 0;
  // Every sample of the step, all ranks', as it was put together: what a loss is the mean over. Who turns out broken
  // when it is decoded is among them.
  std::shared_ptr<const std::vector<std::shared_ptr<const Sample>>> of_step;
};

} // namespace fvlm
