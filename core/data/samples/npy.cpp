#include "data/samples/npy.h"

#include "data/samples/parts.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

namespace fvlm {
namespace {

constexpr int64_t most = int64_t{1} << 20; // of frames, and of pixels along an edge

// What stands behind "'key': " in the head's dictionary.
std::string_view value_of(std::string_view dictionary, std::string_view key) {
  auto at = dictionary.find(key);
  if (at == std::string_view::npos) broken("the array's head is damaged");
  return dictionary.substr(at + key.size());
}

} // namespace

NpyFrames read_npy_head(std::span<const std::byte> head, uint64_t file_bytes) {
  std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (!text.starts_with("\x93NUMPY") || text.size() < 12) broken("this is no NumPy array");
  auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text[i])); };
  bool first_version = byte(6) == 1;
  size_t begin = first_version ? 10 : 12;
  size_t size = byte(8) | byte(9) << 8 | (first_version ? 0 : byte(10) << 16 | byte(11) << 24);
  if (size > text.size() - begin) broken("the array's head is damaged");
  auto dictionary = text.substr(begin, size);
  if (!value_of(dictionary, "'descr': ").starts_with("'|u1'")) broken("the array holds no uint8");
  if (!value_of(dictionary, "'fortran_order': ").starts_with("False")) broken("the array is in Fortran's order");
  auto shape = value_of(dictionary, "'shape': (");
  std::array<int64_t, 4> edges{};
  for (size_t i = 0; i < edges.size(); ++i) {
    auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), edges[i]);
    shape.remove_prefix(static_cast<size_t>(end - shape.data()));
    bool last = i + 1 == edges.size();
    if (error != std::errc{} || edges[i] < 1 || edges[i] > most || !shape.starts_with(last ? ")" : ", ") ||
        (last && edges[i] != 3))
      broken("the array's shape is not [frames, height, width, 3]");
    shape.remove_prefix(last ? 1 : 2);
  }
  NpyFrames found{edges[0], edges[1], edges[2], begin + size};
  // Up to 2^62 bytes: none of these overflows.
  uint64_t wanted = found.data + static_cast<uint64_t>(found.frames) * found.frame_bytes();
  if (wanted != file_bytes)
    broken(fmt::format("an array of {} frames of {}x{} takes {} bytes, and there are {}", found.frames, found.width,
                       found.height, wanted, file_bytes));
  return found;
}

std::string npy_head(int64_t frames, int64_t height, int64_t width) {
  std::string shape =
      fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {}, {}, 3), }}", frames, height, width);
  constexpr size_t before = 10, line = 64; // magic, version and length; the pixels begin at a multiple of 64
  size_t length = (before + shape.size() + 1 + line - 1) / line * line - before;
  std::string head("\x93NUMPY\1\0", 8);
  head.push_back(static_cast<char>(length & 0xFF));
  head.push_back(static_cast<char>(length >> 8));
  head += shape;
  head.resize(before + length - 1, ' ');
  head.push_back('\n');
  return head;
}

} // namespace fvlm
