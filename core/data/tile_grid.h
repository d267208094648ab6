// How an image is cut into square tiles.
#pragma once
#include <cstdint>

namespace fvlm {

// Of which family of models: it decides how the grid is chosen (ImageProcessor), and which tokens stand around the rows
// of tiles (visual_marks.h).
enum class TileForm { idefics3, internvl, llava_next, llava_onevision };

// The tiles come row by row, and after them the whole image as one more frame; 0: the image was not cut.
struct TileGrid {
  int64_t rows = 0, columns = 0;
  // Of the image, where it is padded to the grid's aspect ratio and the rows of its margins are left out; else 0.
  int64_t height = 0, width = 0;
  int64_t frames() const { return rows * columns + 1; }
  bool operator==(const TileGrid&) const = default;
};

} // namespace fvlm
