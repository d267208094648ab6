#include "budget/frame_rows.h"

#include "model/weights/visual_rows.h"
#include "recipe/frame_lines.h"
#include "recipe/shrunk_picture.h"

#include <algorithm>

namespace fvlm::budget {
namespace {

// Of the tiles as one picture without its margins, and with a newline behind each line.
int64_t picture_rows(const FrameLines& frame, const ShrunkPicture& picture) {
  if (const auto size = picture.size(frame.side); size && frame.is_pooled) return size->lines * (size->columns + 1);
  return (picture.rows * frame.side - 2 * picture.top) * (picture.columns * frame.side - 2 * picture.left + 1);
}

// A picture with margins may have more rows than one without, which is shrunk.
int64_t most_picture_rows(const FrameLines& frame, int64_t rows, int64_t columns) {
  int64_t most = 0;
  for (int64_t top = 0; 2 * top < rows * frame.side; ++top)
    most = std::max(most, picture_rows(frame, {rows, columns, top, 0}));
  for (int64_t left = 1; 2 * left < columns * frame.side; ++left)
    most = std::max(most, picture_rows(frame, {rows, columns, 0, left}));
  return most;
}

} // namespace

int64_t most_rows_per_frame(const plan::VisualRows& rows, const std::optional<ImageProcessor>& processor) {
  if (!processor || !rows.in_place) return rows.per_frame;
  if (processor->tile && processor->tile_form == TileForm::hunyuan) { // each cell may be a line of its own
    const int64_t cells = std::max<int64_t>(1, processor->min_pixels / (*processor->tile * *processor->tile)),
                  most = 2 * cells + 2;
    return (most + cells - 1) / cells;
  }
  const bool is_pooled = processor->tile_form == TileForm::llava_onevision;
  if (!processor->tile || !(is_pooled || processor->tile_form == TileForm::llava_next)) return rows.per_frame;
  const auto frame = FrameLines::of(rows.per_frame, is_pooled);
  if (!frame) return rows.per_frame; // refused by who reads the samples
  const int64_t patches = frame->side * frame->side;
  int64_t most = patches + 1; // an image that is not cut, with one newline
  if (!processor->splits_into_tiles) return most;
  for (const ImageSize& grid : processor->grids) {
    const int64_t frames = grid.height * grid.width + 1,
                  all = patches + most_picture_rows(*frame, grid.height, grid.width);
    most = std::max(most, (all + frames - 1) / frames);
  }
  return most;
}

int64_t most_rows_per_frame(const plan::Model& model) {
  const auto* folder = std::get_if<std::string>(&model.vision);
  return most_rows_per_frame(visual_rows(model), folder ? find_image_processor(*folder, model) : std::nullopt);
}

} // namespace fvlm::budget
