#include "data/media/decode_image.h"

#include "base/error.h"
#include "data/media/decoders.h"
#include "data/media/exif.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace fvlm {
namespace {

// By the first bytes; null: none of these.
const char* unsupported_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto at = [&](size_t place, std::string_view word) {
    return text.substr(std::min(place, text.size())).starts_with(word);
  };
  if (at(0, "GIF8")) return "GIF";
  if (at(0, "RIFF") && at(8, "WEBP")) return "WebP";
  if (at(0, "BM")) return "BMP";
  if (at(0, std::string_view("II*\0", 4)) || at(0, std::string_view("MM\0*", 4))) return "TIFF";
  if (at(4, "ftypavif")) return "AVIF";
  if (at(4, "ftyphei")) return "HEIC";
  return nullptr;
}

} // namespace

void check_image_size(uint64_t width, uint64_t height, const DecodeOptions& options) {
  constexpr uint64_t longest_side = 65535; // JPEG's; a PNG with longer ones would make resize() take much memory
  if (width < 1 || height < 1)
    throw Error(ErrorKind::data, fmt::format("an image of {} x {} pixels has none", width, height));
  if (width > longest_side || height > longest_side || width * height > static_cast<uint64_t>(options.most_pixels))
    throw Error(ErrorKind::data,
                fmt::format("an image of {} x {} pixels is too large: at most {} pixels, a side of at most {}", width,
                            height, options.most_pixels, longest_side))
        .advise("scale it down before it goes into a shard");
}

bool looks_like_image(std::span<const std::byte> bytes) {
  return looks_like_jpeg(bytes) || looks_like_png(bytes);
}

Image decode_image(std::span<const std::byte> bytes, const DecodeOptions& options) {
  if (const char* format = unsupported_format(bytes))
    throw Error(ErrorKind::data, fmt::format("a {} file, which is not read: JPEG and PNG are", format))
        .advise("convert it to JPEG or PNG before it goes into a shard");
  if (!looks_like_image(bytes))
    throw Error(ErrorKind::data, bytes.empty() ? "an image file without any bytes" : "neither a JPEG nor a PNG file");
  Decoded decoded = looks_like_jpeg(bytes) ? decode_jpeg(bytes, options) : decode_png(bytes, options);
  if (options.only_size) {
    if (decoded.orientation >= 5) std::swap(decoded.image.width, decoded.image.height);
    return std::move(decoded.image);
  }
  return upright(std::move(decoded.image), decoded.orientation);
}

} // namespace fvlm
