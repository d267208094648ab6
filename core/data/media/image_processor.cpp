#include "data/media/image_processor.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fvlm {
namespace {

constexpr int64_t max_side = 4096; // of Idefics3's images before they are cut
constexpr int64_t max_pixels = 64 << 20;

// Sizes are computed in transformers' order, so that they are truncated where its sizes are.
int64_t truncated(double length) {
  return static_cast<int64_t>(length);
}

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

int64_t multiple(int64_t length, int64_t of) {
  return (length + of - 1) / of * of;
}

ImageSize by_tiles(ImageSize image, int64_t tile) {
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  if (image.width >= image.height) {
    const int64_t width = multiple(image.width, tile);
    return {multiple(truncated(static_cast<double>(width) / ratio), tile), width};
  }
  const int64_t height = multiple(image.height, tile);
  return {height, multiple(truncated(static_cast<double>(height) * ratio), tile)};
}

// Of grids that are equally close, the one with more tiles, as long as they have less than twice the image's pixels.
ImageSize by_aspect_ratio(ImageSize image, int64_t tile, int64_t min_tiles, int64_t max_tiles) {
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  double least = std::numeric_limits<double>::infinity();
  ImageSize best{1, 1};
  for (int64_t tiles = min_tiles; tiles <= max_tiles; ++tiles)
    for (int64_t columns = 1; columns <= tiles; ++columns) {
      if (tiles % columns != 0) continue;
      const ImageSize grid{tiles / columns, columns};
      const double difference = std::abs(ratio - static_cast<double>(grid.width) / static_cast<double>(grid.height));
      const bool has_pixels_for_it = 2 * image.height * image.width > tile * tile * tiles;
      if (difference < least || (difference == least && has_pixels_for_it)) best = grid;
      least = std::min(least, difference);
    }
  return {best.height * tile, best.width * tile};
}

// Of grids in which the image keeps as many pixels, the smallest.
ImageSize by_kept_pixels(ImageSize image, int64_t tile, const std::vector<ImageSize>& grids) {
  const int64_t pixels = image.height * image.width;
  int64_t most = 0, least_rest = std::numeric_limits<int64_t>::max();
  ImageSize best;
  for (const ImageSize& grid : grids) {
    const ImageSize size{grid.height * tile, grid.width * tile};
    const double scale = std::min(static_cast<double>(size.width) / static_cast<double>(image.width),
                                  static_cast<double>(size.height) / static_cast<double>(image.height));
    const int64_t kept = std::min(pixels, truncated(static_cast<double>(image.width) * scale) *
                                              truncated(static_cast<double>(image.height) * scale)),
                  rest = size.height * size.width - kept;
    if (kept > most || (kept == most && rest < least_rest)) most = kept, least_rest = rest, best = size;
  }
  return best;
}

int64_t rounded_to(int64_t length, int64_t cell) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(length) / static_cast<double>(cell))) * cell;
}

void require_ratio(ImageSize image) {
  constexpr int64_t max_ratio = 200;
  if (std::max(image.height, image.width) > max_ratio * std::min(image.height, image.width))
    throw Error(ErrorKind::data, "an image of {} x {} pixels is more than {} times as long as it is narrow",
                image.width, image.height, max_ratio)
        .advise("crop or pad images that are so long and narrow");
}

// Both sides are rounded, to the even one of two multiples that are equally close, and to `least` at least. The limits
// are for so many frames together, where rounding counts `padded` of them.
ImageSize by_pixels(ImageSize image, int64_t cell, int64_t min_pixels, int64_t max_pixels, int64_t least = 0,
                    int64_t frames = 1, int64_t padded = 1) {
  const auto side = static_cast<double>(cell), height = static_cast<double>(image.height),
             width = static_cast<double>(image.width), pixels = static_cast<double>(frames) * height * width;
  const ImageSize size{std::max(least, rounded_to(image.height, cell)), std::max(least, rounded_to(image.width, cell))};
  if (padded * size.height * size.width > max_pixels) {
    const double shrink = std::sqrt(pixels / static_cast<double>(max_pixels));
    const auto rounded = [&](double length) {
      return std::max(cell, static_cast<int64_t>(std::floor(length / shrink / side)) * cell);
    };
    return {rounded(height), rounded(width)};
  }
  if (padded * size.height * size.width < min_pixels) {
    const double grow = std::sqrt(static_cast<double>(min_pixels) / pixels);
    const auto rounded = [&](double length) { return static_cast<int64_t>(std::ceil(length * grow / side)) * cell; };
    return {rounded(height), rounded(width)};
  }
  return size;
}

// In proportion, but for rounding, so that each side has a cell's length at least.
ImageSize of_a_cell_at_least(ImageSize image, int64_t cell) {
  const auto in_proportion = [cell](int64_t other, int64_t shorter) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(other * cell) / static_cast<double>(shorter)));
  };
  if (image.height < cell) image = {cell, in_proportion(image.width, image.height)};
  if (image.width < cell) image = {in_proportion(image.height, image.width), cell};
  return image;
}

