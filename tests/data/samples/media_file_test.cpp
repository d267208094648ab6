// Pictures and folders of pictures as frames of a model.
#include "data/samples/media_file.h"
#include "sample_maker.h"

#include <cmath>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

std::string grey_png(uint8_t shade) {
  return write_png(plain_image(8, 6, shade, shade, shade));
}

// The shade of each frame that is decoded.
std::vector<int> shades(const MediaFile& media, int64_t size) {
  std::vector<float> frames(static_cast<size_t>(media.distinct_frames() * 3 * size * size));
  media.decode(frames);
  std::vector<int> all;
  for (size_t at = 0; at < frames.size(); at += static_cast<size_t>(3 * size * size))
    all.push_back(static_cast<int>(std::lround((frames[at] * 0.229 + 0.485) * 255)));
  return all;
}

std::string refused(const std::filesystem::path& path, const MediaOptions& options = {}) {
  try {
    const MediaFile media(path, options);
    std::vector<float> frames(
        static_cast<size_t>(media.distinct_frames() * 3 * options.image_size * options.image_size));
    media.decode(frames);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
}

} // namespace

TEST(MediaFile, PictureIsRepeatedToTheRequestedFramesAndDecodedOnce) {
  Folder folder;
  write_bytes(folder / "a.png", grey_png(70));
  EXPECT_EQ(shades(MediaFile(folder / "a.png", {.image_size = 4}), 4), std::vector<int>{70});
  const MediaFile repeated(folder / "a.png", {.image_size = 4, .image_frames = 3});
  EXPECT_EQ(repeated.frames(), 3);
  EXPECT_EQ(repeated.copies(), 3);
  EXPECT_EQ(shades(repeated, 4), std::vector<int>{70});
}

TEST(MediaFile, FolderIsAVideoForAnEncoderOfCells) {
  Folder folder;
  write_bytes(folder / "a.png", grey_png(70));
  MediaOptions options{.image_size = 4};
  options.processor = ImageProcessor{
      .tile = 4, .splits_into_tiles = true, .tile_form = TileForm::qwen2_vl, .min_pixels = 16, .max_pixels = 400};
  EXPECT_EQ(MediaFile(folder / "a.png", options).frames(), 4);
  EXPECT_THAT(refused(folder / "", options), HasSubstr("does not say how videos are prepared"));
  EXPECT_THAT(refused(folder / "", options), HasSubstr((folder / "").string()));
  options.processor->step_frames = 2;
  options.processor->video = VideoProcessor{16, 400, false, {}};
  write_bytes(folder / "b.png", grey_png(80));
  write_bytes(folder / "c.png", grey_png(90));
  const MediaFile video(folder / "", options);
  EXPECT_EQ(video.frames(), 8);
  EXPECT_EQ(video.distinct_frames(), 16);
  EXPECT_EQ(grids_of(video.tiles()), (std::vector<ImageGrid>{{2, 2, 2, 2, 2.0}}));
  options.max_cells = 5;
  EXPECT_EQ(grids_of(MediaFile(folder / "", options).tiles()), (std::vector<ImageGrid>{{2, 2, 1, 2, 4.0}}))
      << "the first and the last";
  options.max_frames = 1;
  EXPECT_EQ(grids_of(MediaFile(folder / "", options).tiles()), (std::vector<ImageGrid>{{2, 2, 1, 2, 0.0}}));
  write_bytes(folder / "c.png", write_png(plain_image(6, 6, 1, 1, 1)));
  EXPECT_THAT(refused(folder / "", {.image_size = 4, .processor = options.processor}),
              HasSubstr("frame 2 of the video has 6 x 6 pixels, and the first one 8 x 6"));
}

TEST(MediaFile, FolderIsOrderedByNameAndSampledEvenly) {
  Folder folder;
  for (int i = 4; i >= 0; --i)
    write_bytes(folder / fmt::format("f{}.png", i), grey_png(static_cast<uint8_t>(50 + 10 * i)));
  write_bytes(folder / "notes.txt", "not a picture");
  EXPECT_EQ(shades(MediaFile(folder / "", {.image_size = 4}), 4), (std::vector<int>{50, 60, 70, 80, 90}));
  EXPECT_EQ(shades(MediaFile(folder / "", {.image_size = 4, .max_frames = 3}), 4), (std::vector<int>{50, 70, 90}));
}

TEST(MediaFile, NumbersInNamesCountAndExtensionsIgnoreCase) {
  Folder folder;
  for (int i : {1, 2, 3, 10, 11, 100})
    write_bytes(folder / fmt::format("clip7_{}.{}", i,
                                     i == 3    ? "PNG"
                                     : i == 10 ? "JPEG"
                                               : "png"),
                grey_png(static_cast<uint8_t>(50 + i)));
  EXPECT_EQ(shades(MediaFile(folder / "", {.image_size = 4}), 4), (std::vector<int>{51, 52, 53, 60, 61, 150}));
}

TEST(MediaFile, RefusesOtherFilesByPath) {
  Folder folder;
  write_bytes(folder / "half.png", grey_png(9).substr(0, 40));
  write_bytes(folder / "words", "no media");
  std::filesystem::create_directory(folder / "empty");
  EXPECT_THAT(refused(folder / "half.png", {.image_size = 4}), HasSubstr("half.png"));
  EXPECT_THAT(refused(folder / "words"),
              testing::AllOf(HasSubstr("words"), HasSubstr("needs a plugin that decodes videos")));
  EXPECT_THAT(refused(folder / "empty"), testing::AllOf(HasSubstr("empty"), HasSubstr("no image in this folder")));
  EXPECT_THAT(refused(folder / "nowhere"), HasSubstr("nowhere"));
}
