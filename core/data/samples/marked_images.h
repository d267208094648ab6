// The images of a sample in their own pixels, with the boxes and points of its objects drawn on them.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm {

struct ImageMark {
  int64_t number;            // among the sample's boxes and points, which draw_mark() writes
  int64_t image;             // among those of the sample
  std::vector<double> place; // in pixels of the image: x1, y1, x2, y2, or x, y
  std::string name;          // what it is of; empty where the sample's names are not one for each box, nor all the same
};

struct MarkedImages {
  std::vector<Image> images; // empty where the sample has none, as of a video
  std::vector<ImageMark> marks;
};

} // namespace fvlm
