// GIFs for tests.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::test {

// Plain frames, each of one of four colors, `hundredths` of a second apart.
inline std::string gif_of(int width, int height, const std::vector<int>& colors, int hundredths) {
  const auto two = [](int number) { return std::string{static_cast<char>(number), static_cast<char>(number >> 8)}; };
  std::string gif = "GIF89a" + two(width) + two(height) + std::string("\x81\0\0", 3);
  gif += std::string("\0\0\0\xff\0\0\0\xff\0\x20\x40\xff", 12); // black, red, green, blue
  for (const int color : colors) {
    gif += std::string("\x21\xf9\x04\x04", 4) + two(hundredths) + std::string("\0\0", 2);
    gif += "," + two(0) + two(0) + two(width) + two(height) + std::string("\0\2", 2);
    std::string data;
    uint32_t held = 0;
    int bits = 0;
    const auto put = [&](uint32_t code) { // of three bits, as the table is cleared before it grows
      held |= code << bits;
      for (bits += 3; bits >= 8; bits -= 8, held >>= 8) data.push_back(static_cast<char>(held));
    };
    for (int i = 0; i < width * height; ++i) {
      if (i % 2 == 0) put(4);
      put(static_cast<uint32_t>(color));
    }
    put(5);
    if (bits > 0) data.push_back(static_cast<char>(held));
    for (size_t at = 0; at < data.size(); at += 255) {
      const std::string block = data.substr(at, 255);
      gif += static_cast<char>(block.size()) + block;
    }
    gif.push_back('\0');
  }
  return gif + ";";
}

} // namespace fvlm::test
