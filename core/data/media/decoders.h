// The decoders of decode_image(), one for each format. Their pixels are not rotated yet.
#pragma once
#include "data/media/decode_image.h"

namespace fvlm {

struct VideoInfo;

bool looks_like_jpeg(std::span<const std::byte> bytes);
bool looks_like_png(std::span<const std::byte> bytes);
bool looks_like_webp(std::span<const std::byte> bytes);
bool looks_like_gif(std::span<const std::byte> bytes);

// `orientation` is the value of the EXIF tag, 1 to 8.
struct Decoded {
  Image image;
  int orientation = 1;
};
Decoded decode_jpeg(std::span<const std::byte> bytes, const DecodeOptions& options);
Decoded decode_png(std::span<const std::byte> bytes, const DecodeOptions& options);
Decoded decode_webp(std::span<const std::byte> bytes, const DecodeOptions& options);
Decoded decode_gif(std::span<const std::byte> bytes, const DecodeOptions& options);

// A GIF as a video: see VideoDecoder.
VideoInfo probe_gif(std::span<const std::byte> bytes);
void decode_gif(std::span<const std::byte> bytes, std::span<const double> times, int64_t width, int64_t height,
                std::span<uint8_t> out_nhwc);

// Throws Error(data) for a size from the header that is empty or too large.
void check_image_size(uint64_t width, uint64_t height, const DecodeOptions& options);

// RGBA pixels to RGB ones, in place: on white with the integers of Pillow's alpha_composite(), or without their alpha.
void rgba_to_rgb(std::vector<uint8_t>& pixels, bool on_white);

} // namespace fvlm
