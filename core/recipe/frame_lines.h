// The visual rows of a frame whose patches are a square with a newline behind each line, as connectors of LLaVA-NeXT
// and LLaVA-OneVision make them; the latter has the square at half the size behind it, for videos.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>

namespace fvlm {

struct FrameLines {
  int64_t side = 0; // patches in a line
  bool is_pooled = false;

  // Of a frame with so many rows; nothing where they are no such lines.
  static std::optional<FrameLines> of(int64_t rows, bool is_pooled) {
    FrameLines lines{static_cast<int64_t>(std::sqrt(static_cast<double>(rows))), is_pooled};
    while (lines.side > 0 && lines.rows() > rows) --lines.side;
    return lines.side > 0 && lines.rows() == rows ? std::optional(lines) : std::nullopt;
  }

  int64_t pooled_side() const { return (side + 1) / 2; }
  int64_t rows() const { return first_pooled() + (is_pooled ? pooled_side() * pooled_side() : 0); }

  int64_t patch(int64_t line, int64_t column) const { return line * (side + 1) + column; }
  int64_t newline(int64_t line) const { return patch(line, side); }
  int64_t first_pooled() const { return side * (side + 1); }
};

} // namespace fvlm
