#include "model/row_positions.h"

#include "base/error.h"
#include "recipe/visual_rows.h"

#include <algorithm>

namespace fvlm::model {

RowPosition RowCounter::text() {
  if (cell_ > 0)
    throw Error(ErrorKind::data, "the placeholders of {} of {} x {} cells are interrupted behind {}",
                grids_.front().is_video() ? "a video" : "an image", grids_.front().rows, grids_.front().columns, cell_)
        .advise("the rows of an image or video stand one after the other: put text before or behind all of its "
                "placeholders");
  return equal_positions(next_++);
}

RowPosition RowCounter::visual() {
  if (grids_.empty()) return text();
  if (axes_ == RowAxes::xdrope) return of_image_with_lines();
  const ImageGrid& grid = grids_.front();
  const auto position = [&](int64_t offset) { return static_cast<int32_t>(next_ + offset); };
  const int64_t step = cell_ / grid.step_cells(), place = cell_ % grid.step_cells();
  // In float32, as transformers has it.
  const float interval =
      tokens_per_second_ > 0 ? static_cast<float>(tokens_per_second_) * static_cast<float>(grid.step_seconds) : 1;
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

SequencePositions::SequencePositions(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                                     int64_t tokens_per_second, RowAxes axes) {
  RowCounter counter(grids, tokens_per_second, axes);
  for (const int64_t row : rows) prompt_.push_back(row == visual_placeholder ? counter.visual() : counter.text());
  next_ = counter.next();
}

RowPosition SequencePositions::of(int64_t row) const {
  const auto prompt = std::ssize(prompt_);
  return row < prompt ? prompt_[static_cast<size_t>(row)] : equal_positions(next_ + row - prompt);
}

} // namespace fvlm::model
