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

// A veil that is gone where the model looked most: the colours there stay what they are.
constexpr std::array<Colour, 4> ramp = {{{12, 10, 34, 0.80}, {22, 16, 48, 0.52}, {38, 22, 60, 0.22}, {60, 30, 60, 0}}};

Colour at(double share) {
  double place = share * (ramp.size() - 1);
  auto low = std::min<size_t>(static_cast<size_t>(place), ramp.size() - 2);
  double t = place - static_cast<double>(low);
  const Colour &a = ramp[low], &b = ramp[low + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green), a.blue + t * (b.blue - a.blue),
          a.alpha + t * (b.alpha - a.alpha)};
}

void put_big(std::string& out, uint32_t number) {
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

void put_chunk(std::string& png, const std::string& typed) {
  put_big(png, static_cast<uint32_t>(typed.size() - 4));
  png += typed;
  put_big(png, crc32(typed));
}

// zlib's format without compression: so few bytes are not worth it.
std::string stored(const std::string& bytes) {
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
  put_big(out, b << 16 | a);
  return out;
}

char byte(double value) {
  return static_cast<char>(static_cast<uint8_t>(std::lround(std::clamp(value, 0.0, 255.0))));
}

} // namespace

std::string heat_map_png(const std::vector<double>& shares, int64_t rows, int64_t columns, double most) {
  std::string png = "\x89PNG\r\n\x1a\n", header = "IHDR", palette = "PLTE", alpha = "tRNS", pixels;
  put_big(header, static_cast<uint32_t>(columns));
  put_big(header, static_cast<uint32_t>(rows));
  header += std::string{8, 3, 0, 0, 0}; // 8 bits of a palette
  for (int level = 0; level < levels; ++level) {
    Colour colour = at(static_cast<double>(level) / (levels - 1));
    palette += {byte(colour.red), byte(colour.green), byte(colour.blue)};
    alpha += byte(255 * colour.alpha);
  }
  for (int64_t row = 0; row < rows; ++row) {
    pixels += '\0'; // no filter
    for (int64_t column = 0; column < columns; ++column) {
      double share =
          most > 0 ? std::sqrt(std::clamp(shares[static_cast<size_t>(row * columns + column)] / most, 0.0, 1.0)) : 0;
      pixels += static_cast<char>(std::lround(share * (levels - 1)));
    }
  }
  put_chunk(png, header);
  put_chunk(png, palette);
  put_chunk(png, alpha);
  put_chunk(png, "IDAT" + stored(pixels));
  put_chunk(png, "IEND");
  return png;
}

} // namespace fvlm::report
