// The placeholders of visual rows in a text, plain and numbered.
#pragma once
#include "recipe/shrunk_picture.h"
#include "recipe/visual_rows.h"

#include <algorithm>

namespace fvlm {

// The placeholder of the visual row with this number, counted over all frames of the sample. A text whose placeholders
// are numbered has the rows in an order of its own, and may leave some out. Those below first_shrunk_placeholder are of
// rows that are means of others.
inline constexpr int32_t first_numbered_placeholder = -16;
constexpr int32_t numbered_placeholder(int64_t row) {
  return static_cast<int32_t>(first_numbered_placeholder - row);
}
constexpr bool is_numbered_placeholder(int64_t id) {
  return id <= first_numbered_placeholder;
}
constexpr int64_t visual_row_of(int64_t placeholder) {
  return first_numbered_placeholder - placeholder;
}
constexpr bool is_placeholder(int64_t id) {
  return id == visual_placeholder || is_numbered_placeholder(id);
}

// Of the ids of a text.
struct Placeholders {
  int64_t count = 0, numbered = 0, largest = -1;
  int64_t shrunk_frames = 0; // the most that a sample with the shrunk pictures among them has to have

  template <class Ids>
  static Placeholders in(const Ids& ids) {
    Placeholders found;
    for (const int64_t id : ids) {
      found.count += is_placeholder(id);
      if (!is_numbered_placeholder(id)) continue;
      ++found.numbered;
      if (is_shrunk_placeholder(id))
        found.shrunk_frames = std::max(found.shrunk_frames, ShrunkPatch::of(id).picture.frames());
      else
        found.largest = std::max(found.largest, visual_row_of(id));
    }
    return found;
  }
  // Whether a sample with so many frames has a row for each: numbered ones among those that it has, others as many as
  // it has, or none.
  bool fit(int64_t frames, int64_t rows_per_frame) const {
    const int64_t rows = frames * rows_per_frame;
    if (numbered > 0) return numbered == count && largest < rows && shrunk_frames <= frames;
    return count == 0 || count == rows;
  }
};

} // namespace fvlm
