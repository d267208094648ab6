#include "data/media/gif.h"

#include "base/error.h"
#include "data/media/decoders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fvlm {
namespace {

constexpr int64_t max_decoded = int64_t{1} << 31; // pixels of all frames: what a small file can make of them is bounded
constexpr double usual_seconds = 0.1; // where the file does not say, or says that it is too short to be seen
constexpr int max_code_bits = 12;
constexpr size_t codes = size_t{1} << max_code_bits;

[[noreturn]] void broken_gif(std::string_view what) {
  throw Error(ErrorKind::data, "a broken GIF: {}", what);
}

// The codes of a frame's data, which lie in blocks of at most 255 bytes.
class Lzw {
 public:
  Lzw(int code_bits, size_t count) : clear_(1 << code_bits), first_bits_(code_bits + 1) {
    pixels_.reserve(count);
    wanted_ = count;
    for (int i = 0; i < clear_; ++i) suffix_[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
    reset();
  }

  // False once there are enough pixels or the data end.
  bool take(uint8_t byte) {
    held_ |= uint32_t{byte} << held_bits_;
    held_bits_ += 8;
    while (held_bits_ >= bits_) {
      const int code = static_cast<int>(held_ & ((1U << bits_) - 1));
      held_ >>= bits_;
      held_bits_ -= bits_;
      if (!take_code(code)) return false;
    }
    return pixels_.size() < wanted_;
  }

  std::vector<uint8_t> pixels() { return std::move(pixels_); }

 private:
  void reset() {
    bits_ = first_bits_;
    next_ = clear_ + 2;
    previous_ = -1;
  }

  bool take_code(int code) {
    if (code == clear_) {
      reset();
      return true;
    }
    if (code == clear_ + 1) return false;
    if (code > next_ || (previous_ < 0 && code >= clear_)) broken_gif("a code of its pixels is not defined yet");
    const bool is_new = code == next_;
    append(is_new ? previous_ : code);
    if (is_new) pixels_.push_back(first_);
    if (previous_ >= 0 && next_ < static_cast<int>(codes)) {
      prefix_[static_cast<size_t>(next_)] = static_cast<uint16_t>(previous_);
      suffix_[static_cast<size_t>(next_)] = first_;
      if (++next_ == 1 << bits_ && bits_ < max_code_bits) ++bits_;
    } else if (is_new) {
      broken_gif("a code of its pixels is not defined yet");
    }
    previous_ = code;
    return true;
  }

  void append(int code) {
    size_t count = 0;
    for (; code >= clear_; code = prefix_[static_cast<size_t>(code)])
      stack_[count++] = suffix_[static_cast<size_t>(code)];
    first_ = static_cast<uint8_t>(code);
    pixels_.push_back(first_);
    while (count > 0) pixels_.push_back(stack_[--count]);
  }

  int clear_, first_bits_, bits_ = 0, next_ = 0, previous_ = -1;
  uint32_t held_ = 0;
  int held_bits_ = 0;
  uint8_t first_ = 0;
  size_t wanted_ = 0;
  std::array<uint16_t, codes> prefix_{};
  std::array<uint8_t, codes> suffix_{}, stack_{};
  std::vector<uint8_t> pixels_;
};

// Rows in the order of the file.
std::vector<int64_t> row_order(int64_t height, bool interlaced) {
  static constexpr std::array<std::pair<int, int>, 4> passes = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
  std::vector<int64_t> rows;
  for (const auto& [first, step] : passes)
    for (int64_t row = interlaced ? first : 0; row < height && std::ssize(rows) < height; row += interlaced ? step : 1)
      rows.push_back(row);
  return rows;
}

} // namespace

bool looks_like_gif(std::span<const std::byte> bytes) {
  return bytes.size() >= 6 &&
         (std::memcmp(bytes.data(), "GIF87a", 6) == 0 || std::memcmp(bytes.data(), "GIF89a", 6) == 0);
}

GifReader::GifReader(std::span<const std::byte> bytes) : bytes_(bytes) {
  if (!looks_like_gif(bytes)) broken_gif("it does not begin like one");
  at_ = 6;
  width_ = number();
  height_ = number();
  const uint8_t flags = byte();
  take(2); // background and aspect ratio
  if (flags & 0x80) palette_ = take(size_t{3} << ((flags & 7) + 1));
}

uint8_t GifReader::byte() {
  return std::to_integer<uint8_t>(take(1)[0]);
}

int64_t GifReader::number() {
  const auto two = take(2);
  return std::to_integer<int64_t>(two[0]) | std::to_integer<int64_t>(two[1]) << 8;
}

std::span<const std::byte> GifReader::take(size_t count) {
  if (count > bytes_.size() - at_) broken_gif("the file ends too early");
  at_ += count;
  return bytes_.subspan(at_ - count, count);
}

void GifReader::skip_blocks() {
  while (!block().empty()) {
  }
}

// The delay, and what becomes of the frame behind it.
void GifReader::read_control() {
  const auto control = block();
  if (control.size() < 4) broken_gif("a damaged extension");
  const auto flags = std::to_integer<int>(control[0]);
  const auto hundredths = std::to_integer<int>(control[1]) | std::to_integer<int>(control[2]) << 8;
  seconds_ = hundredths <= 1 ? usual_seconds : hundredths / 100.0; // as browsers do
  next_disposal_ = static_cast<Disposal>(std::clamp(flags >> 2 & 7, 1, 3));
  transparent_ = flags & 1 ? std::to_integer<int>(control[3]) : -1;
  skip_blocks();
}

bool GifReader::find_frame() {
  constexpr uint8_t extension = 0x21, image = 0x2c, trailer = 0x3b, graphic_control = 0xf9;
  seconds_ = usual_seconds;
  next_disposal_ = Disposal::keep;
  transparent_ = -1;
  while (true) {
    if (at_ == bytes_.size() && any_) return false; // files without their last byte are common
    const uint8_t kind = byte();
    if (kind == trailer) {
      if (!any_) broken_gif("it has no frame");
      return false;
    }
    if (kind == extension) {
      if (byte() == graphic_control)
        read_control();
      else
        skip_blocks();
      continue;
    }
    if (kind != image) broken_gif(fmt::format("neither a frame nor the end follows at byte {}", at_ - 1));
    Frame frame;
    frame.left = number();
    frame.top = number();
    frame.width = number();
    frame.height = number();
    const uint8_t flags = byte();
    frame.interlaced = flags & 0x40;
    frame.palette = flags & 0x80 ? take(size_t{3} << ((flags & 7) + 1)) : palette_;
    frame.code_bits = byte();
    if (frame.width < 1 || frame.height < 1 || frame.left + frame.width > width_ || frame.top + frame.height > height_)
      broken_gif(fmt::format("a frame of {} x {} pixels at {}, {} of {} x {}", frame.width, frame.height, frame.left,
                             frame.top, width_, height_));
    if (frame.code_bits < 1 || frame.code_bits > 8) broken_gif("a frame's pixels have a wrong number of bits");
    if (frame.palette.empty()) broken_gif("a frame without colors");
    if (any_) dispose();
    frame_ = frame;
    disposal_ = next_disposal_;
    return any_ = true;
  }
}

// What the last frame leaves behind.
void GifReader::dispose() {
  if (canvas_.empty()) return;
  if (disposal_ == Disposal::restore && !kept_.empty()) canvas_ = kept_;
  if (disposal_ != Disposal::clear) return;
  for (int64_t row = frame_.top; row < frame_.top + frame_.height; ++row)
    std::fill_n(canvas_.begin() + (row * width_ + frame_.left) * 4, frame_.width * 4, uint8_t{0});
}

bool GifReader::skip() {
  if (!find_frame()) return false;
  skip_blocks();
  return true;
}

bool GifReader::next() {
  if (!find_frame()) return false;
  if (canvas_.empty()) canvas_.resize(static_cast<size_t>(width_ * height_ * 4));
  decoded_ += frame_.width * frame_.height;
  if (decoded_ > max_decoded) throw Error(ErrorKind::data, "a GIF of too many pixels");
  if (disposal_ == Disposal::restore) {
    decoded_ += width_ * height_;
    kept_ = canvas_;
  }
  draw(indices());
  return true;
}

std::vector<uint8_t> GifReader::indices() {
  const auto count = static_cast<size_t>(frame_.width * frame_.height);
  // A code has three bits at least and gives no more pixels than there are codes.
  if (count / codes * 3 / 8 > bytes_.size() - at_) broken_gif("too few bytes for its pixels");
  Lzw lzw(frame_.code_bits, count);
  bool more = true;
  for (auto data = block(); !data.empty(); data = block())
    for (size_t i = 0; i < data.size() && more; ++i) more = lzw.take(std::to_integer<uint8_t>(data[i]));
  auto pixels = lzw.pixels();
  if (pixels.size() < count) broken_gif(fmt::format("{} of {} pixels are missing", count - pixels.size(), count));
  return pixels;
}

void GifReader::draw(const std::vector<uint8_t>& indices) {
  const auto rows = row_order(frame_.height, frame_.interlaced);
  const size_t colors = frame_.palette.size() / 3;
  size_t at = 0;
  for (const int64_t row : rows) {
    uint8_t* out = canvas_.data() + ((frame_.top + row) * width_ + frame_.left) * 4;
    for (int64_t column = 0; column < frame_.width; ++column, out += 4) {
      const uint8_t index = indices[at++];
      const bool is_transparent = index == transparent_;
      if (is_transparent && out[3] != 0) continue;
      for (size_t channel = 0; channel < 3; ++channel)
        out[channel] = index < colors ? std::to_integer<uint8_t>(frame_.palette[3 * size_t{index} + channel]) : 0;
      out[3] = is_transparent ? 0 : 255;
    }
  }
}

} // namespace fvlm
