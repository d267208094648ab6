// A picture of a few shapes on a plain ground, and its pixels.
#pragma once
#include "data/media/image.h"

#include <array>
#include <cstdint>
#include <vector>

namespace fvlm::shapes {

enum class Form : uint8_t { circle, square, triangle, cross, ring };
using Rgb = std::array<uint8_t, 3>;

// Whole numbers, so that equal blobs are equal pixels: 512 units span the picture's width for x, its height for y, and
// the shorter of both for the size.
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
  std::vector<Blob> blobs; // later ones lie over earlier ones
  bool operator==(const Picture&) const = default;
};

constexpr int span = 512;

enum class Ground {
  plain,
  textured // as much detail as a photo has: for measurements of decoders
};

// `grain`: another texture for another number.
Image paint(const Picture& picture, int64_t width, int64_t height, Ground ground, uint64_t grain);

} // namespace fvlm::shapes
