#include "files.h"

#include "data/media/jpeg_errors.h"

#include <cstdlib>
#include <stdexcept>
#include <zlib.h>

namespace media_test {
namespace {

std::string big_endian(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(value >> shift));
  return text;
}

} // namespace

fvlm::Image gradient(int64_t width, int64_t height) {
  fvlm::Image image{width, height, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (const int64_t value : {x * 255 / width, y * 255 / height, (x + y) * 255 / (width + height)})
        image.rgb.push_back(static_cast<uint8_t>(value));
  return image;
}

std::string png_signature() {
  return std::string("\x89PNG\r\n\x1a\n", 8);
}

std::string png_chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(static_cast<uint32_t>(sum));
}

std::string png_header(uint32_t width, uint32_t height, int depth, int colour_type, int interlace) {
  const std::string form{static_cast<char>(depth), static_cast<char>(colour_type), 0, 0, static_cast<char>(interlace)};
  return png_chunk("IHDR", big_endian(width) + big_endian(height) + form);
}

std::string deflated(std::string_view data) {
  uLongf size = compressBound(data.size());
  std::string out(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(data.data()), data.size(),
                9) != Z_OK)
    throw std::runtime_error("zlib refused");
  out.resize(size);
  return out;
}

std::string jpeg_of(const fvlm::Image& image, const JpegForm& form) {
  const bool inks = form.colours != JpegColours::rgb;
  jpeg_compress_struct encoder{};
  fvlm::JpegErrors errors;
  encoder.err = errors.manager();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  std::vector<jpeg_scan_info> scans(inks ? 4 : 3, {1, {}, 0, 63, 0, 0});
  for (size_t component = 0; component < scans.size(); ++component)
    scans[component].component_index[0] = static_cast<int>(component);
  std::vector<uint8_t> row(static_cast<size_t>(image.width) * 4);
  const bool written = errors.jump.run([&] {
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &bytes, &size);
    encoder.image_width = static_cast<JDIMENSION>(image.width);
    encoder.image_height = static_cast<JDIMENSION>(image.height);
    encoder.input_components = inks ? 4 : 3;
    encoder.in_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&encoder);
    if (form.colours == JpegColours::ycck || form.colours == JpegColours::ycck_without_adobe)
      jpeg_set_colorspace(&encoder, JCS_YCCK);
    if (form.colours == JpegColours::ycck_without_adobe) encoder.write_Adobe_marker = FALSE;
    jpeg_set_quality(&encoder, 92, TRUE);
    if (form.progressive) jpeg_simple_progression(&encoder);
    if (form.scan_a_component) {
      encoder.scan_info = scans.data();
      encoder.num_scans = static_cast<int>(scans.size());
    }
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < encoder.image_height) {
      const uint8_t* in = image.rgb.data() + size_t{encoder.next_scanline} * encoder.image_width * 3;
      for (size_t x = 0; x < encoder.image_width; ++x)
        for (size_t channel = 0; channel < (inks ? 4U : 3U); ++channel)
          row[x * (inks ? 4 : 3) + channel] = channel < 3 ? in[x * 3 + channel] : 255;
      JSAMPROW rows = row.data();
      jpeg_write_scanlines(&encoder, &rows, 1);
    }
    jpeg_finish_compress(&encoder);
  });
  jpeg_destroy_compress(&encoder);
  std::string result(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  if (!written) throw std::runtime_error(errors.text.data());
  return result;
}

} // namespace media_test
