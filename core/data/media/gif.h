// GifReader: the frames of a GIF, one after the other, each as a player shows it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fvlm {

bool looks_like_gif(std::span<const std::byte> bytes);

class GifReader {
 public:
  // Reads the head. The bytes must outlive it. Throws Error(data), as next() does.
  explicit GifReader(std::span<const std::byte> bytes);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }

  // Decodes the next frame; false at the end of the file.
  bool next();
  // Skips the pixels of the next frame, for those who ask for times alone.
  bool skip();

  double seconds() const { return seconds_; }               // for which the frame is shown
  std::span<const uint8_t> rgba() const { return canvas_; } // [height, width, 4]

 private:
  struct Frame {
    int64_t left = 0, top = 0, width = 0, height = 0;
    bool interlaced = false;
    std::span<const std::byte> palette; // of 3 bytes each
    int code_bits = 0;
  };
  enum class Disposal { keep = 1, clear = 2, restore = 3 };

  uint8_t byte();
  int64_t number(); // of 16 bits
  std::span<const std::byte> take(size_t count);
  std::span<const std::byte> block() { return take(byte()); }
  bool find_frame();
  void read_control();
  void skip_blocks();
  std::vector<uint8_t> indices();
  void dispose();
  void draw(const std::vector<uint8_t>& indices);

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  int64_t width_ = 0, height_ = 0, decoded_ = 0;
  std::span<const std::byte> palette_;
  Frame frame_;
  Disposal disposal_ = Disposal::keep, next_disposal_ = Disposal::keep;
  int transparent_ = -1;
  double seconds_ = 0;
  bool any_ = false;
  std::vector<uint8_t> canvas_, kept_;
};

} // namespace fvlm
