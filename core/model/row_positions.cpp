#include "model/row_positions.h"

#include "base/error.h"
#include "recipe/visual_rows.h"

#include <algorithm>

namespace fvlm::model {

RowPosition RowCounter::text() {
  if (cell_ > 0)
    throw Error(ErrorKind::data, "the placeholders of an image of {} x {} cells are interrupted behind {}",
                grids_.front().rows, grids_.front().columns, cell_)
        .advise("the rows of an image stand one after the other: put text before or behind all of its placeholders");
  return equal_positions(next_++);
}

RowPosition RowCounter::visual() {
  if (grids_.empty()) return text();
  const ImageGrid& grid = grids_.front();
  const auto position = [&](int64_t offset) { return static_cast<int32_t>(next_ + offset); };
  const RowPosition found{position(0), position(cell_ / grid.columns), position(cell_ % grid.columns)};
  if (++cell_ == grid.cells()) {
    next_ += std::max(grid.rows, grid.columns);
    cell_ = 0;
    grids_ = grids_.subspan(1);
  }
  return found;
}

SequencePositions::SequencePositions(std::span<const int64_t> rows, std::span<const ImageGrid> grids) {
  RowCounter counter(grids);
  for (const int64_t row : rows) prompt_.push_back(row == visual_placeholder ? counter.visual() : counter.text());
  next_ = counter.next();
}

RowPosition SequencePositions::of(int64_t row) const {
  const auto prompt = std::ssize(prompt_);
  return row < prompt ? prompt_[static_cast<size_t>(row)] : equal_positions(next_ + row - prompt);
}

} // namespace fvlm::model
