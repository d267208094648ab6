#include "data/media/image_processor.h"

#include "base/error.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fvlm {
namespace {

constexpr int64_t max_side = 4096; // of Idefics3's images before they are cut
constexpr int64_t max_pixels = 64 << 20;

using sizes::truncated; // where transformers cuts digits off

ImageSize by_shortest_edge(ImageSize image, int64_t edge) {
  const auto [shorter, longer] = std::minmax(image.height, image.width);
  const int64_t other = truncated(static_cast<double>(edge * longer) / static_cast<double>(shorter));
  return image.width <= image.height ? ImageSize{other, edge} : ImageSize{edge, other};
}

int64_t even(int64_t length) {
  return length + length % 2;
}

ImageSize by_longest_edge(ImageSize image, int64_t edge) {
  double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  ImageSize size = image.width >= image.height ? ImageSize{even(truncated(static_cast<double>(edge) / ratio)), edge}
                                               : ImageSize{edge, even(truncated(static_cast<double>(edge) * ratio))};
  size = {std::max<int64_t>(size.height, 1), std::max<int64_t>(size.width, 1)};
  ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  if (size.width >= size.height && size.width > max_side)
    size = {truncated(static_cast<double>(max_side) / ratio), max_side};
  else if (size.height > size.width && size.height > max_side)
    size = {max_side, truncated(static_cast<double>(max_side) * ratio)};
  return {std::max<int64_t>(size.height, 1), std::max<int64_t>(size.width, 1)};
}

// Rounded as transformers does it.
ImageSize within_square(ImageSize image, int64_t edge, int64_t min_edge) {
  const double scale = static_cast<double>(edge) / static_cast<double>(std::max(image.height, image.width));
  const auto scaled = [&](int64_t length) {
    return std::max(static_cast<int64_t>(std::nearbyint(static_cast<double>(length) * scale)), min_edge);
  };
  return {scaled(image.height), scaled(image.width)};
}

bool is_padded_last(const ImageProcessor& processor) {
  return processor.resize == ImageProcessor::Resize::into_square;
}

CutSizes sizes_of(const ImageProcessor& processor, ImageSize image) {
  CutSizes sizes{.padded = image};
  if (processor.square_padding && !is_padded_last(processor))
    sizes.padded.height = sizes.padded.width = std::max(image.height, image.width);
  switch (processor.resize) {
  case ImageProcessor::Resize::none:
    sizes.resized = sizes.padded;
    break;
  case ImageProcessor::Resize::exact:
    sizes.resized = processor.size;
    break;
  case ImageProcessor::Resize::shortest_edge:
    sizes.resized = by_shortest_edge(sizes.padded, processor.edge);
    break;
  case ImageProcessor::Resize::longest_edge:
    sizes.resized = by_longest_edge(sizes.padded, processor.edge);
    break;
  case ImageProcessor::Resize::into_square:
    sizes.resized = within_square(image, processor.edge, processor.min_edge);
    break;
  }
  sizes.tiled = is_padded_last(processor) ? ImageSize{processor.edge, processor.edge} : sizes.resized;
  const bool has_own_size = processor.has_cells() && processor.resize == ImageProcessor::Resize::exact;
  if (processor.tile && !has_own_size) sizes.tiled = {*processor.tile, *processor.tile};
  if (processor.splits_into_tiles) rules_of(processor.tile_form).cut(processor, image, sizes);
  for (const ImageSize& size : {sizes.padded, sizes.resized, sizes.tiled})
    if (size.height < 1 || size.width < 1 || size.height > max_pixels / size.width)
      throw Error(ErrorKind::data,
                  "an image of {} x {} pixels would be resized to {} x {}, and at most {} pixels are supported",
                  image.width, image.height, size.width, size.height, max_pixels)
          .advise("crop or pad images that are so long and narrow before they go into a shard");
  return sizes;
}

Image padded(const Image& image, const std::array<uint8_t, 3>& color) {
  const int64_t side = std::max(image.height, image.width);
  Image out{side, side, std::vector<uint8_t>(static_cast<size_t>(side * side * 3))};
  for (size_t i = 0; i < out.rgb.size(); ++i) out.rgb[i] = color[i % 3];
  const int64_t top = (side - image.height) / 2, left = (side - image.width) / 2, stride = image.width * 3;
  for (int64_t y = 0; y < image.height; ++y)
    std::copy_n(image.rgb.begin() + y * stride, stride, out.rgb.begin() + ((top + y) * side + left) * 3);
  return out;
}

Image resized(const Image& image, ImageSize size, ResizeFilter filter) {
  Image out{size.width, size.height, std::vector<uint8_t>(static_cast<size_t>(size.width * size.height * 3))};
  resize(image, size.width, size.height, out.rgb, filter);
  return out;
}

// Copies the part of the image that begins at (top, left) to out[height, width, 3]; black outside of the image.
void copy_window(const Image& image, int64_t top, int64_t left, ImageSize window, uint8_t* out) {
  std::fill_n(out, window.height * window.width * 3, uint8_t{0});
  const int64_t first = std::max<int64_t>(left, 0), end = std::min(left + window.width, image.width);
  for (int64_t y = std::max<int64_t>(top, 0); y < std::min(top + window.height, image.height) && first < end; ++y)
    std::copy_n(image.rgb.begin() + (y * image.width + first) * 3, (end - first) * 3,
                out + ((y - top) * window.width + first - left) * 3);
}

// Where a window of this length begins in the middle of a line; negative: the line is shorter.
int64_t centered(int64_t line, int64_t window) {
  return line >= window ? (line - window) / 2 : -((window - line + 1) / 2);
}

bool has_margins(const ImageProcessor& processor) {
  return processor.splits_into_tiles && !processor.grids.empty();
}

ImageLayout layout_of(const ImageProcessor& processor, const CutSizes& sizes) {
  ImageLayout layout;
  layout.frame = processor.center_crop.value_or(sizes.tiled);
  if (!processor.tile) return layout;
  const int64_t tile = *processor.tile;
  layout.frame = {tile, tile};
  layout.has_cells = processor.has_cells();
  if (has_margins(processor)) layout.image = sizes.padded;
  if (sizes.tiled != layout.frame || has_margins(processor) || layout.has_cells)
    layout.rows = sizes.tiled.height / tile, layout.columns = sizes.tiled.width / tile;
  layout.tile_rows = sizes.tile_cells.height, layout.tile_columns = sizes.tile_cells.width;
  layout.is_whole_first = sizes.is_whole_first;
  layout.is_numbered = processor.numbers_images;
  if (sizes.whole) layout.whole_rows = sizes.whole->height / tile, layout.whole_columns = sizes.whole->width / tile;
  return layout;
}

} // namespace

