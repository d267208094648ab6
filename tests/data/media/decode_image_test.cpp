// Colour formats that Pillow cannot write, and malicious files. pillow_test.py compares the rest of decoding with
// Pillow.
#include "../process_limits.h"
#include "base/error.h"
#include "data/media/decode_image.h"
#include "data/media/write_image.h"
#include "files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <gmock/gmock.h>

namespace {

using namespace media_test;
using testing::HasSubstr;

fvlm::Image decode(const std::string& file, const fvlm::DecodeOptions& options = {}) {
  return fvlm::decode_image(std::as_bytes(std::span(file)), options);
}

std::string refusal(const std::string& file) {
  try {
    decode(file);
  } catch (const fvlm::Error& error) {
    EXPECT_EQ(error.kind(), fvlm::ErrorKind::data);
    return error.text();
  }
  return "";
}

double mean_difference(const fvlm::Image& one, const fvlm::Image& other) {
  EXPECT_EQ(one.width, other.width);
  EXPECT_EQ(one.height, other.height);
  double sum = 0;
  for (size_t i = 0; i < one.rgb.size(); ++i) sum += std::abs(one.rgb[i] - other.rgb[i]);
  return sum / static_cast<double>(one.rgb.size());
}

TEST(DecodeImage, CmykAndYcckGiveTheColours) {
  const fvlm::Image image = gradient(64, 48);
  for (const JpegColours colours : {JpegColours::rgb, JpegColours::cmyk, JpegColours::ycck})
    EXPECT_LT(mean_difference(decode(jpeg_of(image, {colours})), image), 3) << static_cast<int>(colours);
}

TEST(DecodeImage, SixteenBitsKeepTheUpperEight) {
  for (const int colour_type : {0, 2, 4, 6}) {
    const int channels = std::array{1, 0, 3, 0, 2, 0, 4}[static_cast<size_t>(colour_type)];
    std::string row(1, '\0'); // no filter
    for (int i = 0; i < 2 * channels; ++i) row += {static_cast<char>(40 + 50 * i), '\x7f'};
    const fvlm::Image image = decode(png_signature() + png_header(2, 1, 16, colour_type) +
                                     png_chunk("IDAT", deflated(row)) + png_chunk("IEND", ""));
    const bool grey = channels <= 2;
    const auto value = [&](int pixel, int channel) {
      return static_cast<uint8_t>(40 + 50 * (pixel * channels + (grey ? 0 : channel)));
    };
    EXPECT_EQ(image.rgb, (std::vector{value(0, 0), value(0, 1), value(0, 2), value(1, 0), value(1, 1), value(1, 2)}))
        << "colour type " << colour_type;
  }
}

// Programs may write it behind the pixels, which are not read where only the size is wanted.
TEST(DecodeImage, PngHasTheSizeOfItsOrientationWhereverThatStands) {
  const std::string exif("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0", 26),
      pixels(2 * (1 + 3 * 3), '\0'), chunk = png_chunk("eXIf", exif), begin = png_signature() + png_header(3, 2, 8, 2),
                                     data = png_chunk("IDAT", deflated(pixels)), end = png_chunk("IEND", "");
  for (const std::string& file : {begin + chunk + data + end, begin + data + chunk + end}) {
    for (const bool only_size : {true, false}) {
      const fvlm::Image image = decode(file, {.only_size = only_size});
      EXPECT_EQ(std::pair(image.width, image.height), std::pair(int64_t{2}, int64_t{3})) << only_size;
    }
  }
  const fvlm::Image plain = decode(begin + data + end, {.only_size = true});
  EXPECT_EQ(std::pair(plain.width, plain.height), std::pair(int64_t{3}, int64_t{2}));
}

TEST(DecodeImage, InterlacedPngIsTheSamePicture) {
  // A width and height of 1: the first of the seven passes holds all there is.
  const std::string row("\0\x10\x20\x30", 4);
  const fvlm::Image image =
      decode(png_signature() + png_header(1, 1, 8, 2, 1) + png_chunk("IDAT", deflated(row)) + png_chunk("IEND", ""));
  EXPECT_EQ(image.rgb, (std::vector<uint8_t>{0x10, 0x20, 0x30}));
}

TEST(DecodeImage, JpegScalingKeepsBothSidesLargeEnough) {
  const std::string file = jpeg_of(gradient(640, 480), {});
  const auto size = [&](int64_t width, int64_t height) {
    const fvlm::Image image = decode(file, {width, height});
    return std::pair(image.width, image.height);
  };
  EXPECT_EQ(size(224, 224), std::pair(int64_t{320}, int64_t{240}));
  EXPECT_EQ(size(224, 241), std::pair(int64_t{640}, int64_t{480}));
  EXPECT_EQ(size(160, 120), std::pair(int64_t{160}, int64_t{120}));
  EXPECT_EQ(size(10, 10), std::pair(int64_t{80}, int64_t{60}));
  EXPECT_EQ(size(0, 0), std::pair(int64_t{640}, int64_t{480}));
  EXPECT_EQ(size(2000, 2000), std::pair(int64_t{640}, int64_t{480}));
}

TEST(DecodeImage, RefusesBombsByTheirHeaderBeforeAllocating) {
  const int64_t before = fvlm::test::peak_kib();
  EXPECT_THAT(refusal(png_signature() + png_header(60000, 60000, 8, 2) + png_chunk("IDAT", deflated("")) +
                      png_chunk("IEND", "")),
              HasSubstr("60000 x 60000"));
  std::string jpeg = jpeg_of(gradient(16, 16), {});
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xea\x60\xea\x60");
  EXPECT_THAT(refusal(jpeg), HasSubstr("60000 x 60000"));
  EXPECT_THAT(refusal(png_signature() + png_header(0x7fffffff, 1, 1, 0) + png_chunk("IDAT", deflated(""))),
              HasSubstr("2147483647 x 1"));
  EXPECT_LT(fvlm::test::peak_kib() - before, 20000) << "KiB";
}

TEST(DecodeImage, NeverInflatesAncillaryPngChunks) {
  const int64_t before = fvlm::test::peak_kib();
  const std::string bomb = deflated(std::string(30 << 20, 'x'));
  std::string file = png_signature() + png_header(1, 1, 8, 2);
  for (int i = 0; i < 20; ++i) {
    file += png_chunk("zTXt", std::string("Comment\0\0", 9) + bomb);
    file += png_chunk("iCCP", std::string("profile\0\0", 9) + bomb);
    file += png_chunk("iTXt", std::string("Comment\0\1\0\0\0", 12) + bomb);
  }
  file += png_chunk("IDAT", deflated(std::string("\0\1\2\3", 4))) + png_chunk("IEND", "");
  EXPECT_EQ(decode(file).rgb, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_LT(fvlm::test::peak_kib() - before, 100000) << "KiB, of which the text before deflation is 30000";
}

TEST(DecodeImage, LimitsJpegScans) {
  const int64_t side = 3000;
  std::string file =
      jpeg_of({side, side, std::vector<uint8_t>(static_cast<size_t>(side * side * 3), 77)}, {.scan_a_component = true});
  const size_t scan = file.rfind("\xff\xda"); // of the last component: nothing forbids to send it again
  const std::string again = file.substr(scan, file.size() - 2 - scan);
  EXPECT_EQ(decode(file).width, side);
  file.resize(file.size() - 2);
  for (int i = 0; i < 480; ++i) file += again;
  EXPECT_THAT(refusal(file + "\xff\xd9"), HasSubstr("broken JPEG"));
}

TEST(DecodeImage, DamageIsAnErrorAndNotAGreyPicture) {
  const fvlm::Image image = gradient(160, 120);
  std::string file = jpeg_of(image, {});
  file.replace(file.size() / 2, 2, "\xff\xd9"); // it ends too early
  EXPECT_THAT(refusal(file), HasSubstr("broken JPEG"));
  std::string png = fvlm::write_png(image);
  png[png.size() / 2] = static_cast<char>(png[png.size() / 2] ^ 1);
  EXPECT_THAT(refusal(png), HasSubstr("broken PNG"));
  std::string end = fvlm::write_png(image);
  end[end.size() - 20] = static_cast<char>(end[end.size() - 20] ^ 1); // the last bytes of the pixels
  EXPECT_THAT(refusal(end), HasSubstr("broken PNG"));
  EXPECT_THAT(refusal(""), HasSubstr("without any bytes"));
  EXPECT_THAT(refusal("GIF89a"), HasSubstr("a broken GIF: the file ends too early"));
}

} // namespace
