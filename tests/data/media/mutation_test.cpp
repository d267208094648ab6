// Images and videos damaged by seed: each decodes or throws Error(data), quickly, in little memory, and prints nothing.
// With the preset asan, this test finds accesses out of bounds.
#include "../process_limits.h"
#include "base/error.h"
#include "base/random.h"
#include "bytes.h"
#include "data/media/decode_image.h"
#include "data/media/video.h"
#include "data/media/write_image.h"
#include "files.h"
#include "gif.h"
#ifdef FVLM_TEST_LIBRARY
#include "data/media/write_mp4.h"
#endif

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <webp/encode.h>

namespace {

using namespace media_test;

constexpr double most_seconds = 5;
constexpr int64_t most_kib =
    700 << 10; // a picture of 64 million pixels as the file has it and as RGB, and the sanitizer

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// So that damage gets past the checksums.
std::string with_right_sums(const std::string& png) {
  std::string out = png.substr(0, 8);
  for (size_t at = 8; at + 12 <= png.size();) {
    const size_t size = big_endian(png, at);
    if (size > png.size() - at - 12) return out + png.substr(at);
    out += png_chunk(png.substr(at + 4, 4), png.substr(at + 8, size));
    at += size + 12;
  }
  return out;
}

class Mutator {
 public:
  explicit Mutator(std::string_view name) : random_(11, name) {}

  std::string mutate(std::string bytes) {
    for (uint32_t times = 1 + draw(2); times > 0; --times) change(bytes);
    return bytes;
  }
  uint32_t draw(uint64_t below) { return below == 0 ? 0 : static_cast<uint32_t>(random_.bits(drawn_++) % below); }

 private:
  void change(std::string& bytes) {
    if (bytes.size() < 8) return;
    // Half of the mutations are near the beginning, where sizes and tables are.
    const size_t at = draw(draw(2) == 0 ? std::min<size_t>(bytes.size() - 4, 400) : bytes.size() - 4);
    switch (draw(8)) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      bytes.insert(at, bytes.substr(draw(bytes.size()), draw(200)));
      break;
    case 2:
      bytes.erase(at, draw(100));
      break;
    case 3:
    case 4: { // wrong sizes
      static const std::array<std::string, 6> values{"\xff\xff\xff\xff",
                                                     "\x7f\xff\xff\xff",
                                                     std::string("\x80\0\0\0", 4),
                                                     std::string(4, '\0'),
                                                     std::string("\0\0\xff\xff", 4),
                                                     std::string("\0\x7f\0\0", 4)};
      bytes.replace(at, 4, values[draw(values.size())]);
      break;
    }
    default:
      bytes[at] = static_cast<char>(static_cast<uint8_t>(bytes[at]) ^ (1U << draw(8)));
    }
  }
  fvlm::RandomStream random_;
  uint64_t drawn_ = 0;
};

