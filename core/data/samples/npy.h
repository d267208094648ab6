// Reads and writes the header of a NumPy file (.npy) with frames as uint8 [n, height, width, 3].
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fvlm {

struct NpyFrames {
  int64_t frames = 0, height = 0, width = 0;
  uint64_t data = 0; // offset of the first pixel
  uint64_t frame_bytes() const { return static_cast<uint64_t>(height * width * 3); }
};

inline constexpr size_t npy_head_bytes = 1024; // the header must end within this many bytes

// `head` are up to npy_head_bytes first bytes of the file. Throws Error(data) for an array of another type or shape,
// and when the size of the file does not match the header.
NpyFrames read_npy_head(std::span<const std::byte> head, uint64_t file_bytes);

// What numpy.save writes before the frames.
std::string npy_head(int64_t frames, int64_t height, int64_t width);

} // namespace fvlm
