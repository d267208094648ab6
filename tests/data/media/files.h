// Image files built by hand, which no encoder would write.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace media_test {

fvlm::Image gradient(int64_t width, int64_t height);

std::string png_signature();
std::string png_chunk(std::string_view type, std::string_view data);
std::string png_header(uint32_t width, uint32_t height, int depth, int colour_type, int interlace = 0);
std::string deflated(std::string_view data);

enum class JpegColours { rgb, cmyk, ycck, ycck_without_adobe };
struct JpegForm {
  JpegColours colours = JpegColours::rgb;
  bool progressive = false;
  bool scan_a_component = false;
};
// Four inks are 255 - red, green, blue and no black, inverted as Adobe does it.
std::string jpeg_of(const fvlm::Image& image, const JpegForm& form);

} // namespace media_test
