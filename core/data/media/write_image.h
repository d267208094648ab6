// Images as the bytes of PNG and JPEG files.
#pragma once
#include "data/media/image.h"

#include <string>

namespace fvlm {

// Changes no pixel. A drawing of few colours is written in half the time, and smaller, without filters before zlib.
enum class PngContent { photo, drawing };

// Throw Error(internal) for an image without pixels, or whose rgb does not hold height x width x 3 bytes. The same
// pixels give the same bytes.
std::string write_png(const Image& image, PngContent content = PngContent::photo);
std::string write_jpeg(const Image& image, int quality); // baseline, 4:2:0; quality 1 .. 100

} // namespace fvlm
