#include "recipe/shrunk_picture.h"

#include "base/error.h"
#include "recipe/bilinear_place.h"
#include "recipe/frame_lines.h"

#include <algorithm>
#include <cmath>

namespace fvlm {
namespace {

constexpr int64_t max_tiles = 9;     // anyres_max_9
constexpr double shrunk_above = 1.1; // of a side, compared with that of a square of so many tiles

// Bits of a placeholder, from the lowest.
constexpr int patch_bits = 14, tile_bits = 4, margin_bits = 7;

} // namespace

std::optional<ShrunkPicture::Size> ShrunkPicture::size(int64_t side) const {
  const int64_t lines = rows * side - 2 * top, wide = columns * side - 2 * left;
  const double ratio = std::sqrt(static_cast<double>(lines * wide) / static_cast<double>(max_tiles * side * side));
  if (!(ratio > shrunk_above)) return std::nullopt;
  // As Python divides and rounds down, where a rounded quotient would be the next number.
  const auto shrunk = [ratio](int64_t length) {
    const auto all = static_cast<double>(length);
    return std::llround((all - std::fmod(all, ratio)) / ratio);
  };
  return Size{shrunk(lines), shrunk(wide)};
}

int32_t shrunk_placeholder(const ShrunkPicture& picture, int64_t patch) {
  const int64_t margin = std::max(picture.top, picture.left);
  if (patch >> patch_bits || picture.rows >> tile_bits || picture.columns >> tile_bits || margin >> margin_bits)
    throw Error(ErrorKind::data, "a picture of {} x {} tiles with margins of {} patches is too large to be shrunk",
                picture.columns, picture.rows, margin)
        .advise("take an image processor whose image_grid_pinpoints have fewer tiles");
  int64_t number = picture.left > 0;
  for (const auto& [value, bits] : {std::pair{margin, margin_bits}, std::pair{picture.rows, tile_bits},
                                    std::pair{picture.columns, tile_bits}, std::pair{patch, patch_bits}})
    number = (number << bits) + value;
  return static_cast<int32_t>(first_shrunk_placeholder - number);
}

ShrunkPatch ShrunkPatch::of(int64_t placeholder) {
  int64_t number = first_shrunk_placeholder - placeholder;
  const auto take = [&number](int bits) {
    const int64_t value = number & ((int64_t{1} << bits) - 1);
    number >>= bits;
    return value;
  };
  ShrunkPatch out;
  out.patch = take(patch_bits);
  out.picture.columns = take(tile_bits);
  out.picture.rows = take(tile_bits);
  const int64_t margin = take(margin_bits);
  (number > 0 ? out.picture.left : out.picture.top) = margin;
  return out;
}

ShrunkPatch::Mean ShrunkPatch::mean(int64_t rows_per_frame) const {
  const auto frame = FrameLines::of(rows_per_frame, true);
  if (!frame)
    throw Error(ErrorKind::data, "a placeholder is of a shrunk picture, and frames of {} rows have no lines of patches",
                rows_per_frame)
        .advise("write the token_ids anew for this model");
  const int64_t side = frame->side, lines = picture.rows * side - 2 * picture.top,
                columns = picture.columns * side - 2 * picture.left;
  const auto size = lines > 0 && columns > 0 ? picture.size(side) : std::nullopt;
  if (!size || patch >= size->lines * size->columns)
    throw Error(ErrorKind::data,
                "a placeholder is of patch {} of a picture of {} x {} tiles of {} x {} patches, which {}", patch,
                picture.columns, picture.rows, side, side, size ? "has fewer" : "is not shrunk")
        .advise("write the token_ids anew for this model");
  const BilinearPlace y(patch / size->columns, size->lines, lines), x(patch % size->columns, size->columns, columns);
  const auto patch_at = [&](int64_t line, int64_t column) {
    line += picture.top, column += picture.left;
    const int64_t tile = line / side * picture.columns + column / side;
    return tile * rows_per_frame + frame->patch(line % side, column % side);
  };
  return {{patch_at(y.first, x.first), patch_at(y.first, x.second), patch_at(y.second, x.first),
           patch_at(y.second, x.second)},
          {(1 - y.share) * (1 - x.share), (1 - y.share) * x.share, y.share * (1 - x.share), y.share * x.share}};
}

} // namespace fvlm
