// The orientation of an image from the EXIF data of its file.
#pragma once
#include "data/media/image.h"

#include <cstddef>
#include <span>

namespace fvlm {

// The orientation tag of the first directory of a TIFF structure, 1 to 8; 1 where it is missing or invalid.
int exif_orientation(std::span<const std::byte> tiff);

// The orientation from the first EXIF segment of a JPEG file.
int jpeg_orientation(std::span<const std::byte> file);

// Rotates and mirrors the image so that it is upright.
Image upright(Image image, int orientation);

} // namespace fvlm
