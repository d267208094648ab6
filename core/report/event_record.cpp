#include "report/event_record.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace fvlm::report {
namespace {

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    table[byte] = crc;
  }
  return table;
}();

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

template <class Number>
void put_little(std::string& out, Number number) {
  for (size_t byte = 0; byte < sizeof number; ++byte) out += static_cast<char>((number >> (8 * byte)) & 0xFF);
}

void put_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>((number & 0x7F) | 0x80);
  out += static_cast<char>(number);
}

enum Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& out, int field, Wire wire) {
  out += static_cast<char>(field << 3 | wire);
}

void put_bytes(std::string& out, int field, std::string_view value) {
  put_key(out, field, bytes);
  put_varint(out, value.size());
  out += value;
}

std::string event(double wall_time, int64_t step) {
  std::string out;
  put_key(out, 1, fixed64);
  put_little(out, std::bit_cast<uint64_t>(wall_time));
  if (step != 0) {
    put_key(out, 2, varint);
    put_varint(out, static_cast<uint64_t>(step));
  }
  return out;
}

std::string record(std::string_view event) {
  std::string out;
  put_little(out, static_cast<uint64_t>(event.size()));
  put_little(out, masked_crc(out));
  out += event;
  put_little(out, masked_crc(event));
  return out;
}

// Converting a double that float32 cannot hold is undefined.
float as_float(double value) {
  constexpr double most = std::numeric_limits<float>::max();
  if (std::abs(value) > most)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(std::copysign(1, value)));
  return static_cast<float>(value);
}

} // namespace

uint32_t crc32c(std::string_view text) {
  uint32_t crc = ~0u;
  for (char c : text) crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

std::string version_record(double wall_time) {
  std::string out = event(wall_time, 0);
  put_bytes(out, 3, "brain.Event:2");
  return record(out);
}

std::string scalars_record(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& tagged) {
  std::string summary;
  for (const auto& [tag, number] : tagged) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, fixed32);
    put_little(value, std::bit_cast<uint32_t>(as_float(number)));
    put_bytes(summary, 1, value);
  }
  std::string out = event(wall_time, step);
  put_bytes(out, 5, summary);
  return record(out);
}

} // namespace fvlm::report
