#include "base/error.h"
#include "data/media/decoders.h"
#include "data/media/exif.h"

#include <cstring>
#include <webp/decode.h>

namespace fvlm {
namespace {

std::string_view text_at(std::span<const std::byte> bytes, size_t at, size_t count) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
      .substr(std::min(at, bytes.size()), count);
}

// From the chunk EXIF of the RIFF file.
int webp_orientation(std::span<const std::byte> bytes) {
  for (size_t at = 12; at + 8 <= bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at + 4, sizeof size);
    if (size > bytes.size() - at - 8) return 1;
    if (text_at(bytes, at, 4) == "EXIF") {
      auto exif = bytes.subspan(at + 8, size);
      if (text_at(exif, 0, 6) == std::string_view("Exif\0\0", 6)) exif = exif.subspan(6);
      return exif_orientation(exif);
    }
    at += 8 + size_t{size} + size % 2;
  }
  return 1;
}

} // namespace

bool looks_like_webp(std::span<const std::byte> bytes) {
  return text_at(bytes, 0, 4) == "RIFF" && text_at(bytes, 8, 4) == "WEBP";
}

Decoded decode_webp(std::span<const std::byte> bytes, const DecodeOptions& options) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK)
    throw Error(ErrorKind::data, "a broken WebP: its head is damaged");
  check_image_size(static_cast<uint64_t>(features.width), static_cast<uint64_t>(features.height), options);
  Decoded decoded{{features.width, features.height, {}}, webp_orientation(bytes)};
  if (options.only_size) return decoded;
  if (features.has_animation)
    throw Error(ErrorKind::data, "an animated WebP, which is not read").advise("convert it to a GIF or an mp4");
  const bool has_alpha = options.white_background && features.has_alpha;
  const int stride = features.width * (has_alpha ? 4 : 3);
  std::vector<uint8_t>& pixels = decoded.image.rgb;
  pixels.resize(static_cast<size_t>(stride) * static_cast<size_t>(features.height));
  const auto decode = has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (!decode(data, bytes.size(), pixels.data(), pixels.size(), stride))
    throw Error(ErrorKind::data, "a broken WebP: its pixels are damaged, or the file ends too early");
  if (has_alpha) rgba_to_rgb(pixels, true);
  return decoded;
}

} // namespace fvlm
