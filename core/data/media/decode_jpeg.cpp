#include "base/error.h"
#include "data/media/decoders.h"
#include "data/media/exif.h"
#include "data/media/jpeg_errors.h"

#include <algorithm>
#include <jerror.h>

namespace fvlm {
namespace {

constexpr long max_coefficient_bytes = 512L << 20; // for the coefficients of progressive files; not for the pixels
// Scans times pixels: what a progressive file may cost, whatever the number of its scans. Usual ones have ten.
constexpr uint64_t max_decode_work = uint64_t{1} << 32;

// What says that something is odd, not that a part of the picture is missing.
bool is_harmless(int warning) {
  return warning == JWRN_EXTRANEOUS_DATA || warning == JWRN_JFIF_MAJOR || warning == JWRN_ADOBE_XFORM ||
         warning == JWRN_NOT_SEQUENTIAL;
}

struct JpegDecoder {
  jpeg_decompress_struct library{};
  JpegErrors errors;
  jpeg_progress_mgr progress{};

  JpegDecoder() {
    library.err = errors.manager();
    library.err->emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && !is_harmless(common->err->msg_code)) common->err->error_exit(common);
    };
    progress.progress_monitor = [](j_common_ptr common) {
      const auto& decoder = *reinterpret_cast<j_decompress_ptr>(common);
      const uint64_t pixels = uint64_t{decoder.image_width} * decoder.image_height;
      if (static_cast<uint64_t>(decoder.input_scan_number) * pixels <= max_decode_work) return;
      common->err->msg_code = JERR_BAD_PROGRESSION;
      common->err->error_exit(common);
    };
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&library); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  template <class Work>
  void run(Work&& work) {
    if (!errors.jump.run(work)) throw Error(ErrorKind::data, "a broken JPEG: {}", errors.text.data());
  }
};

// The smallest numerator over 8 of a scale that leaves both sides at least as long as wanted. Only these four have fast
// transforms.
unsigned choose_scale(const jpeg_decompress_struct& library, int64_t width, int64_t height) {
  if (width < 1 || height < 1) return 8;
  for (const unsigned eighths : {1U, 2U, 4U})
    if ((library.image_width * eighths + 7) / 8 >= static_cast<uint64_t>(width) &&
        (library.image_height * eighths + 7) / 8 >= static_cast<uint64_t>(height))
      return eighths;
  return 8;
}

// Inks, stored inverted as Adobe's programs do, to what is left of the light.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const unsigned light = cmyk[3];
    for (int channel = 0; channel < 3; ++channel) {
      const unsigned product = (255U - cmyk[channel]) * light + 128;
      rgb[channel] = static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
}

} // namespace

bool looks_like_jpeg(std::span<const std::byte> bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{0xff} && bytes[1] == std::byte{0xd8} && bytes[2] == std::byte{0xff};
}

Decoded decode_jpeg(std::span<const std::byte> bytes, const DecodeOptions& options) {
  JpegDecoder decoder;
  jpeg_decompress_struct& library = decoder.library;
  decoder.run([&] {
    jpeg_create_decompress(&library);
    library.progress = &decoder.progress;
    library.mem->max_memory_to_use = max_coefficient_bytes;
    jpeg_mem_src(&library, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&library, TRUE);
  });
  check_image_size(library.image_width, library.image_height, options);
  if (options.only_size) return {{library.image_width, library.image_height, {}}, jpeg_orientation(bytes)};

  // Huffman's shortest code has one bit, for 64 pixels: what is too short is refused before memory is taken.
  if (const uint64_t pixels = uint64_t{library.image_width} * library.image_height;
      !library.arith_code && pixels / 512 > bytes.size())
    throw Error(ErrorKind::data, "a broken JPEG: {} bytes for {} x {} pixels", bytes.size(), library.image_width,
                library.image_height);

  Decoded decoded;
  decoded.orientation = jpeg_orientation(bytes);
  const bool turned = decoded.orientation >= 5;
  const bool inks = library.num_components == 4;
  if (!inks && library.num_components != 1 && library.num_components != 3)
    throw Error(ErrorKind::data, "a JPEG of {} components: 1, 3 and 4 are known", library.num_components);
  library.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  library.scale_num =
      choose_scale(library, turned ? options.height : options.width, turned ? options.width : options.height);
  library.scale_denom = 8;
  decoder.run([&] { jpeg_calc_output_dimensions(&library); });

  Image& image = decoded.image;
  image.width = library.output_width;
  image.height = library.output_height;
  // Reads everything that a progressive file has, so that its memory and its work are refused before ours is taken.
  decoder.run([&] { jpeg_start_decompress(&library); });
  image.rgb.resize(static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3);
  decoder.run([&] {
    const size_t stride = size_t{library.output_width} * 3;
    JSAMPARRAY ink_row = nullptr;
    if (inks)
      ink_row =
          library.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&library), JPOOL_IMAGE, library.output_width * 4, 1);
    while (library.output_scanline < library.output_height) {
      uint8_t* row = image.rgb.data() + library.output_scanline * stride;
      if (inks) {
        jpeg_read_scanlines(&library, ink_row, 1);
        cmyk_to_rgb(ink_row[0], library.output_width, row);
        continue;
      }
      std::array<JSAMPROW, 8> rows{};
      const auto count = std::min<JDIMENSION>(rows.size(), library.output_height - library.output_scanline);
      for (JDIMENSION i = 0; i < count; ++i) rows[i] = row + i * stride;
      jpeg_read_scanlines(&library, rows.data(), count);
    }
  });
  return decoded;
}

} // namespace fvlm
