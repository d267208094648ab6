#include "data/media/exif.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace fvlm {
namespace {

using Bytes = std::span<const std::byte>;

uint32_t number(Bytes bytes, size_t offset, size_t size, bool little) {
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i)
    value |= std::to_integer<uint32_t>(bytes[offset + i]) << (8 * (little ? i : size - 1 - i));
  return value;
}

bool begins_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

} // namespace

int exif_orientation(Bytes tiff) {
  constexpr size_t entry_bytes = 12;
  constexpr uint32_t orientation_tag = 0x0112, short_type = 3;
  if (tiff.size() < 8) return 1;
  const bool little = begins_with(tiff, "II");
  if (!little && !begins_with(tiff, "MM")) return 1;
  const size_t folder = number(tiff, 4, 4, little);
  if (folder > tiff.size() - 2) return 1;
  const size_t room = (tiff.size() - folder - 2) / entry_bytes;
  const size_t count = std::min<size_t>(number(tiff, folder, 2, little), room);
  for (size_t entry = folder + 2; entry < folder + 2 + count * entry_bytes; entry += entry_bytes) {
    if (number(tiff, entry, 2, little) != orientation_tag) continue;
    const uint32_t value = number(tiff, entry + 8, 2, little);
    const bool sensible = number(tiff, entry + 2, 2, little) == short_type && value >= 1 && value <= 8;
    return sensible ? static_cast<int>(value) : 1;
  }
  return 1;
}

int jpeg_orientation(Bytes file) {
  constexpr uint32_t app1 = 0xe1, start_of_scan = 0xda, end_of_image = 0xd9;
  constexpr std::string_view label("Exif\0\0", 6);
  size_t at = 2; // after the marker that begins the file
  while (at + 4 <= file.size() && file[at] == std::byte{0xff}) {
    const auto marker = std::to_integer<uint32_t>(file[at + 1]);
    if (marker == 0xff) { // fill
      ++at;
      continue;
    }
    if (marker == start_of_scan || marker == end_of_image) return 1;
    const size_t length = number(file, at + 2, 2, false); // its own two bytes included
    if (length < 2 || length > file.size() - at - 2) return 1;
    const Bytes content = file.subspan(at + 4, length - 2);
    if (marker == app1 && begins_with(content, label)) return exif_orientation(content.subspan(label.size()));
    at += 2 + length;
  }
  return 1;
}

Image upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const int64_t width = image.width, height = image.height;
  const bool turned = orientation >= 5;
  const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image result{turned ? height : width, turned ? width : height, std::vector<uint8_t>(image.rgb.size())};
  // Where the result's first pixel comes from, and how far apart in the file its neighbours lie.
  const int64_t column = flip_x ? -3 : 3, row = flip_y ? -3 * width : 3 * width;
  const uint8_t* first = image.rgb.data() + (flip_x ? 3 * (width - 1) : 0) + (flip_y ? 3 * width * (height - 1) : 0);
  const int64_t step_x = turned ? row : column, step_y = turned ? column : row;
  uint8_t* out = result.rgb.data();
  for (int64_t y = 0; y < result.height; ++y) {
    const uint8_t* in = first + y * step_y;
    for (int64_t x = 0; x < result.width; ++x, in += step_x, out += 3) std::memcpy(out, in, 3);
  }
  return result;
}

} // namespace fvlm