ImageProcessor for_images(const ImageProcessor& processor, int64_t images) {
  ImageProcessor out = processor;
  if (!processor.padding_of_several || images == 1) return out;
  out.splits_into_tiles = false;
  out.square_padding = processor.padding_of_several;
  return out;
}

ImageLayout layout_of(const ImageProcessor& processor, ImageSize image) {
  return layout_of(processor, sizes_of(processor, image));
}

std::optional<ImageSize> resized_size(const ImageProcessor& processor, ImageSize image) {
  if (processor.square_padding || processor.center_crop || is_padded_last(processor) || has_margins(processor))
    return std::nullopt;
  return sizes_of(processor, image).tiled;
}

ImageProcessor for_video(const ImageProcessor& processor, ImageSize frame, int64_t frames) {
  ImageProcessor out = processor;
  if (!processor.has_cells()) {
    out.splits_into_tiles = false;
    if (processor.has_video_text()) out.edge = processor.video->sampling->edge;
    return out;
  }
  out.resize = ImageProcessor::Resize::exact;
  out.size = rules_of(processor.tile_form).video_size(processor, frame, frames);
  return out;
}

NormalizationTable normalization_of(const ImageProcessor& processor) {
  NormalizationTable table{};
  for (size_t channel = 0; channel < 3; ++channel)
    for (size_t value = 0; value < 256; ++value) {
      const auto rescaled = static_cast<float>(static_cast<double>(value) * processor.rescale_factor);
      table[channel][value] = (rescaled - processor.mean[channel]) / processor.deviation[channel];
    }
  return table;
}

