// What the image processor of a family does that cuts images into tiles or cells: a line in tile_forms.inc, and a file
// here, which defines its `<name>_rules`.
#pragma once
#include "data/media/image_processor.h"
#include "data/media/image_processor_reader.h"

#include <cstdint>
#include <optional>
#include <span>

namespace fvlm {

// The size of the image after each step that changes it.
struct CutSizes {
  ImageSize padded, resized, tiled;
  ImageSize tile_cells;           // of tiles that are cut into cells, see ImageLayout; 0: there are none
  std::optional<ImageSize> whole; // behind such tiles, or before them
  bool is_whole_first = false;
};

struct TileFormRules {
  std::span<const ProcessorClass> classes; // of transformers
  // Options of their configs that change pixels or the text, beside those that all processors have.
  std::span<const char* const> options;
  // Reads these options into an ImageProcessor that has what all processors have.
  void (*read)(ProcessorReader& reader);
  // Sets `tiled`, and what else is not as the resizing of the whole image leaves it.
  void (*cut)(const ImageProcessor& processor, ImageSize image, CutSizes& sizes);

  // The whole image, as the last frame, is made of what was cut, not of the image itself.
  bool whole_is_of_tiles = false;
  bool has_videos = false;       // the engine reads them
  bool has_pixel_limits = false; // a user may set them
  bool tells_first_time = false; // a step is shown when its first frame is, otherwise at the mean of its frames' times
  // Where tiles are cells: the size of the frames of a video.
  ImageSize (*video_size)(const ImageProcessor& processor, ImageSize frame, int64_t frames) = nullptr;
};

#define FVLM_TILE_FORM(name, ...) extern const TileFormRules name##_rules;
#include "data/tile_forms.inc"
#undef FVLM_TILE_FORM

const TileFormRules& rules_of(TileForm form);
std::span<const TileForm> all_tile_forms();

} // namespace fvlm
