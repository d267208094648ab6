// Output of write_png and write_jpeg, read back by libpng and libjpeg.
#include "base/error.h"
#include "data/media/write_image.h"

#include <gtest/gtest.h>

#include <png.h>

namespace {

fvlm::Image gradient(int64_t width, int64_t height) {
  fvlm::Image image{width, height, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (const int64_t value : {x * 255 / width, y * 255 / height, (x + y) % 2 * 255})
        image.rgb.push_back(static_cast<uint8_t>(value));
  return image;
}

TEST(WriteImage, PngKeepsEveryPixel) {
  const fvlm::Image image = gradient(37, 21);
  const std::string bytes = fvlm::write_png(image);
  png_image reader{};
  reader.version = PNG_IMAGE_VERSION;
  ASSERT_TRUE(png_image_begin_read_from_memory(&reader, bytes.data(), bytes.size())) << reader.message;
  EXPECT_EQ(reader.width, 37U);
  EXPECT_EQ(reader.height, 21U);
  reader.format = PNG_FORMAT_RGB;
  std::vector<uint8_t> read(image.rgb.size());
  ASSERT_TRUE(png_image_finish_read(&reader, nullptr, read.data(), 0, nullptr)) << reader.message;
  EXPECT_EQ(read, image.rgb);
}

TEST(WriteImage, JpegIsBaselineAndGrowsWithQuality) {
  const fvlm::Image image = gradient(64, 48);
  const std::string low = fvlm::write_jpeg(image, 40), high = fvlm::write_jpeg(image, 95);
  EXPECT_EQ(low.substr(0, 3), "\xff\xd8\xff");
  EXPECT_EQ(low.substr(low.size() - 2), "\xff\xd9");
  EXPECT_NE(low.find("\xff\xc0"), std::string::npos);
  EXPECT_LT(low.size(), high.size());
}

TEST(WriteImage, SamePixelsGiveTheSameBytes) {
  const fvlm::Image image = gradient(16, 16);
  EXPECT_EQ(fvlm::write_png(image), fvlm::write_png(image));
  EXPECT_EQ(fvlm::write_jpeg(image, 90), fvlm::write_jpeg(image, 90));
}

TEST(WriteImage, RefusesWrongPixelCount) {
  EXPECT_THROW(fvlm::write_png({}), fvlm::Error);
  EXPECT_THROW(fvlm::write_png({2, 2, std::vector<uint8_t>(11)}), fvlm::Error);
  EXPECT_THROW(fvlm::write_jpeg({70000, 1, std::vector<uint8_t>(210000)}, 90), fvlm::Error);
}

} // namespace