// In proportion, with digits cut off as in transformers, so that the shorter side has a cell's length at least.
ImageSize of_a_cell_at_least_truncated(ImageSize image, int64_t cell) {
  if (std::min(image.height, image.width) >= cell) return image;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double scale = std::max(static_cast<double>(cell) / height, static_cast<double>(cell) / width);
  return {truncated(height * scale), truncated(width * scale)};
}

// The size that fits in another, with both sides rounded up to multiples of a cell.
ImageSize by_longest_sides(ImageSize image, int64_t cell, ImageSize most) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width),
             ratio = std::max(height / static_cast<double>(most.height), width / static_cast<double>(most.width));
  if (ratio > 1) image = {truncated(height / ratio), truncated(width / ratio)};
  if (image.height < 1 || image.width < 1)
    throw Error(ErrorKind::data,
                "an image of {:.0f} x {:.0f} pixels is too long and narrow: shrunk to {} x {}, it has "
                "no pixels",
                width, height, most.width, most.height)
        .advise("crop or pad images that are so long and narrow");
  return {multiple(image.height, cell), multiple(image.width, cell)};
}

// The largest size of whole cells that has the image's aspect ratio, but for rounding, and at most so many pixels.
ImageSize by_most_pixels(ImageSize image, int64_t cell, int64_t max_pixels) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width),
             scale = std::sqrt(static_cast<double>(max_pixels) / (height * width));
  const auto cells = [&](double length) {
    return static_cast<int64_t>(std::floor(length * scale / static_cast<double>(cell)));
  };
  ImageSize size{cells(height), cells(width)};
  // Narrower than a cell.
  const int64_t longest = max_pixels / (cell * cell);
  if (size.height == 0) size = {1, std::min(image.width / image.height, longest)};
  if (size.width == 0) size = {std::min(image.height / image.width, longest), 1};
  return {size.height * cell, size.width * cell};
}

// The size of the frames of a video. Numbers are truncated where transformers does it.
ImageSize of_video(const ImageProcessor& processor, ImageSize frame, int64_t frames) {
  const VideoProcessor& video = *processor.video;
  const int64_t cell = *processor.tile, steps = processor.step_frames,
                least = static_cast<int64_t>(static_cast<double>(video.min_pixels) * 1.05);
  int64_t most = video.max_pixels;
  require_ratio(frame);
  if (!video.counts_all_frames) {
    if (video.max_tokens) {
      const auto all = static_cast<int64_t>(static_cast<double>(*video.max_tokens * cell * cell) * 0.9);
      most = std::max(std::min(most, all * steps / frames), least);
    }
    return by_pixels(frame, cell, video.min_pixels, most);
  }
  frames = std::max(frames, steps); // of one frame a step is made, too
  if (video.max_tokens) most = std::max(std::min(*video.max_tokens * cell * cell, most / frames), least) * frames;
  frame = of_a_cell_at_least_truncated(frame, cell);
  const auto padded =
      static_cast<int64_t>(std::nearbyint(static_cast<double>(frames) / static_cast<double>(steps))) * steps;
  return by_pixels(frame, cell, video.min_pixels, most, 0, frames, padded);
}

// The largest size that has the image's aspect ratio and fits into another.
ImageSize fitted(ImageSize image, ImageSize into) {
  const double by_width = static_cast<double>(into.width) / static_cast<double>(image.width),
               by_height = static_cast<double>(into.height) / static_cast<double>(image.height);
  const auto scaled = [](int64_t length, double scale, int64_t most) {
    return std::min(static_cast<int64_t>(std::ceil(static_cast<double>(length) * scale)), most);
  };
  return by_width < by_height ? ImageSize{scaled(image.height, by_width, into.height), into.width}
                              : ImageSize{into.height, scaled(image.width, by_height, into.width)};
}

// The size of the image after each step that changes it.
struct Sizes {
  ImageSize padded, resized, tiled;
  int64_t tile_cells = 0;         // of tiles that are cut into cells, see ImageLayout
  std::optional<ImageSize> whole; // behind such tiles
};

// Sets the sizes of LFM2-VL's image and of its copy behind tiles.
void set_cells_or_tiles(const ImageProcessor& processor, ImageSize image, Sizes& sizes) {
  const int64_t cell = *processor.tile;
  const ImageSize alone = by_pixels(image, cell, processor.min_pixels, processor.max_pixels, cell);
  const auto pixels = static_cast<double>(std::max(processor.patch, rounded_to(image.height, cell)) *
                                          std::max(processor.patch, rounded_to(image.width, cell)));
  sizes.tiled = alone;
  if (processor.split_pixels == 0 || pixels <= processor.split_pixels) return;
  sizes.tiled = by_aspect_ratio(image, processor.tile_cells * cell, processor.min_tiles, processor.max_tiles);
  sizes.tile_cells = processor.tile_cells;
  if (processor.adds_whole) sizes.whole = alone;
}

