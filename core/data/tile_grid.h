// How an image is cut into square tiles.
#pragma once
#include "recipe/image_grid.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fvlm {

// Of which family of models: it decides how the grid is chosen (media/tile_forms/), and which tokens stand around the
// rows of tiles (visual_marks.h).
enum class TileForm {
#define FVLM_TILE_FORM(name, ...) name,
#include "data/tile_forms.inc"
#undef FVLM_TILE_FORM
};
// A line of tile_forms.inc.
struct TileFormTraits {
  const char* model;
  bool has_cells;
  const char *before, *behind; // tokens; empty: none
  const char *before_video = "", *behind_video = "";
};
constexpr TileFormTraits traits_of(TileForm form) {
  constexpr TileFormTraits all[]{
#define FVLM_TILE_FORM(name, ...) {__VA_ARGS__},
#include "data/tile_forms.inc"
#undef FVLM_TILE_FORM
  };
  return all[static_cast<size_t>(form)];
}
constexpr bool has_cells(TileForm form) {
  return traits_of(form).has_cells;
}

// The tiles come row by row, and after them the whole image as one more frame, unless they are cells, which are all
// that there is; 0: the image was not cut. Cells may be those of a video, or of one step of it, see ImageGrid.
struct TileGrid {
  int64_t rows = 0, columns = 0;
  // Of the image, where it is padded to the grid's aspect ratio and the rows of its margins are left out; else 0.
  int64_t height = 0, width = 0;
  bool is_of_cells = false;
  int64_t steps = 1, step_frames = 1;
  double step_seconds = 0;
  std::optional<double> label_seconds; // when the step is shown, where the text says so
  // Of an image that is cut into tiles, each of which is cut into cells: the lines and columns of cells of a tile,
  // which come tile by tile, and the cells of the whole image behind them, or before them; 0: there are none.
  int64_t tile_rows = 0, tile_columns = 0, whole_rows = 0, whole_columns = 0;
  bool is_whole_first = false;
  // Of the image among those of its text, where the text says it.
  std::optional<int64_t> number = {};

  int64_t frames() const { return rows * columns * steps + whole_rows * whole_columns + (is_of_cells ? 0 : 1); }
  bool is_of_video() const { return step_frames > 1; }
  bool operator==(const TileGrid&) const = default;
};

// Of the images and videos that were cut into cells; of an image in tiles, those of each tile and of the whole image.
inline std::vector<ImageGrid> grids_of(const std::vector<TileGrid>& tiles) {
  std::vector<ImageGrid> grids;
  for (const TileGrid& image : tiles) {
    if (!image.is_of_cells) continue;
    const size_t first = grids.size();
    if (image.tile_rows == 0)
      grids.push_back({image.rows, image.columns, image.steps, image.step_frames, image.step_seconds});
    else
      grids.insert(grids.end(),
                   static_cast<size_t>(image.rows * image.columns / (image.tile_rows * image.tile_columns)),
                   {image.tile_rows, image.tile_columns});
    const ImageGrid whole{image.whole_rows, image.whole_columns};
    if (image.whole_rows > 0)
      grids.insert(image.is_whole_first ? grids.begin() + static_cast<std::ptrdiff_t>(first) : grids.end(), whole);
  }
  return grids;
}

} // namespace fvlm
