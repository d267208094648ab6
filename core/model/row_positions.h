// Positions of decoder rows on several axes. A row of text has one number on all of them, as anywhere else.
//
// M-RoPE has three axes, which are time, height and width. The cells of an image have the number of the image's first
// row for time, and from there on their line and their column; what follows goes on behind the largest line or column.
// Those of a video have the same lines and columns in each step, and their numbers for time grow from step to step.
// On a canvas an image and its parts have such numbers together: canvas_positions.h.
//
// XD-RoPE has four axes, which are the row's place in the sequence, width, height and image. An image has a row before
// its cells, one behind each line of them, and one behind all. The first and the last one count as text; the others
// have their column, their line and the number of their image in the sequence, and their place in the sequence, which
// goes on behind the image.
#pragma once
#include "model/weights/towers.h"
#include "recipe/image_grid.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace fvlm::model {

// Which rows of a sequence attend to each other in both directions, besides to all before them: visual rows that stand
// side by side, or all rows of the prompt, which are those before the first label.
enum class BidirectionalRows { none, visual, prompt };

// By axis. The fourth one is not read with M-RoPE, and is then that of time.
inline constexpr size_t most_row_axes = 4;
using RowPosition = std::array<int32_t, most_row_axes>;

constexpr RowPosition equal_positions(int64_t position) {
  const auto each = static_cast<int32_t>(position);
  return {each, each, each, each};
}

constexpr bool are_equal(const RowPosition& position) {
  return position == equal_positions(position[0]);
}

// How the rows of a model have their positions.
struct RowPositionRules {
  RowAxes axes = RowAxes::none;
  int64_t tokens_per_second = 0; // by which numbers for time grow in a video; 0: by one from step to step
  CanvasTokens canvas = {};      // with RowAxes::canvas
};

struct RowPositions {
  std::vector<RowPosition> rows;
  // Of the row of text that would be next, which may be less than numbers for time in a video, as in transformers.
  int64_t next = 0;
};

// Of the rows of one text: tokens, and visual_placeholder where visual rows stand. Those of frames that are no cells of
// images count as text. Throws Error(data) for text between the cells of an image.
RowPositions positions_of(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                          const RowPositionRules& rules);

// Throws that error, behind so many cells.
[[noreturn]] void refuse_interrupted_image(const ImageGrid& grid, int64_t cells);

// The positions of a sequence that is generated: of the prompt's rows, and of all that follow.
class SequencePositions {
 public:
  SequencePositions() = default; // each row's number
  SequencePositions(std::span<const int64_t> rows, std::span<const ImageGrid> grids, const RowPositionRules& rules)
      : prompt_(positions_of(rows, grids, rules)) {}

  RowPosition of(int64_t row) const;

 private:
  RowPositions prompt_;
};

} // namespace fvlm::model
