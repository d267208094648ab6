#include "model/canvas_positions.h"

#include "base/error.h"
#include "recipe/visual_rows.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/round.h>

#include <algorithm>

namespace fvlm::model {
namespace {

// The rows `begin` to `end` of an image or of a part.
struct Crop {
  int64_t begin, end;
  ImageGrid grid;
};

struct ImageWithParts {
  Crop image;
  std::vector<Crop> parts;

  int64_t end() const { return parts.empty() ? image.end : parts.back().end; }
  // More than the tokens around two parts stand between them: a line ends.
  bool has_line_end_behind(size_t part) const { return parts[part + 1].begin - parts[part].end > 2; }
  int64_t columns() const {
    const auto count = std::ssize(parts);
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (const auto columns = static_cast<int64_t>(i) + 1; has_line_end_behind(i))
        return count % columns == 0 ? columns : count;
    return count;
  }
};

std::vector<ImageWithParts> images_of(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                                      const CanvasTokens& tokens) {
  const auto is_visual = [&](int64_t row) {
    return row >= 0 && row < std::ssize(rows) && rows[static_cast<size_t>(row)] == visual_placeholder;
  };
  std::vector<ImageWithParts> images;
  int64_t row = 0;
  for (const ImageGrid& grid : grids) {
    while (row < std::ssize(rows) && !is_visual(row)) ++row;
    if (row == std::ssize(rows)) break;
    if (row == 0 || is_visual(row - 1))
      throw Error(ErrorKind::data, "an image of {} x {} cells has no token before it, which positions are counted from",
                  grid.rows, grid.columns)
          .advise("write <image> where it is in the text, or put the token for the start of an image before its "
                  "placeholders");
    const Crop crop{row, row + grid.cells(), grid};
    for (; row < crop.end; ++row)
      if (!is_visual(row)) refuse_interrupted_image(grid, row - crop.begin);
    if (!images.empty() && rows[static_cast<size_t>(crop.begin - 1)] == tokens.slice_start_id)
      images.back().parts.push_back(crop);
    else
      images.push_back({crop, {}});
  }
  return images;
}

// So many places spread over a canvas's side, rounded as transformers does.
std::vector<int64_t> spread(int64_t count, int64_t side) {
  const at::Tensor places =
      at::linspace(0, side - 1, count, at::TensorOptions(at::kFloat)).round().to(at::kLong).contiguous();
  return {places.const_data_ptr<int64_t>(), places.const_data_ptr<int64_t>() + count};
}

class Canvas {
 public:
  Canvas(std::span<const int64_t> rows, const CanvasTokens& tokens) : rows_(rows), tokens_(tokens) {
    found_.rows.resize(rows.size());
  }

  void add(const ImageWithParts& shown) {
    const int64_t begin = shown.image.begin - 1;
    add_text(begin);
    int64_t end = shown.end();
    while (end < std::ssize(rows_) && is_marker(rows_[static_cast<size_t>(end)])) ++end;
    origin_ = next_;
    std::fill(found_.rows.begin() + begin, found_.rows.begin() + end, equal_positions(origin_));
    const int64_t ahead = std::max<int64_t>(origin_ - 1, 0) - origin_;
    place(begin, ahead, ahead);

    const ImageGrid part = shown.parts.empty() ? shown.image.grid : shown.parts.front().grid;
    const int64_t columns = shown.parts.empty() ? 1 : shown.columns(),
                  lines = shown.parts.empty() ? 1 : std::ssize(shown.parts) / columns;
    const int64_t height = lines * part.rows, width = columns * part.columns;
    if (shown.image.end < end) place(shown.image.end, height, width);
    place_cells(shown.image.begin, spread(shown.image.grid.rows, height), spread(shown.image.grid.columns, width));
    for (size_t i = 0; i < shown.parts.size(); ++i) {
      const auto number = static_cast<int64_t>(i);
      place_part(shown.parts[i], number / columns * part.rows, number % columns * part.columns, end);
    }
    for (size_t i = 0; i + 1 < shown.parts.size(); ++i)
      for (int64_t row = shown.parts[i].end + 1; row < shown.parts[i + 1].begin - 1; ++row)
        place(row, (static_cast<int64_t>(i) / columns + 1) * part.rows - 1, width);
    next_ = origin_ + std::max(height, width) + 1;
    at_ = end;
  }

  RowPositions finish() {
    add_text(std::ssize(rows_));
    for (const RowPosition& position : found_.rows)
      found_.next = std::max<int64_t>(found_.next, *std::ranges::max_element(position) + 1);
    return std::move(found_);
  }

 private:
  bool is_marker(int64_t token) const {
    return token == tokens_.image_start_id || token == tokens_.image_end_id || token == tokens_.slice_start_id ||
           token == tokens_.slice_end_id || token == tokens_.newline_id;
  }

  void add_text(int64_t end) {
    for (; at_ < end; ++at_) found_.rows[static_cast<size_t>(at_)] = equal_positions(next_++);
  }

  void place(int64_t row, int64_t line, int64_t column) {
    RowPosition& position = found_.rows[static_cast<size_t>(row)];
    position[1] = static_cast<int32_t>(origin_ + line);
    position[2] = static_cast<int32_t>(origin_ + column);
  }

  void place_cells(int64_t row, const std::vector<int64_t>& lines, const std::vector<int64_t>& columns) {
    for (const int64_t line : lines)
      for (const int64_t column : columns) place(row++, line, column);
  }

  // `end`: of the rows of its image.
  void place_part(const Crop& part, int64_t line, int64_t column, int64_t end) {
    place(part.begin - 1, line, column);
    if (part.end < end) place(part.end, line + part.grid.rows - 1, column + part.grid.columns - 1);
    for (int64_t cell = 0; cell < part.grid.cells(); ++cell)
      place(part.begin + cell, line + cell / part.grid.columns, column + cell % part.grid.columns);
  }

  std::span<const int64_t> rows_;
  const CanvasTokens& tokens_;
  RowPositions found_;
  int64_t at_ = 0;     // the first row that has no position yet
  int64_t next_ = 0;   // of the next row of text
  int64_t origin_ = 0; // of the current canvas
};

} // namespace

RowPositions canvas_positions(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                              const CanvasTokens& tokens) {
  Canvas canvas(rows, tokens);
  for (const ImageWithParts& image : images_of(rows, grids, tokens)) canvas.add(image);
  return canvas.finish();
}

} // namespace fvlm::model
