// Resizes images bit for bit like Pillow's Image.resize(size, Image.BICUBIC): antialiased, first horizontally and then
// vertically, with 8-bit pixels between the passes.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <span>

namespace fvlm {

// The aspect ratio is not kept. out_hwc: [height, width, 3]. Throws Error(internal) where the sizes make no sense.
// [any thread]
void resize(const Image& image, int64_t width, int64_t height, std::span<uint8_t> out_hwc);

} // namespace fvlm
