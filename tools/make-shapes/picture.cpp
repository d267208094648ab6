#include "make-shapes/picture.h"

#include "base/random.h"

#include <algorithm>
#include <cmath>

namespace fvlm::shapes {
namespace {

// How far inside the form of radius `r` a point at (x, y) from its centre is; pixels, negative outside.
double depth(Form form, double x, double y, double r) {
  switch (form) {
  case Form::circle:
    return r - std::sqrt(x * x + y * y);
  case Form::ring:
    return 0.3 * r - std::abs(0.7 * r - std::sqrt(x * x + y * y));
  case Form::square:
    return r - std::max(std::abs(x), std::abs(y));
  case Form::triangle: { // the point up; both slanted sides at a slope of 2
    double slanted = (y + r - 2 * std::abs(x)) / std::sqrt(5.0);
    return std::min(slanted, r - y);
  }
  case Form::cross: {
    double longer = std::max(std::abs(x), std::abs(y)), shorter = std::min(std::abs(x), std::abs(y));
    return std::min(r - longer, 0.22 * r - shorter);
  }
  }
  return -1;
}

void paint_blob(const Blob& blob, Image& image) {
  auto scaled = [](int units, int64_t pixels) { return units * static_cast<double>(pixels) / span; };
  double x = scaled(blob.x, image.width), y = scaled(blob.y, image.height);
  double r = scaled(blob.size, std::min(image.width, image.height)) / 2;
  auto first = [&](double centre) { return std::max<int64_t>(0, static_cast<int64_t>(centre - r) - 1); };
  auto end = [&](double centre, int64_t size) { return std::min(size, static_cast<int64_t>(centre + r) + 2); };
  for (int64_t row = first(y); row < end(y, image.height); ++row)
    for (int64_t column = first(x); column < end(x, image.width); ++column) {
      double inside = depth(blob.form, static_cast<double>(column) + 0.5 - x, static_cast<double>(row) + 0.5 - y, r);
      double cover = std::clamp(inside + 0.5, 0.0, 1.0);
      auto share = static_cast<int>(cover * 256);
      if (share == 0) continue;
      uint8_t* pixel = image.rgb.data() + (row * image.width + column) * 3;
      for (size_t c = 0; c < 3; ++c)
        pixel[c] = static_cast<uint8_t>((pixel[c] * (256 - share) + blob.colour[c] * share + 128) >> 8);
    }
}

// Smooth light of a few sizes and fine noise, of about the entropy of a photo.
void paint_texture(Image& image, uint64_t grain) {
  RandomStream random(grain, "texture");
  constexpr int64_t octaves = 4;
  std::array<std::vector<double>, octaves> lattices;
  std::array<int64_t, octaves> cells{};
  uint64_t next = 0;
  for (size_t octave = 0; octave < octaves; ++octave) {
    cells[octave] = int64_t{64} >> octave; // pixels
    auto nodes = (image.width / cells[octave] + 2) * (image.height / cells[octave] + 2);
    for (int64_t i = 0; i < nodes; ++i) lattices[octave].push_back(random.uniform(next++) - 0.5);
  }
  uint64_t state = random.bits(next) | 1;
  for (int64_t row = 0; row < image.height; ++row)
    for (int64_t column = 0; column < image.width; ++column) {
      double light = 0;
      for (size_t octave = 0; octave < octaves; ++octave) {
        int64_t cell = cells[octave], across = image.width / cell + 2;
        double u = static_cast<double>(column % cell) / static_cast<double>(cell);
        double v = static_cast<double>(row % cell) / static_cast<double>(cell);
        const double* node = lattices[octave].data() + (row / cell) * across + column / cell;
        light += (node[0] * (1 - u) + node[1] * u) * (1 - v) + (node[across] * (1 - u) + node[across + 1] * u) * v;
      }
      state = state * 6364136223846793005u + 1442695040888963407u;
      double noise = static_cast<double>(state >> 40) / static_cast<double>(1 << 24) - 0.5;
      uint8_t* pixel = image.rgb.data() + (row * image.width + column) * 3;
      constexpr std::array<double, 3> tint{1.0, 0.9, 0.8};
      for (size_t c = 0; c < 3; ++c)
        pixel[c] = static_cast<uint8_t>(std::clamp(90 + 70 * light * tint[c] + 8 * noise, 0.0, 255.0));
    }
}

} // namespace

Image paint(const Picture& picture, int64_t width, int64_t height, Ground ground, uint64_t grain) {
  Image image{width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3))};
  if (ground == Ground::textured)
    paint_texture(image, grain);
  else
    for (auto pixel = image.rgb.begin(); pixel != image.rgb.end(); pixel += 3) std::ranges::copy(picture.ground, pixel);
  for (const Blob& blob : picture.blobs) paint_blob(blob, image);
  return image;
}

} // namespace fvlm::shapes
