// How the frames of a sample lie in its images and videos, where an encoder reads such of any size: each frame is then
// a cell, the square of an image that becomes one row of the decoder. A cell of a video shows the same square of a few
// successive frames of it, which are read together.
#pragma once
#include <cstdint>

namespace fvlm {

// The cells of an image, row by row; or those of a video, one step of time after the other.
struct ImageGrid {
  int64_t rows = 0, columns = 0;
  int64_t steps = 1;       // of time
  int64_t step_frames = 1; // of the video in each step; an image is one, which the encoder reads as often
  double step_seconds = 0; // from a step to the next

  int64_t step_cells() const { return rows * columns; }
  int64_t cells() const { return step_cells() * steps; }
  // Pieces of pictures that hold the cells: of each step those of its first frame, and then those of its other ones.
  int64_t squares() const { return cells() * step_frames; }
  bool is_video() const { return step_frames > 1; }
  bool operator==(const ImageGrid&) const = default;
};

} // namespace fvlm
