// Image: 8-bit RGB pixels, upright. What decode_image() makes, resize() reads and write_png() writes.
#pragma once
#include <cstdint>
#include <vector>

namespace fvlm {

struct Image {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb; // [height, width, 3]
};

} // namespace fvlm
