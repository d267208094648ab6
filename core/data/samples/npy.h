// The head of a NumPy file (.npy) that holds frames, uint8 [n, height, width, 3]: written and read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fvlm {

struct NpyFrames {
  int64_t frames = 0, height = 0, width = 0;
  uint64_t data = 0; // where the first pixel lies
  uint64_t frame_bytes() const { return static_cast<uint64_t>(height * width * 3); }
};

inline constexpr size_t npy_head_bytes = 1024; // of the file, in which its head must end

// `head`: the file's first bytes, as many as there are up to npy_head_bytes. Throws Error(data) for any other array
// and where the file is not as long as its head says.
NpyFrames read_npy_head(std::span<const std::byte> head, uint64_t file_bytes);

// What numpy.save writes before the frames.
std::string npy_head(int64_t frames, int64_t height, int64_t width);

} // namespace fvlm
