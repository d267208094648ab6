#include "data/media/write_image.h"

#include "base/error.h"
#include "data/media/jpeg_errors.h"
#include "data/media/png_errors.h"

#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

namespace fvlm {
namespace {

void require_whole(const Image& image) {
  if (image.width < 1 || image.height < 1 ||
      image.rgb.size() != static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3)
    throw Error(ErrorKind::internal, "an image of {} x {} pixels with {} bytes cannot be written", image.width,
                image.height, image.rgb.size());
}

// Where libpng writes to. No exception may cross libpng's frames.
struct PngOutput {
  std::string bytes;
  bool out_of_memory = false;
};

void append(png_structp png, png_bytep data, size_t size) {
  auto& output = *static_cast<PngOutput*>(png_get_io_ptr(png));
  try {
    output.bytes.append(reinterpret_cast<const char*>(data), size);
  } catch (const std::exception&) {
    output.out_of_memory = true;
  }
  if (output.out_of_memory) png_error(png, "out of memory");
}

void nothing_to_flush(png_structp) {}

} // namespace

std::string write_png(const Image& image, PngContent content) {
  require_whole(image);
  PngOutput output;
  PngErrors errors;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &errors, PngErrors::raise, PngErrors::ignore);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  const bool written = info && errors.jump.run([&] {
    png_set_write_fn(png, &output, append, nothing_to_flush);
    png_set_IHDR(png, info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (content == PngContent::drawing) {
      png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
      png_set_compression_level(png, 3);
    }
    png_write_info(png, info);
    for (int64_t row = 0; row < image.height; ++row) png_write_row(png, image.rgb.data() + row * image.width * 3);
    png_write_end(png, info);
  });
  png_destroy_write_struct(&png, &info);
  if (!written) throw Error(ErrorKind::internal, "libpng cannot write: {}", errors.text.data());
  return std::move(output.bytes);
}

std::string write_jpeg(const Image& image, int quality) {
  require_whole(image);
  jpeg_compress_struct encoder{};
  JpegErrors errors;
  encoder.err = errors.manager();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool written = errors.jump.run([&] {
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &bytes, &size);
    encoder.image_width = static_cast<JDIMENSION>(image.width);
    encoder.image_height = static_cast<JDIMENSION>(image.height);
    encoder.input_components = 3;
    encoder.in_color_space = JCS_RGB;
    jpeg_set_defaults(&encoder);
    jpeg_set_quality(&encoder, quality, TRUE);
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < encoder.image_height) {
      auto* row = const_cast<JSAMPROW>(image.rgb.data() + size_t{encoder.next_scanline} * encoder.image_width * 3);
      jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
  });
  jpeg_destroy_compress(&encoder);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(bytes, &std::free);
  if (!written) throw Error(ErrorKind::internal, "libjpeg cannot write: {}", errors.text.data());
  return {reinterpret_cast<const char*>(bytes), size};
}

} // namespace fvlm
