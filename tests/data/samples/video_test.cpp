// Samples with an mp4, read through the plugin video-ffmpeg.
#include "../media/bytes.h"
#include "data/media/write_mp4.h"
#include "data/samples/media_file.h"
#include "sample_maker.h"

#include <fcntl.h>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

constexpr int64_t size = 16;

// A video of so many seconds at four frames per second, each second brighter than the previous.
std::string video(int seconds) {
  std::vector<Image> frames;
  for (int i = 0; i < 4 * seconds; ++i) {
    auto shade = static_cast<uint8_t>(20 + 30 * (i / 4));
    frames.push_back(plain_image(32, 32, shade, shade, shade));
  }
  return write_mp4(frames, {.frames_per_second = 4});
}

struct Read {
  Sample sample;
  std::vector<int> seconds; // what the frames show
};

Read read(const std::string& file, int64_t max_frames = 64, const std::string& json = R"({"caption":"x"})") {
  static const VideoDecoder decoder = media_test::ffmpeg_decoder();
  OneSample one({{"json", json}, {"mp4", file}});
  Wanted wanted;
  wanted.mix.max_frames = max_frames;
  SampleReader reader(wanted.mix, byte_tokenizer(), size, &decoder);
  Read out{reader.measure(*one.shard, one.shard->sample(0), wanted.source), {}};
  std::vector<float> frames(static_cast<size_t>(out.sample.frames * 3 * size * size));
  reader.decode(*one.shard, out.sample, frames);
  for (size_t at = 0; at < frames.size(); at += 3 * size * size)
    out.seconds.push_back(static_cast<int>(std::lround(((frames[at] * 0.229 + 0.485) * 255 - 20) / 30)));
  return out;
}

std::string video_refusal(const std::string& file) {
  try {
    read(file);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
}

} // namespace

// Cells of a quarter of a frame; two frames are a step, and the fifth one is shown twice.
TEST(SampleVideo, OfCellsHasTheFramesWhoseCellsFit) {
  const VideoDecoder decoder = media_test::ffmpeg_decoder();
  ImageProcessor processor{.tile = size, .splits_into_tiles = true, .tile_form = TileForm::qwen2_vl};
  processor.step_frames = 2;
  processor.video = VideoProcessor{32 * 32, 32 * 32, false, {}};
  const OneSample one({{"json", R"({"caption":"x"})"}, {"mp4", video(5)}});
  Wanted wanted;
  const auto seconds_of = [&](int64_t max_frames) {
    wanted.mix.max_frames = max_frames;
    const SampleReader reader(wanted.mix, byte_tokenizer(), FramePreparation(size, processor), &decoder);
    const Sample sample = reader.measure(*one.shard, one.shard->sample(0), wanted.source);
    EXPECT_LE(sample.frames, max_frames);
    EXPECT_EQ(sample.distinct_frames(), 2 * sample.frames);
    std::vector<uint8_t> pixels(static_cast<size_t>(sample.distinct_frames() * 3 * size * size));
    reader.decode_pixels(*one.shard, sample, pixels);
    std::vector<int> seconds; // that the first cell of each frame shows, whose cells are all alike
    for (size_t at = 0; at < pixels.size(); at += 4 * 3 * size * size) {
      seconds.push_back((pixels[at] - 20 + 15) / 30);
      EXPECT_NEAR(pixels[at], pixels[at + 4 * 3 * size * size - 1], 12);
    }
    return seconds;
  };
  EXPECT_THAT(seconds_of(12), ElementsAre(0, 1, 2, 3, 4, 4));
  EXPECT_THAT(seconds_of(11), ElementsAre(0, 1, 3, 4)) << "four frames, evenly spread";
}

TEST(SampleVideo, HasAFrameASecondOrEvenlySpacedBelowTheLimit) {
  Read all = read(video(5));
  EXPECT_EQ(all.sample.frames, 5);
  EXPECT_THAT(all.seconds, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(video(5), 3).seconds, ElementsAre(0, 2, 4));
  EXPECT_THAT(read(video(2), 64, R"({"caption":"x","frame_count":8})").seconds, ElementsAre(0, 1))
      << "the file's own frames";
}

TEST(SampleVideo, DamagedOneIsABrokenSampleThatNamesIt) {
  std::string whole = video(3);
  for (const std::string& bad : {std::string("nonsense"), std::string(), whole.substr(0, 100), std::string(5000, '\0')})
    EXPECT_THAT(video_refusal(bad), testing::AllOf(HasSubstr("a.tar: sample 'clips/7'"), HasSubstr("clips/7.mp4")))
        << bad.size();
}

TEST(SampleVideo, FailingDiskIsNoBrokenVideo) {
  static const VideoDecoder decoder = media_test::ffmpeg_decoder();
  Folder folder;
  TarMaker tar;
  tar.file("a.json", R"({"caption":"x"})");
  tar.file("a.mp4", video(3));
  write_bytes(folder / "a.tar", tar.end());
  ShardOptions options{.cache = folder / "cache"};
  options.retry.pause = [](auto) {};
  auto shard = Shard::open(folder / "a.tar", options);
  Wanted wanted;
  SampleReader reader(wanted.mix, byte_tokenizer(), size, &decoder);
  Sample sample = reader.measure(*shard, shard->sample(0), wanted.source);
  std::vector<float> frames(static_cast<size_t>(sample.frames * 3 * size * size));
  ASSERT_EQ(truncate((folder / "a.tar").c_str(), 2048), 0);
  EXPECT_THROW(reader.decode(*shard, sample, frames), ReadError);
  EXPECT_THROW(reader.measure(*shard, shard->sample(0), wanted.source), ReadError);
}

TEST(SampleVideo, OutsideOfAShardGivesTheSameFrames) {
  static const VideoDecoder decoder = media_test::ffmpeg_decoder();
  Folder folder;
  write_bytes(folder / "clip.mp4", video(6));
  const auto seconds = [&](int64_t max_frames, std::optional<TimeSpan> span) {
    const MediaFile media(folder / "clip.mp4", {.image_size = size, .max_frames = max_frames, .video = &decoder}, span);
    std::vector<float> frames(static_cast<size_t>(media.frames() * 3 * size * size));
    media.decode(frames);
    std::vector<int> shown;
    for (size_t at = 0; at < frames.size(); at += 3 * size * size)
      shown.push_back(static_cast<int>(std::lround(((frames[at] * 0.229 + 0.485) * 255 - 20) / 30)));
    return shown;
  };
  EXPECT_THAT(seconds(64, {}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(seconds(4, {}), read(video(6), 4).seconds);
  EXPECT_THAT(seconds(64, TimeSpan{2, 4}), ElementsAre(2, 3));
  EXPECT_THAT(seconds(64, TimeSpan{4, 100}), ElementsAre(4, 5));
  EXPECT_THROW(seconds(64, TimeSpan{7, 9}), Error);
  EXPECT_THROW(seconds(64, TimeSpan{3, 3}), Error);
  EXPECT_THROW(MediaFile(folder / "clip.mp4", {}), Error) << "no plugin";
}
