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

struct ImageFormat {
  const char* ending;
  bool (*looks_like)(std::span<const std::byte> bytes);
  Decoded (*decode)(std::span<const std::byte> bytes, const DecodeOptions& options);
};
constexpr ImageFormat formats[] = {
    {"jpg", looks_like_jpeg, decode_jpeg},
    {"png", looks_like_png, decode_png},
    {"webp", looks_like_webp, decode_webp},
    {"gif", looks_like_gif, decode_gif},
};

const ImageFormat* format_of(std::span<const std::byte> bytes) {
  const auto* found =
      std::ranges::find_if(formats, [&](const ImageFormat& format) { return format.looks_like(bytes); });
  return found == std::end(formats) ? nullptr : found;
}

// By the first bytes; null: none of these.
const char* unsupported_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto at = [&](size_t place, std::string_view word) {
    return text.substr(std::min(place, text.size())).starts_with(word);
  };
  if (at(0, "BM")) return "BMP";
  if (at(0, std::string_view("II*\0", 4)) || at(0, std::string_view("MM\0*", 4))) return "TIFF";
  if (at(4, "ftypavif")) return "AVIF";
  if (at(4, "ftyphei")) return "HEIC";
  return nullptr;
}

} // namespace

void check_image_size(uint64_t width, uint64_t height, const DecodeOptions& options) {
  constexpr uint64_t longest_side = 65535; // JPEG's; a PNG with longer ones would make resize() take much memory
  if (width < 1 || height < 1) throw Error(ErrorKind::data, "an image of {} x {} pixels has none", width, height);
  if (width > longest_side || height > longest_side || width * height > static_cast<uint64_t>(options.most_pixels))
    throw Error(ErrorKind::data, "an image of {} x {} pixels is too large: at most {} pixels, a side of at most {}",
                width, height, options.most_pixels, longest_side)
        .advise("scale it down");
}

void rgba_to_rgb(std::vector<uint8_t>& pixels, bool on_white) {
  constexpr uint32_t white = 255;
  const size_t count = pixels.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t alpha = on_white ? pixels[4 * i + 3] : white;
    for (size_t channel = 0; channel < 3; ++channel) {
      const uint32_t sum = pixels[4 * i + channel] * alpha + white * (white - alpha) + 128;
      pixels[3 * i + channel] = static_cast<uint8_t>((sum + (sum >> 8)) >> 8);
    }
  }
  pixels.resize(3 * count);
}

std::optional<std::string> image_ending(std::span<const std::byte> bytes) {
  const ImageFormat* format = format_of(bytes);
  return format ? std::optional<std::string>(format->ending) : std::nullopt;
}

bool looks_like_image(std::span<const std::byte> bytes) {
  return format_of(bytes) != nullptr;
}

Image decode_image(std::span<const std::byte> bytes, const DecodeOptions& options) {
  if (const char* format = unsupported_format(bytes))
    throw Error(ErrorKind::data, "a {} file: expected {}", format, image_formats).advise("convert it to JPEG or PNG");
  const ImageFormat* format = format_of(bytes);
  if (!format)
    throw Error(ErrorKind::data, bytes.empty() ? "an image file without any bytes"
                                               : fmt::format("not an image: expected {}", image_formats));
  Decoded decoded = format->decode(bytes, options);
  if (options.only_size) {
    if (decoded.orientation >= 5) std::swap(decoded.image.width, decoded.image.height);
    return std::move(decoded.image);
  }
  return upright(std::move(decoded.image), decoded.orientation);
}

} // namespace fvlm
