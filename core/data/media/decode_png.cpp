#include "base/error.h"
#include "data/media/decoders.h"
#include "data/media/exif.h"
#include "data/media/png_errors.h"

#include <array>
#include <cstring>

namespace fvlm {
namespace {

constexpr std::array<uint8_t, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

// Chunks that say nothing of the pixels' colors: left unread, and what they would inflate to with them. The last one is
// transparency, which is read where alpha is not dropped.
constexpr std::string_view ignored{"bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB"
                                   "\0sTER\0tEXt\0tIME\0zTXt\0tRNS\0",
                                   95};

struct PngDecoder {
  PngErrors errors;
  std::span<const std::byte> unread;
  png_structp png = nullptr;
  png_infop info = nullptr;

  explicit PngDecoder(std::span<const std::byte> bytes) : unread(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &errors, PngErrors::raise, PngErrors::ignore);
    if (png) info = png_create_info_struct(png);
    if (!info) throw Error(ErrorKind::data, "no memory to read a PNG");
    png_set_read_fn(png, this, [](png_structp library, png_bytep into, size_t size) {
      auto& decoder = *static_cast<PngDecoder*>(png_get_io_ptr(library));
      if (size > decoder.unread.size()) png_error(library, "the file ends too early");
      std::memcpy(into, decoder.unread.data(), size);
      decoder.unread = decoder.unread.subspan(size);
    });
  }
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  template <class Work>
  void run(Work&& work) {
    if (!errors.jump.run(work)) throw Error(ErrorKind::data, "a broken PNG: {}", errors.text.data());
  }
};

uint64_t big_endian(std::span<const std::byte> bytes, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | std::to_integer<uint64_t>(bytes[at + i]);
  return number;
}

// From the first chunk eXIf, which may stand behind the pixels: it is found without reading them, so that an image has
// one size, whether they are decoded or not.
int orientation(std::span<const std::byte> bytes) {
  constexpr size_t head_bytes = 8, check_bytes = 4; // length and name; checksum
  for (size_t at = signature.size(); bytes.size() - at >= head_bytes;) {
    const uint64_t length = big_endian(bytes, at);
    if (length + check_bytes > bytes.size() - at - head_bytes) return 1;
    if (std::memcmp(bytes.data() + at + 4, "eXIf", 4) == 0)
      return exif_orientation(bytes.subspan(at + head_bytes, length));
    at += head_bytes + length + check_bytes;
  }
  return 1;
}

} // namespace

bool looks_like_png(std::span<const std::byte> bytes) {
  return bytes.size() >= signature.size() && std::memcmp(bytes.data(), signature.data(), signature.size()) == 0;
}

Decoded decode_png(std::span<const std::byte> bytes, const DecodeOptions& options) {
  PngDecoder decoder(bytes);
  png_structp png = decoder.png;
  png_infop info = decoder.info;
  decoder.run([&] {
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, reinterpret_cast<png_const_bytep>(ignored.data()),
                                static_cast<int>(ignored.size() / 5) - (options.white_background ? 1 : 0));
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); // ours follow, and say more
    png_set_chunk_malloc_max(png, 1 << 20);
    png_read_info(png, info);
  });
  const png_uint_32 width = png_get_image_width(png, info), height = png_get_image_height(png, info);
  check_image_size(width, height, options);
  if (options.only_size) return {{width, height, {}}, orientation(bytes)};

  // Deflate makes no more than 1,032 bytes of one: what is too short is refused before memory is taken.
  if (uint64_t{height} * png_get_rowbytes(png, info) / 1032 > bytes.size())
    throw Error(ErrorKind::data, "a broken PNG: {} bytes for {} x {} pixels", bytes.size(), width, height);

  Decoded decoded;
  int passes = 1;
  decoder.run([&] {
    png_set_strip_16(png);
    png_set_packing(png);
    png_set_palette_to_rgb(png);
    if (!options.white_background)
      png_set_strip_alpha(png);
    else if (png_get_valid(png, info, PNG_INFO_tRNS))
      png_set_tRNS_to_alpha(png);
    if (const auto type = png_get_color_type(png, info); !(type & PNG_COLOR_MASK_COLOR)) {
      png_set_expand_gray_1_2_4_to_8(png);
      png_set_gray_to_rgb(png);
    }
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
  });
  const bool has_alpha = options.white_background && png_get_channels(png, info) == 4;
  const size_t stride = size_t{width} * (has_alpha ? 4 : 3);
  if (png_get_rowbytes(png, info) != stride)
    throw Error(ErrorKind::data, "a PNG of an unknown form: {} bytes in a row of {} pixels",
                png_get_rowbytes(png, info), width);
  decoded.image = {width, height, std::vector<uint8_t>(stride * height)};
  decoder.run([&] {
    for (int pass = 0; pass < passes; ++pass)
      for (size_t row = 0; row < height; ++row) png_read_row(png, decoded.image.rgb.data() + row * stride, nullptr);
    png_read_end(png, info); // verifies the checksums of the last pixels
  });
  if (has_alpha) rgba_to_rgb(decoded.image.rgb, true);
  decoded.orientation = orientation(bytes);
  return decoded;
}

} // namespace fvlm
