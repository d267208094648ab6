// Pictures to another size, the numbers being those of Pillow's Image.resize(size, Image.BICUBIC): antialiased, first
// along the rows and then along the columns, 8 bits between.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <span>

namespace fvlm {

// The aspect ratio is not kept. out_hwc: [height, width, 3]. Throws Error(internal) where the sizes make no sense.
// [any thread]
void resize(const Image& image, int64_t width, int64_t height, std::span<uint8_t> out_hwc);

} // namespace fvlm
