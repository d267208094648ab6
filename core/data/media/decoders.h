// The decoders of decode_image(), one for each format. Their pixels are not rotated yet.
#pragma once
#include "data/media/decode_image.h"

namespace fvlm {

bool looks_like_jpeg(std::span<const std::byte> bytes);
bool looks_like_png(std::span<const std::byte> bytes);

// `orientation` is the value of the EXIF tag, 1 to 8.
struct Decoded {
  Image image;
  int orientation = 1;
};
Decoded decode_jpeg(std::span<const std::byte> bytes, const DecodeOptions& options);
Decoded decode_png(std::span<const std::byte> bytes, const DecodeOptions& options);

// Throws Error(data) for a size from the header that is empty or too large.
void check_image_size(uint64_t width, uint64_t height, const DecodeOptions& options);

} // namespace fvlm
