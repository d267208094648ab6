// Decodes JPEG, PNG, WebP and GIF files of any color type, depth and orientation to RGB pixels, of a GIF its first
// frame. A damaged, truncated or oversized file throws Error(data) rather than yielding a partly grey image, and the
// libraries print nothing.
#pragma once
#include "data/media/image.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace fvlm {

inline constexpr const char* image_formats = "JPEG, PNG, WebP or GIF"; // for messages
inline constexpr uint64_t max_image_file_bytes = uint64_t{256} << 20;

struct DecodeOptions {
  // The size that the image will be resized to. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size where both sides stay
  // at least this long. 0 decodes at full size.
  int64_t width = 0, height = 0;
  int64_t most_pixels = 64 << 20; // larger images are rejected before memory is allocated
  // Composites an image with transparency onto white, as the image processors of transformers do. False drops alpha.
  bool white_background = false;
  bool only_size = false; // from the head of the file, without its pixels
};

// Detects the format by content. Applies the EXIF orientation; ignores color profiles, and reduces 16 bits to the
// upper 8. [any thread]
Image decode_image(std::span<const std::byte> bytes, const DecodeOptions& options = {});

// "jpg", "png", "webp" or "gif", by the content.
std::optional<std::string> image_ending(std::span<const std::byte> bytes);
// Whether the bytes begin like a file of one of these formats.
bool looks_like_image(std::span<const std::byte> bytes);

} // namespace fvlm
