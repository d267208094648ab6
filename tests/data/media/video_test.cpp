// VideoDecoder over the plugin video-ffmpeg, with files that write_mp4 makes; and over plugins that misbehave.
#include "base/error.h"
#include "base/random.h"
#include "bytes.h"
#include "data/media/video.h"
#include "data/media/write_mp4.h"

#include <fvlm/fvlm.h>

#include <gtest/gtest.h>

#include <cmath>
#include <gmock/gmock.h>
#include <numeric>
#include <thread>

namespace {

using namespace media_test;
using fvlm::Image;
using testing::HasSubstr;

constexpr int64_t side = 64;

// Frame n < 256, in sixteen steps of grey on the left and on the right.
Image frame(int n) {
  Image image{side, side, {}};
  for (int64_t i = 0; i < side * side; ++i)
    image.rgb.insert(image.rgb.end(), 3, static_cast<uint8_t>(20 + 14 * (i % side < side / 2 ? n % 16 : n / 16)));
  return image;
}

// The left half red, the upper right quarter blue, the rest grey.
Image flag(int64_t width, int64_t height) {
  constexpr uint8_t level = 200;
  Image image{width, height, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const bool left = x < width / 2, upper = y < height / 2;
      for (const bool lit : {left || !upper, !left && !upper, !left}) image.rgb.push_back(lit ? level : 0);
    }
  return image;
}

std::string video(int frames, const fvlm::Mp4Form& form = {}) {
  std::vector<Image> images;
  images.reserve(static_cast<size_t>(frames));
  for (int n = 0; n < frames; ++n) images.push_back(frame(n));
  return fvlm::write_mp4(images, form);
}

// The indices in video() of the decoded frames.
std::vector<int> numbers(const std::string& file, const std::vector<double>& times) {
  constexpr size_t bytes = side * side * 3;
  std::vector<uint8_t> out(times.size() * bytes);
  ffmpeg_decoder().decode(Bytes(file), times, side, side, out);
  const auto step = [&](size_t at) { return static_cast<int>(std::lround((out[at] - 20) / 14.0)); };
  std::vector<int> found;
  for (size_t row = side * 3 * 30; row < out.size(); row += bytes)
    found.push_back(step(row + size_t{3} * 8) + 16 * step(row + size_t{3} * 56));
  return found;
}

std::string video_refusal(const std::string& file, const std::vector<double>& times = {0, 1, 2},
                          const fvlm::VideoLimits& limits = {}) {
  std::vector<uint8_t> out(times.size() * 16 * 16 * 3);
  try {
    ffmpeg_decoder(limits).decode(Bytes(file), times, 16, 16, out);
  } catch (const fvlm::Error& error) {
    EXPECT_EQ(error.kind(), fvlm::ErrorKind::data) << error.text();
    return error.text();
  }
  return "";
}

TEST(Video, ProbeReadsLittleForLengthAndSize) {
  const Bytes file(video(40));
  const fvlm::VideoInfo info = ffmpeg_decoder().probe(file);
  EXPECT_NEAR(info.seconds, 5.0, 1e-6);
  EXPECT_EQ(info.width, side);
  EXPECT_EQ(info.height, side);
  EXPECT_LE(file.reads, 4);
}

TEST(Video, ShowsTheLastFrameThatBeganBeforeATime) {
  const std::string file = video(40); // 8 a second
  EXPECT_EQ(numbers(file, {0, 0.124, 0.125, 0.13, 0.249, 0.25, 1, 1, 2.9, 4.875, 4.99}),
            (std::vector{0, 0, 1, 1, 1, 2, 8, 8, 23, 39, 39}));
}

TEST(Video, ReorderedFramesAndSeeksGiveTheSameFrames) {
  for (const int between : {0, 2})
    for (const int key_every : {1, 5, 12, 200}) {
      const std::string file = video(100, {.key_every = key_every, .between = between});
      std::vector<double> all;
      std::vector<int> expected;
      for (int n = 0; n < 100; ++n) {
        all.push_back(n / 8.0);
        expected.push_back(n);
      }
      EXPECT_EQ(numbers(file, all), expected) << between << " between, a key every " << key_every;
      for (int n = 0; n < 100; n += 7)
        EXPECT_EQ(numbers(file, {n / 8.0}), (std::vector{n})) << between << " between, a key every " << key_every;
      EXPECT_EQ(numbers(file, {0, 6, 12}), (std::vector{0, 48, 96}));
    }
}

TEST(Video, SeeksToKeyFrames) {
  std::vector<Image> images;
  images.reserve(200);
  for (int n = 0; n < 200; ++n) images.push_back(frame(n % 100));
  const std::string whole = fvlm::write_mp4(images, {.key_every = 10});
  const Bytes file(whole);
  std::vector<uint8_t> out(2 * 8 * 8 * 3);
  ffmpeg_decoder().decode(file, std::vector<double>{0, 24}, 8, 8, out);
  const Bytes again(whole);
  std::vector<double> all(25);
  std::iota(all.begin(), all.end(), 0);
  out.resize(25 * 8 * 8 * 3);
  ffmpeg_decoder().decode(again, all, 8, 8, out);
  EXPECT_LT(file.reads, again.reads + 1);
}

TEST(Video, AppliesRotation) {
  // The corners of a frame: upper left red, upper right blue, lower right grey, lower left red.
  for (int turns = 0; turns < 4; ++turns) {
    std::vector<Image> images(8, flag(96, 64));
    const Bytes file(fvlm::write_mp4(images, {.quarter_turns = turns}));
    const fvlm::VideoInfo info = ffmpeg_decoder().probe(file);
    EXPECT_EQ(std::pair(info.width, info.height),
              turns % 2 ? std::pair(int64_t{64}, int64_t{96}) : std::pair(int64_t{96}, int64_t{64}));
    std::vector<uint8_t> out(32 * 32 * 3);
    ffmpeg_decoder().decode(file, std::vector<double>{0}, 32, 32, out);
    const auto colour = [&](int64_t x, int64_t y) {
      const uint8_t* pixel = out.data() + (y * 32 + x) * 3;
      return pixel[0] > 100 ? (pixel[1] > 100 ? 'g' : 'r') : 'b';
    };
    const std::string clockwise{colour(6, 6), colour(25, 6), colour(25, 25), colour(6, 25)};
    const std::string upright = "rbgr"; // from the upper left on
    EXPECT_EQ(clockwise, upright.substr(static_cast<size_t>(4 - turns) % 4) +
                             upright.substr(0, static_cast<size_t>(4 - turns) % 4))
        << turns << " quarter turns";
  }
}

TEST(Video, KeepsColoursAndSizes) {
  const std::vector<Image> images(3, flag(128, 96));
  std::vector<uint8_t> out(128 * 96 * 3);
  ffmpeg_decoder().decode(Bytes(fvlm::write_mp4(images)), std::vector<double>{0.2}, 128, 96, out);
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += std::abs(out[i] - images[0].rgb[i]);
  EXPECT_LT(sum / static_cast<double>(out.size()), 4) << "mean difference; halved chroma at two edges";
}

TEST(Video, RepeatsTheLastFrameForTwoSecondsOnly) {
  const std::string file = video(16); // 2 s
  EXPECT_EQ(numbers(file, {1, 2, 3, 4}), (std::vector{8, 15, 15, 15}));
  EXPECT_THAT(video_refusal(file, {0, 4.5}), HasSubstr("ends after 2.00 s"));
}

TEST(Video, DamagedFilesAreErrors) {
  const std::string file = video(80, {.fragmented = true});
  EXPECT_THAT(video_refusal(""), HasSubstr("broken video"));
  EXPECT_THAT(video_refusal("not a video, however one looks at it"), HasSubstr("broken video"));
  EXPECT_THAT(video_refusal(file.substr(0, 500)), HasSubstr("broken video"));
  EXPECT_THAT(video_refusal(file.substr(0, file.size() / 2), {0, 1, 9}), HasSubstr("broken video"));
  EXPECT_THROW(ffmpeg_decoder().probe(Bytes(file.substr(0, 100))), fvlm::Error);
}

TEST(Video, EnforcesLimits) {
  const std::string file = video(16);
  EXPECT_THAT(video_refusal(file, {0}, {.most_pixels = 64 * 63}), HasSubstr("64 x 64"));
  EXPECT_EQ(video_refusal(file, {0}, {.most_pixels = 64 * 64}), "");
  EXPECT_THAT(video_refusal(file, {0}, {.seconds = 0}), HasSubstr("takes more than 0 s"));
}

TEST(Video, ReportsAFailingDiskAsSuch) {
  std::vector<Image> noise(100, frame(0));
  const fvlm::RandomStream random(1, "noise");
  uint64_t drawn = 0;
  for (Image& image : noise)
    for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random.bits(drawn++));
  for (int at : {0, 1, 3}) {
    Bytes file(fvlm::write_mp4(noise));
    file.fail_at = at;
    std::vector<uint8_t> out(3 * 16 * 16 * 3);
    try {
      ffmpeg_decoder().decode(file, std::vector<double>{0, 5, 12}, 16, 16, out);
      ADD_FAILURE() << "nothing was thrown, read " << at << " of " << file.reads;
    } catch (const fvlm::Error& error) {
      EXPECT_EQ(error.kind(), fvlm::ErrorKind::device) << error.text();
    }
  }
}

