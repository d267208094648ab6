// What decode_image() is made of: one function a format, pixels as they lie in the file.
#pragma once
#include "data/media/decode_image.h"

namespace fvlm {

bool looks_like_jpeg(std::span<const std::byte> bytes);
bool looks_like_png(std::span<const std::byte> bytes);

// The orientation is EXIF's number, 1 .. 8.
struct Decoded {
  Image image;
  int orientation = 1;
};
Decoded decode_jpeg(std::span<const std::byte> bytes, const DecodeOptions& options);
Decoded decode_png(std::span<const std::byte> bytes, const DecodeOptions& options);

// Throws Error(data) for a size that is refused from the header alone.
void require_decent_size(uint64_t width, uint64_t height, const DecodeOptions& options);

} // namespace fvlm
