// Which way up a picture is, by the EXIF data of its file.
#pragma once
#include "data/media/image.h"

#include <cstddef>
#include <span>

namespace fvlm {

// The orientation tag of the first folder of a TIFF structure, 1 .. 8; 1 where it is missing or makes no sense.
int exif_orientation(std::span<const std::byte> tiff);

// Of a JPEG file's first EXIF segment.
int jpeg_orientation(std::span<const std::byte> file);

// Turned and mirrored as the orientation says.
Image upright(Image image, int orientation);

} // namespace fvlm