TEST(Video, DecodesOnManyThreads) {
  const std::string file = video(24);
  const fvlm::VideoDecoder shared = ffmpeg_decoder();
  std::vector<std::vector<uint8_t>> out(4, std::vector<uint8_t>(3 * 16 * 16 * 3));
  std::vector<std::thread> threads;
  threads.reserve(out.size());
  for (auto& each : out)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) shared.decode(Bytes(file), std::vector<double>{0, 1, 2}, 16, 16, each);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& each : out) EXPECT_EQ(each, out[0]);
}

// Tables that break the contract.
fvlm_status create(const fvlm_instance_config*, fvlm_instance** instance, fvlm_error*) {
  *instance = nullptr;
  return FVLM_OK;
}
void destroy(fvlm_instance*) {}

std::string misbehaves(fvlm_status (*decode)(fvlm_instance*, const fvlm_video_query*, const fvlm_video_decode*,
                                             fvlm_error*)) {
  const fvlm_video_v1 table{{sizeof table, create, destroy}, nullptr, nullptr, decode};
  std::vector<uint8_t> out(16 * 16 * 3);
  try {
    fvlm::VideoDecoder("bad", table, fvlm::host_for("bad")).decode(Bytes("x"), std::vector<double>{0}, 16, 16, out);
  } catch (const fvlm::Error& error) {
    EXPECT_EQ(error.kind(), fvlm::ErrorKind::plugin) << error.text();
    return error.text();
  }
  return "";
}

