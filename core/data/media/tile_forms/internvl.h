// What processors of images that are cut into a grid of square tiles have in common.
#pragma once
#include "data/media/image_processor_reader.h"

namespace fvlm {

// The size of a tile, how many there may be, and whether images are cut, where the config says so or leaves it out.
void read_square_tiles(ProcessorReader& in, int64_t max_tiles = 12, bool splits = false);

} // namespace fvlm
