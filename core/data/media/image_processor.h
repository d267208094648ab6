// ImageProcessor: prepares an image for an encoder as the image processor of a Hugging Face folder does. The pixels and
// the normalized values are those of transformers' PIL-based processors, bit for bit.
//
// An image becomes one frame, or with a family of tile_forms.inc several: it is cut into square tiles, and the last
// frame is the whole image at the size of a tile (the global image, or thumbnail), or into cells of a few patches,
// and the whole image follows in cells, or comes before them, where those are cut into tiles.
#pragma once
#include "data/media/image.h"
#include "data/media/normalise.h"
#include "data/media/resize.h"
#include "data/tile_grid.h"
#include "recipe/processor_overrides.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace fvlm {

struct ImageSize {
  int64_t height = 0, width = 0;
  bool operator==(const ImageSize&) const = default;
};

// What differs for videos: of cells, or with `sampling`, of frames that are not cut.
struct VideoProcessor {
  int64_t min_pixels = 0, max_pixels = 0; // of each frame, or of all frames of a video together:
  // Qwen3-VL. The text then says of each step when it is shown.
  bool counts_all_frames = false;
  // Where a frame has its even share of a limit for the whole video at most: how many tokens a video is meant to take,
  // or with counts_all_frames a frame of it.
  std::optional<int64_t> max_tokens;
  // Of SmolVLM2, whose text says of each frame when it is shown (video_text.h).
  struct Sampling {
    double per_second = 1;
    int64_t max_frames = 64;
    int64_t edge = 0; // as ImageProcessor's, before the frame becomes a square
    bool operator==(const Sampling&) const = default;
  };
  std::optional<Sampling> sampling;
  bool operator==(const VideoProcessor&) const = default;
};

// Of Granite Docling: images whose width is more than `min_aspect` times their height, and at most `max_aspect` times
// where that is not 0, and whose tiles together have less than `max_scale` of their width, are cut into more tiles.
struct SpreadTiles {
  int64_t max_tiles = 0;
  double max_scale = 0, min_aspect = 0, max_aspect = 0; // 0: whatever it is
  bool operator==(const SpreadTiles&) const = default;
};

// The steps in their order. The image should be decoded with DecodeOptions::white_background.
struct ImageProcessor {
  // Pads the shorter side with this color on both sides until the image is square; with into_square once it is resized.
  std::optional<std::array<uint8_t, 3>> square_padding;

  // exact: to `size`. shortest_edge, longest_edge: that side to `edge`, and the other one in proportion. into_square:
  // the longer side to `edge`, and the other one in proportion, but to `min_edge` at least.
  enum class Resize { none, exact, shortest_edge, longest_edge, into_square };
  Resize resize = Resize::none;
  ImageSize size;
  int64_t edge = 0, min_edge = 0;
  ResizeFilter filter = ResizeFilter::bicubic;

  std::optional<ImageSize> center_crop; // an image that is smaller gets black margins

  // Frames are squares of this side: with `splits_into_tiles` the image is resized to a grid of them and cut, without
  // the whole image is resized to one tile.
  std::optional<int64_t> tile;
  bool splits_into_tiles = false;
  // What the form makes of it (tile_forms/): how many tiles there are, grids of tiles, how many pixels an image may
  // have.
  TileForm tile_form = TileForm::idefics3;
  int64_t min_tiles = 1, max_tiles = 1;
  bool tiles_cover = false; // the fewest tiles that keep most pixels are taken, whatever min_tiles says
  std::optional<SpreadTiles> spread;
  std::vector<ImageSize> grids; // in tiles
  int64_t min_pixels = 0, max_pixels = 0;
  // Cells of an image with more pixels are grouped into tiles of so many a side; 0: images are not cut into tiles.
  double split_pixels = 0;
  int64_t tile_cells = 0, patch = 0;
  bool adds_whole = false;             // behind such tiles
  bool numbers_images = false;         // the text says before each image which one it is
  bool keeps_small = false;            // images that are not larger than they become do not grow
  int64_t step_frames = 1;             // of a video, that are read together
  std::optional<VideoProcessor> video; // nothing: the folder does not say how videos are prepared
  // llava_onevision: as llava_next, but several images of one sample are not cut, and padded to squares of this color.
  std::optional<std::array<uint8_t, 3>> padding_of_several;

  // (value * rescale_factor - mean) / deviation, by channel
  double rescale_factor = 1;
  std::array<float, 3> mean{0, 0, 0}, deviation{1, 1, 1};

  bool has_cells() const { return splits_into_tiles && fvlm::has_cells(tile_form); }
  bool has_video_text() const { return video && video->sampling; }
  bool operator==(const ImageProcessor&) const = default;
};

// What an image becomes.
struct ImageLayout {
  int64_t rows = 0, columns = 0; // of tiles, which come row by row; 0: the image was not cut
  ImageSize frame;               // the size of each frame
  ImageSize image;               // see TileGrid
  bool has_cells = false;
  int64_t tile_rows = 0, tile_columns = 0, whole_rows = 0, whole_columns = 0; // these: see TileGrid
  bool is_whole_first = false, is_numbered = false;
  TileGrid grid() const {
    TileGrid grid{rows, columns, image.height, image.width, has_cells};
    grid.tile_rows = tile_rows, grid.tile_columns = tile_columns;
    grid.whole_rows = whole_rows, grid.whole_columns = whole_columns, grid.is_whole_first = is_whole_first;
    if (is_numbered) grid.number = 0;
    return grid;
  }
  int64_t frames() const { return grid().frames(); }
  bool operator==(const ImageLayout&) const = default;
};

// For the images of a sample with so many of them.
ImageProcessor for_images(const ImageProcessor& processor, int64_t images);

// Throws Error(data) for an image so long and narrow that it would be resized to more than 64 Mi pixels, or that
// cannot be cut into cells.
ImageLayout layout_of(const ImageProcessor& processor, ImageSize image);

// The size to which the whole image is resized, before it is cut into tiles or cells. Nothing where margins are added
// to it or cut off. Throws as above.
std::optional<ImageSize> resized_size(const ImageProcessor& processor, ImageSize image);

// For the frames of a video of so many, all of this size; one with cells has `video`. Throws as above.
ImageProcessor for_video(const ImageProcessor& processor, ImageSize frame, int64_t frames);

// out: [frames, 3, height, width] as layout_of() says. [any thread]
void process(const ImageProcessor& processor, const Image& image, std::span<float> out);
// The same in two steps: pixels [frames, height, width, 3], and the normalized value of each.
void process_pixels(const ImageProcessor& processor, const Image& image, std::span<uint8_t> out);
NormalizationTable normalization_of(const ImageProcessor& processor);

// The size of every frame, whatever the image; nothing where it depends on the image.
std::optional<ImageSize> frame_size(const ImageProcessor& processor);

// Reads preprocessor_config.json of a Hugging Face folder, or the section `image_processor` of its
// processor_config.json, which goes first as in transformers. CLIP, SigLIP, BiT (DINOv2), LLaVA, Gemma 3 and what
// tile_forms/ has are supported, with what the folder says of videos (Qwen2-VL's, Qwen3-VL's and SmolVLM2's). Throws
// Error(data) with every option that is not. Nothing where the folder has neither of these, or its config.json is
// DINOv2's: fVLM's frames are not cropped. `overrides` replace limits of the folder, see override_processor().
std::optional<ImageProcessor> find_image_processor(const std::filesystem::path& folder,
                                                   const ProcessorOverrides& overrides = {});

} // namespace fvlm