TEST(Video, NamesAPluginThatBreaksTheContract) {
  EXPECT_THAT(misbehaves([](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; }),
              HasSubstr("0 pictures came"));
  EXPECT_THAT(misbehaves([](auto*, auto*, auto*, auto*) -> fvlm_status { throw 7; }), HasSubstr("threw"));
  EXPECT_THAT(
      misbehaves([](auto*, auto*, auto*, auto* error) { return fvlm_fail(error, FVLM_ERROR_INTERNAL, "no luck"); }),
      HasSubstr("no luck"));
  EXPECT_THAT(misbehaves([](auto*, auto*, const fvlm_video_decode* decode, auto*) {
                char byte = 0;
                return fvlm_status{decode->file->read(decode->file->context, 1, &byte, 1) ? FVLM_ERROR_DEVICE
                                                                                          : FVLM_OK};
              }),
              HasSubstr("read 1 bytes at 1 of a file of 1"));
  EXPECT_THAT(misbehaves([](auto*, auto*, const fvlm_video_decode* decode, auto*) {
                const uint8_t pixel[3] = {};
                const fvlm_video_picture picture{sizeof picture, 0, 1 << 20, 1 << 20, 3 << 20, pixel};
                return fvlm_status{decode->picture(decode->context, &picture) ? FVLM_ERROR_DATA : FVLM_OK};
              }),
              HasSubstr("1048576 x 1048576"));
}

TEST(FrameTimes, OneASecondOrEvenlySpacedBelowTheLimit) {
  using Times = std::vector<double>;
  EXPECT_EQ(fvlm::sample_frame_times(3.2, 64), (Times{0, 1, 2, 3}));
  EXPECT_EQ(fvlm::sample_frame_times(3, 64), (Times{0, 1, 2}));
  EXPECT_EQ(fvlm::sample_frame_times(0.1, 64), (Times{0}));
  EXPECT_EQ(fvlm::sample_frame_times(0, 64), (Times{0}));
  EXPECT_EQ(fvlm::sample_frame_times(std::nan(""), 64), (Times{0}));
  EXPECT_EQ(fvlm::sample_frame_times(11, 6), (Times{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(fvlm::sample_frame_times(100, 1), (Times{0}));
  EXPECT_EQ(fvlm::sample_frame_times(1e300, 64).size(), 64U);
}

} // namespace

TEST(VideoTimes, AreSpreadOverAVideoOf24FramesASecond) {
  const auto frames = [](double seconds, double per_second, int64_t most) {
    std::vector<int64_t> numbers;
    for (const double time : fvlm::sample_evenly(seconds, per_second, most)) numbers.push_back(std::llround(time * 24));
    return numbers;
  };
  EXPECT_THAT(frames(5, 1, 64), testing::ElementsAre(0, 29, 59, 89, 119));
  EXPECT_THAT(frames(2.5, 1, 64), testing::ElementsAre(0, 59)) << "a half is rounded to the even number";
  EXPECT_THAT(frames(10, 1, 3), testing::ElementsAre(24, 120, 216)) << "a long video without its first and last second";
  EXPECT_THAT(frames(0, 1, 64), testing::ElementsAre(0));
  EXPECT_THAT(frames(0.1, 60, 64), testing::ElementsAre(0, 1)) << "no frame twice";
}