Sizes sizes_of(const ImageProcessor& processor, ImageSize image) {
  Sizes sizes{.padded = image};
  if (processor.square_padding) sizes.padded.height = sizes.padded.width = std::max(image.height, image.width);
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
  }
  sizes.tiled = sizes.resized;
  const bool has_own_size = processor.has_cells() && processor.resize == ImageProcessor::Resize::exact;
  if (processor.tile && !has_own_size) sizes.tiled = {*processor.tile, *processor.tile};
  if (processor.splits_into_tiles) switch (processor.tile_form) {
    case TileForm::idefics3:
      sizes.tiled = by_tiles(sizes.resized, *processor.tile);
      break;
    case TileForm::internvl:
      sizes.tiled = by_aspect_ratio(sizes.resized, *processor.tile, processor.min_tiles, processor.max_tiles);
      break;
    case TileForm::llava_next:
    case TileForm::llava_onevision:
      sizes.tiled = by_kept_pixels(image, *processor.tile, processor.grids);
      sizes.resized = fitted(image, sizes.tiled);
      break;
    case TileForm::paddleocr:
      image = of_a_cell_at_least(image, *processor.tile);
      [[fallthrough]];
    case TileForm::qwen2_vl:
      require_ratio(image);
      if (!has_own_size) sizes.tiled = by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels);
      break;
    case TileForm::glm:
      image = of_a_cell_at_least_truncated(image, *processor.tile);
      require_ratio(image);
      sizes.tiled = by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels, 0,
                              processor.step_frames, processor.step_frames);
      break;
    case TileForm::lfm2_vl:
      set_cells_or_tiles(processor, image, sizes);
      break;
    case TileForm::gemma4:
      sizes.tiled = by_most_pixels(image, *processor.tile, processor.max_pixels);
      break;
    case TileForm::pixtral:
    case TileForm::lighton_ocr:
      sizes.tiled = by_longest_sides(image, *processor.tile, processor.size);
      break;
    }
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

ImageLayout layout_of(const ImageProcessor& processor, const Sizes& sizes) {
  ImageLayout layout;
  layout.frame = processor.center_crop.value_or(sizes.tiled);
  if (!processor.tile) return layout;
  const int64_t tile = *processor.tile;
  layout.frame = {tile, tile};
  layout.has_cells = processor.has_cells();
  if (has_margins(processor)) layout.image = sizes.padded;
  if (sizes.tiled != layout.frame || has_margins(processor) || layout.has_cells)
    layout.rows = sizes.tiled.height / tile, layout.columns = sizes.tiled.width / tile;
  layout.tile_cells = sizes.tile_cells;
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

ImageProcessor for_video(const ImageProcessor& processor, ImageSize frame, int64_t frames) {
  ImageProcessor out = processor;
  if (!processor.has_cells()) {
    out.splits_into_tiles = false;
    if (processor.has_video_text()) out.edge = processor.video->sampling->edge;
    return out;
  }
  out.resize = ImageProcessor::Resize::exact;
  out.size = of_video(processor, frame, frames);
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
  const Sizes sizes = sizes_of(processor, {image.height, image.width});
  const ImageLayout layout = layout_of(processor, sizes);
  const int64_t frame = 3 * layout.frame.height * layout.frame.width;
  if (out.size() != static_cast<size_t>(layout.frames() * frame))
    throw Error(ErrorKind::internal, "process: {} values for {} frames of {} x {} pixels", out.size(), layout.frames(),
                layout.frame.width, layout.frame.height);
  Image whole = processor.square_padding ? padded(image, *processor.square_padding) : image;
  const bool global_of_tiles = processor.tile_form == TileForm::idefics3;
  for (const ImageSize& size : {sizes.resized, has_margins(processor) ? sizes.resized : sizes.tiled})
    if (size != ImageSize{whole.height, whole.width}) whole = resized(whole, size, processor.filter);
  const int64_t top = (sizes.tiled.height - whole.height) / 2, left = (sizes.tiled.width - whole.width) / 2;
  uint8_t* end = out.data();
  // The frames of so many lines and columns from one on.
  const auto cut = [&](int64_t first_row, int64_t first_column, int64_t rows, int64_t columns) {
    for (int64_t row = first_row; row < first_row + rows; ++row)
      for (int64_t column = first_column; column < first_column + columns; ++column, end += frame)
        copy_window(whole, row * layout.frame.height - top, column * layout.frame.width - left, layout.frame, end);
  };
  const int64_t side = layout.tile_cells, rows = side > 0 ? side : layout.rows,
                columns = side > 0 ? side : layout.columns;
  for (int64_t row = 0; row < layout.rows; row += rows)
    for (int64_t column = 0; column < layout.columns; column += columns) cut(row, column, rows, columns);
  if (sizes.whole) {
    whole = resized(image, *sizes.whole, processor.filter);
    cut(0, 0, layout.whole_rows, layout.whole_columns);
  }
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
  return std::nullopt;
}

} // namespace fvlm
