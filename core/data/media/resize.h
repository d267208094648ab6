// Resizes images bit for bit like Pillow's Image.resize(size, filter): antialiased, first horizontally and then
// vertically, or the other way round where an image of more than 100 times its width in height is shortened, with 8-bit
// pixels between the passes.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <span>

namespace fvlm {

enum class ResizeFilter { bicubic, bilinear, lanczos };

// The aspect ratio is not kept. out_hwc: [height, width, 3]. Throws Error(internal) where the sizes make no sense.
// [any thread]
void resize(const Image& image, int64_t width, int64_t height, std::span<uint8_t> out_hwc,
            ResizeFilter filter = ResizeFilter::bicubic);

} // namespace fvlm
