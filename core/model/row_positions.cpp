#include "model/row_positions.h"

#include "base/error.h"
#include "model/canvas_positions.h"
#include "recipe/visual_rows.h"

#include <algorithm>

namespace fvlm::model {
namespace {

// Counts the rows of one text.
class RowCounter {
 public:
  RowCounter(std::span<const ImageGrid> grids, const RowPositionRules& rules) : grids_(grids), rules_(rules) {}

  // Of the next row.
  RowPosition text() {
    if (cell_ > 0) refuse_interrupted_image(grids_.front(), cell_);
    return equal_positions(next_++);
  }
  RowPosition visual();
  int64_t next() const { return next_; }

 private:
  RowPosition of_image_with_lines();

  std::span<const ImageGrid> grids_; // of the images and videos that are not over
  const RowPositionRules& rules_;
  int64_t cell_ = 0;  // of the first of them, that is next; with XD-RoPE, the row
  int64_t image_ = 0; // that this one is
  int64_t next_ = 0;  // behind the rows of text and the images that are over
};

RowPosition RowCounter::visual() {
  if (grids_.empty()) return text();
  if (rules_.axes == RowAxes::xdrope) return of_image_with_lines();
  const ImageGrid& grid = grids_.front();
  const auto position = [&](int64_t offset) { return static_cast<int32_t>(next_ + offset); };
  const int64_t step = cell_ / grid.step_cells(), place = cell_ % grid.step_cells();
  // In float32, as transformers has it.
  const float interval = rules_.tokens_per_second > 0
                             ? static_cast<float>(rules_.tokens_per_second) * static_cast<float>(grid.step_seconds)
                             : 1;
  const auto time = static_cast<int64_t>(static_cast<float>(step) * interval);
  const RowPosition found{position(time), position(place / grid.columns), position(place % grid.columns),
                          position(time)};
  if (++cell_ == grid.cells()) {
    next_ += std::max(grid.rows, grid.columns);
    cell_ = 0;
    grids_ = grids_.subspan(1);
  }
  return found;
}

RowPosition RowCounter::of_image_with_lines() {
  const ImageGrid& grid = grids_.front();
  const int64_t line = grid.columns + 1, rows = grid.rows * line, place = cell_ - 1;
  RowPosition found = equal_positions(next_++);
  if (place >= 0 && place < rows)
    found = {found[0], static_cast<int32_t>(place % line), static_cast<int32_t>(place / line),
             static_cast<int32_t>(image_)};
  if (++cell_ == rows + 2) {
    cell_ = 0;
    ++image_;
    grids_ = grids_.subspan(1);
  }
  return found;
}

} // namespace

void refuse_interrupted_image(const ImageGrid& grid, int64_t cells) {
  throw Error(ErrorKind::data, "the placeholders of {} of {} x {} cells are interrupted behind {}",
              grid.is_video() ? "a video" : "an image", grid.rows, grid.columns, cells)
      .advise("the rows of an image or video stand one after the other: put text before or behind all of its "
              "placeholders");
}

RowPositions positions_of(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                          const RowPositionRules& rules) {
  if (rules.axes == RowAxes::canvas) return canvas_positions(rows, grids, rules.canvas);
  // On one axis the rows of an image count as text, and may have text between them.
  RowCounter counter(rules.axes == RowAxes::none ? std::span<const ImageGrid>() : grids, rules);
  RowPositions found;
  for (const int64_t row : rows) found.rows.push_back(row == visual_placeholder ? counter.visual() : counter.text());
  found.next = counter.next();
  return found;
}

RowPosition SequencePositions::of(int64_t row) const {
  const auto prompt = std::ssize(prompt_.rows);
  return row < prompt ? prompt_.rows[static_cast<size_t>(row)] : equal_positions(prompt_.next + row - prompt);
}

} // namespace fvlm::model