void process_pixels(const ImageProcessor& processor, const Image& image, std::span<uint8_t> out) {
  const CutSizes sizes = sizes_of(processor, {image.height, image.width});
  const ImageLayout layout = layout_of(processor, sizes);
  const int64_t frame = 3 * layout.frame.height * layout.frame.width;
  if (out.size() != static_cast<size_t>(layout.frames() * frame))
    throw Error(ErrorKind::internal, "process: {} values for {} frames of {} x {} pixels", out.size(), layout.frames(),
                layout.frame.width, layout.frame.height);
  Image whole = is_padded_last(processor) ? resized(image, sizes.resized, processor.filter) : image;
  if (processor.square_padding) whole = padded(whole, *processor.square_padding);
  const bool global_of_tiles = processor.tile && rules_of(processor.tile_form).whole_is_of_tiles;
  for (const ImageSize& size :
       {is_padded_last(processor) ? sizes.tiled : sizes.resized, has_margins(processor) ? sizes.resized : sizes.tiled})
    if (size != ImageSize{whole.height, whole.width}) whole = resized(whole, size, processor.filter);
  const int64_t top = (sizes.tiled.height - whole.height) / 2, left = (sizes.tiled.width - whole.width) / 2;
  uint8_t* end = out.data();
  // The frames of so many lines and columns from one on.
  const auto cut = [&](const Image& from, int64_t first_row, int64_t first_column, int64_t rows, int64_t columns) {
    for (int64_t row = first_row; row < first_row + rows; ++row)
      for (int64_t column = first_column; column < first_column + columns; ++column, end += frame)
        copy_window(from, row * layout.frame.height - top, column * layout.frame.width - left, layout.frame, end);
  };
  const auto cut_whole = [&] {
    cut(resized(image, *sizes.whole, processor.filter), 0, 0, layout.whole_rows, layout.whole_columns);
  };
  if (layout.is_whole_first) cut_whole();
  const bool has_tiles = layout.tile_rows > 0;
  const int64_t rows = has_tiles ? layout.tile_rows : layout.rows,
                columns = has_tiles ? layout.tile_columns : layout.columns;
  for (int64_t row = 0; row < layout.rows; row += rows)
    for (int64_t column = 0; column < layout.columns; column += columns) cut(whole, row, column, rows, columns);
  if (sizes.whole && !layout.is_whole_first) cut_whole();
  if (layout.has_cells) return;
  if (layout.rows > 0) whole = resized(global_of_tiles ? whole : image, layout.frame, processor.filter);
  copy_window(whole, centered(whole.height, layout.frame.height), centered(whole.width, layout.frame.width),
              layout.frame, end);
}

void process(const ImageProcessor& processor, const Image& image, std::span<float> out) {
  const ImageSize size = layout_of(processor, ImageSize{image.height, image.width}).frame;
  const auto frame = static_cast<size_t>(3 * size.height * size.width);
  const NormalizationTable table = normalization_of(processor);
  std::vector<uint8_t> pixels(out.size());
  process_pixels(processor, image, pixels);
  for (size_t at = 0; at < out.size(); at += frame)
    normalise(std::span(pixels).subspan(at, frame), out.subspan(at, frame), table);
}

std::optional<ImageSize> frame_size(const ImageProcessor& processor) {
  if (processor.tile) return ImageSize{*processor.tile, *processor.tile};
  if (processor.center_crop) return processor.center_crop;
  if (processor.resize == ImageProcessor::Resize::exact) return processor.size;
  if (is_padded_last(processor)) return ImageSize{processor.edge, processor.edge};
  return std::nullopt;
}

} // namespace fvlm
