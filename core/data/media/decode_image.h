// JPEG and PNG files to pixels, whatever their colours, depth and orientation. A file that is damaged or too large is
// an Error(data); nothing is printed, no picture is half grey.
#pragma once
#include "data/media/image.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace fvlm {

struct DecodeOptions {
  // The size that will be made of it: a JPEG is then decoded at an eighth, a quarter or half of its size where neither
  // side gets smaller than this. 0: not known, full size.
  int64_t width = 0, height = 0;
  int64_t most_pixels = 64 << 20; // in the file; more is refused before memory is taken
};

// By its content. What the file says of its orientation (EXIF) is applied, colour profiles and transparency are not:
// alpha is dropped, 16 bits become their upper 8. [any thread]
Image decode_image(std::span<const std::byte> bytes, const DecodeOptions& options = {});

// Whether the first bytes are those of a JPEG or PNG file.
bool looks_like_image(std::span<const std::byte> bytes);

} // namespace fvlm