// Mutated files of one format, and counts of their outcomes.
void survive(const std::string& name, const std::vector<std::string>& seeds, int cases,
             const std::function<void(const std::string&)>& read) {
  Mutator mutator(name);
  int read_well = 0, refused = 0;
  const int64_t before = fvlm::test::peak_kib();
  testing::internal::CaptureStderr();
  for (int i = 0; i < cases; ++i) {
    std::string bytes = mutator.mutate(seeds[static_cast<size_t>(i) % seeds.size()]);
    if (name == "png" && i % 2 == 0) bytes = with_right_sums(bytes);
    const double begin = processor_seconds();
    try {
      read(bytes);
      ++read_well;
    } catch (const fvlm::Error& error) {
      ++refused;
      EXPECT_EQ(error.kind(), fvlm::ErrorKind::data) << name << " " << i << ": " << error.text();
    }
    EXPECT_LT(processor_seconds() - begin, most_seconds) << name << " " << i;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_LT(fvlm::test::peak_kib() - before, most_kib);
  EXPECT_GT(refused, cases / 10) << "of " << cases;
  EXPECT_GT(read_well, 0) << "of " << cases;
}

void read_image(const std::string& bytes) {
  const fvlm::Image image = fvlm::decode_image(std::as_bytes(std::span(bytes)), {32, 32});
  EXPECT_GT(image.width, 0);
  EXPECT_EQ(image.rgb.size(), static_cast<size_t>(image.width * image.height * 3));
}

std::string palette_png(int interlace) {
  std::string rows;
  const std::array<std::pair<int, int>, 7> passes{{{2, 2}, {2, 2}, {4, 1}, {4, 4}, {8, 2}, {8, 4}, {16, 8}}};
  if (interlace)
    for (const auto& [height, width] : passes) rows += std::string(static_cast<size_t>(height * (width + 1)), '\0');
  else
    rows = std::string(16 * 17, '\0');
  return png_signature() + png_header(16, 16, 8, 3, interlace) + png_chunk("PLTE", std::string(30, '\x55')) +
         png_chunk("IDAT", deflated(rows)) + png_chunk("IEND", "");
}

TEST(Mutated, JpegsDecodeOrFail) {
  const fvlm::Image image = gradient(75, 50);
  survive("jpeg",
          {jpeg_of(image, {}), jpeg_of(image, {.progressive = true}), jpeg_of(image, {.colours = JpegColours::ycck}),
           jpeg_of(image, {.scan_a_component = true}), fvlm::write_jpeg(image, 75)},
          600, read_image);
}

TEST(Mutated, PngsDecodeOrFail) {
  const std::string rgb = fvlm::write_png(gradient(40, 30));
  const std::string wide = png_signature() + png_header(8, 8, 16, 6) +
                           png_chunk("IDAT", deflated(std::string(520, '\1'))) + png_chunk("IEND", "");
  survive("png", {rgb, palette_png(0), palette_png(1), wide}, 600, read_image);
}

std::string webp(const fvlm::Image& image, bool lossless) {
  uint8_t* out = nullptr;
  const int width = static_cast<int>(image.width), height = static_cast<int>(image.height);
  const size_t size = lossless ? WebPEncodeLosslessRGB(image.rgb.data(), width, height, width * 3, &out)
                               : WebPEncodeRGB(image.rgb.data(), width, height, width * 3, 80, &out);
  std::string bytes(reinterpret_cast<const char*>(out), size);
  WebPFree(out);
  return bytes;
}

TEST(Mutated, WebpsDecodeOrFail) {
  survive("webp", {webp(gradient(75, 50), false), webp(gradient(75, 50), true)}, 2000, read_image);
}

TEST(Mutated, GifsDecodeOrFail) {
  const std::string gif = fvlm::test::gif_of(23, 17, {0, 1, 2, 3}, 50);
  std::string restoring = gif;
  for (size_t at = restoring.find("\x21\xf9\x04"); at != std::string::npos; at = restoring.find("\x21\xf9\x04", at + 1))
    restoring[at + 3] = static_cast<char>(at % 3 == 0 ? 0x0c : at % 3 == 1 ? 0x08 : 0x05);
  survive("gif", {gif, restoring, fvlm::test::gif_of(1, 1, {2}, 0)}, 2000, [](const std::string& bytes) {
    if (!bytes.empty()) read_image(bytes);
    const Bytes file(bytes);
    const fvlm::VideoInfo info = fvlm::probe_video(nullptr, file);
    const auto times = fvlm::sample_frame_times(info.seconds, 8);
    std::vector<uint8_t> out(times.size() * 16 * 16 * 3);
    fvlm::decode_video(nullptr, file, times, 16, 16, out);
  });
}

#ifdef FVLM_TEST_LIBRARY
TEST(Mutated, Mp4sDecodeOrFail) {
  const std::vector<fvlm::Image> frames(20, gradient(64, 48));
  const fvlm::VideoDecoder decoder = ffmpeg_decoder();
  survive("mp4",
          {fvlm::write_mp4(frames), fvlm::write_mp4(frames, {.between = 2}),
           fvlm::write_mp4(frames, {.fragmented = true}), fvlm::write_mp4(frames, {.quarter_turns = 1})},
          300, [&](const std::string& bytes) {
            const Bytes file(bytes);
            const fvlm::VideoInfo info = decoder.probe(file);
            const std::vector<double> times = fvlm::sample_frame_times(info.seconds, 8);
            std::vector<uint8_t> out(times.size() * 16 * 16 * 3);
            decoder.decode(file, times, 16, 16, out);
          });
}
#endif

} // namespace
