// How the frames of a sample lie in its images, where an encoder reads images of any size: each frame is then a cell,
// the square of an image that becomes one row of the decoder.
#pragma once
#include <cstdint>

namespace fvlm {

// The cells of an image, row by row.
struct ImageGrid {
  int64_t rows = 0, columns = 0;
  int64_t cells() const { return rows * columns; }
  bool operator==(const ImageGrid&) const = default;
};

} // namespace fvlm
