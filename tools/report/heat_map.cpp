#include "report/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fvlm::report {
namespace {

constexpr int levels = 24;

struct Colour {
  double red, green, blue, alpha;
};

// The overlay: dark and opaque where attention is low, fully transparent where it is highest.
constexpr std::array<Colour, 4> ramp = {{{12, 10, 34, 0.80}, {22, 16, 48, 0.52}, {38, 22, 60, 0.22}, {60, 30, 60, 0}}};

Colour colour_at(double share) {
  double place = share * (ramp.size() - 1);
  auto low = std::min<size_t>(static_cast<size_t>(place), ramp.size() - 2);
  double t = place - static_cast<double>(low);
  const Colour &a = ramp[low], &b = ramp[low + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green), a.blue + t * (b.blue - a.blue),
          a.alpha + t * (b.alpha - a.alpha)};
}

void append_big_endian(std::string& out, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xFF);
}

uint32_t crc32(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

void append_chunk(std::string& png, const std::string& typed) {
  append_big_endian(png, static_cast<uint32_t>(typed.size() - 4));
  png += typed;
  append_big_endian(png, crc32(typed));
}

// zlib's format with stored (uncompressed) blocks, because the images are small.
std::string zlib_stored(const std::string& bytes) {
  std::string out = "\x78\x01";
  uint32_t a = 1, b = 0;
  for (char c : bytes) a = (a + static_cast<uint8_t>(c)) % 65521, b = (b + a) % 65521;
  for (size_t at = 0; at < bytes.size(); at += 65535) {
    auto size = static_cast<uint16_t>(std::min<size_t>(65535, bytes.size() - at));
    out += at + size == bytes.size() ? '\1' : '\0';
    for (uint32_t length : {uint32_t{size}, ~uint32_t{size}})
      out += static_cast<char>(length & 0xFF), out += static_cast<char>(length >> 8 & 0xFF);
    out += bytes.substr(at, size);
  }
  append_big_endian(out, b << 16 | a);
  return out;
}

char byte(double value) {
  return static_cast<char>(static_cast<uint8_t>(std::lround(std::clamp(value, 0.0, 255.0))));
}

} // namespace

std::string heat_map_png(const std::vector<double>& shares, int64_t rows, int64_t columns, double max_share) {
  std::string png = "\x89PNG\r\n\x1a\n", header = "IHDR", palette = "PLTE", alpha = "tRNS", pixels;
  append_big_endian(header, static_cast<uint32_t>(columns));
  append_big_endian(header, static_cast<uint32_t>(rows));
  header += std::string{8, 3, 0, 0, 0}; // bit depth 8, palette colours
  for (int level = 0; level < levels; ++level) {
    Colour colour = colour_at(static_cast<double>(level) / (levels - 1));
    palette += {byte(colour.red), byte(colour.green), byte(colour.blue)};
    alpha += byte(255 * colour.alpha);
  }
  for (int64_t row = 0; row < rows; ++row) {
    pixels += '\0'; // no filter
    for (int64_t column = 0; column < columns; ++column) {
      double share =
          max_share > 0
              ? std::sqrt(std::clamp(shares[static_cast<size_t>(row * columns + column)] / max_share, 0.0, 1.0))
              : 0;
      pixels += static_cast<char>(std::lround(share * (levels - 1)));
    }
  }
  append_chunk(png, header);
  append_chunk(png, palette);
  append_chunk(png, alpha);
  append_chunk(png, "IDAT" + zlib_stored(pixels));
  append_chunk(png, "IEND");
  return png;
}

} // namespace fvlm::report
