// How the frames of a sample become rows of the decoder, for all who count or place such rows. A model's numbers come
// from visual_rows() in model/weights/visual_rows.h.
#pragma once
#include <cstdint>

namespace fvlm {

// Stands in a text in place of a token for one visual row: the sample's visual rows take the places of its placeholders
// in order. All visual rows of a text without placeholders stand before it.
inline constexpr int32_t visual_placeholder = -1;

namespace plan {

struct VisualRows {
  int64_t per_frame = 1;
  // Whether <image> and <video> in what a user says become placeholders. Otherwise they are removed.
  bool in_place = false;
  // Above 0: a frame is not an image but a text, of which the encoder reads this many bytes at most.
  int64_t max_bytes = 0;
  // Whether frames are cells of images of any size (ImageGrid).
  bool of_cells = false;
  // There are no frames: the model reads text alone.
  bool text_only = false;
};

} // namespace plan
} // namespace fvlm
