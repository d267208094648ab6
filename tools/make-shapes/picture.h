// A picture of a few shapes on a background, and its rendering to pixels.
#pragma once
#include "data/media/image.h"

#include <array>
#include <cstdint>
#include <vector>

namespace fvlm::shapes {

enum class Form : uint8_t { circle, square, triangle, cross, ring };
using Rgb = std::array<uint8_t, 3>;

// Integer coordinates make equal blobs equal pixels: 512 units span the width for x, the height for y, and the shorter
// side for the size.
struct Blob {
  Form form;
  Rgb colour;
  int16_t x, y, size;
  bool operator==(const Blob&) const = default;
};

// Where only `grey` is to be seen, normalisation leaves 0: it is ImageNet's mean, and such a patch holds nothing but
// its position. On `dark` a patch says how much of it is covered. That a tiny model therefore learns places and counts
// on the one and shapes on the other is a guess; what was learnt stands in bench/LOG.md.
constexpr Rgb grey{124, 116, 104}, dark{14, 14, 20};

struct Picture {
  Rgb ground;
  std::vector<Blob> blobs; // later blobs cover earlier ones
  bool operator==(const Picture&) const = default;
};

constexpr int span = 512;

enum class Ground {
  plain,
  textured // as detailed as a photo, to benchmark decoders
};

// `grain` seeds the texture.
Image paint(const Picture& picture, int64_t width, int64_t height, Ground ground, uint64_t grain);

} // namespace fvlm::shapes
