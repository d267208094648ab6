// Encodes images as PNG and JPEG files.
#pragma once
#include "data/media/image.h"

#include <string>

namespace fvlm {

// A hint that changes no pixel: a drawing with few colors is written faster and smaller without PNG filters.
enum class PngContent { photo, drawing };

// Both are deterministic, and throw Error(internal) for an image that is empty or whose rgb does not have
// height x width x 3 bytes.
std::string write_png(const Image& image, PngContent content = PngContent::photo);
std::string write_jpeg(const Image& image, int quality); // baseline, 4:2:0; quality 1 .. 100

} // namespace fvlm
