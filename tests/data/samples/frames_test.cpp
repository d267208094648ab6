// Which frames a sample has, and their values as the model gets them.
#include "data/media/decode_image.h"
#include "data/media/normalise.h"
#include "data/media/resize.h"
#include "data/samples/frames.h"
#include "sample_maker.h"

#include <algorithm>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

const std::string json = R"({"caption":"A cat."})";

std::string png(uint8_t shade) {
  return write_png(plain_image(6, 8, shade, static_cast<uint8_t>(2 * shade), 7));
}

struct DecodedSample {
  Sample sample;
  std::vector<float> frames;
};

DecodedSample decode(const Files& files, const Wanted& wanted = {}) {
  OneSample one(files);
  SampleReader reader(wanted.mix, byte_tokenizer(), wanted.image_size, nullptr);
  DecodedSample out{reader.measure(*one.shard, one.shard->sample(0), wanted.source), {}};
  out.frames.resize(static_cast<size_t>(out.sample.distinct_frames() * 3 * wanted.image_size * wanted.image_size), NAN);
  reader.decode(*one.shard, out.sample, out.frames);
  return out;
}

// The shade of each frame's first pixel, as it was before normalisation.
std::vector<int> shades(const DecodedSample& observed, int64_t size = 4) {
  std::vector<int> all;
  for (size_t at = 0; at < observed.frames.size(); at += static_cast<size_t>(3 * size * size))
    all.push_back(static_cast<int>(std::lround((observed.frames[at] * 0.229 + 0.485) * 255)));
  return all;
}

std::string decode_refusal(const Files& files, const Wanted& wanted = {}) {
  try {
    decode(files, wanted);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
}

Wanted replicated(int64_t to) {
  Wanted wanted;
  wanted.mix.replicate_image_frames = to;
  return wanted;
}

} // namespace

TEST(Frames, ImageIsDecodedResizedAndNormalised) {
  Image picture{9, 7, {}};
  for (int i = 0; i < 9 * 7 * 3; ++i) picture.rgb.push_back(static_cast<uint8_t>(37 * i));
  std::string file = write_jpeg(picture, 90);
  std::vector<uint8_t> pixels(4 * 4 * 3);
  resize(decode_image(std::as_bytes(std::span(file)), {.width = 4, .height = 4}), 4, 4, pixels);
  std::vector<float> expected(pixels.size());
  normalise(pixels, expected);
  for (const char* name : {"jpg", "JPEG", "png"})
    EXPECT_EQ(decode({{"json", json}, {name, file}}).frames, expected) << name;
}

TEST(Frames, VideosOfEveryEndingAreFound) {
  for (const char* name : {"mp4", "webm", "MOV", "mkv", "avi"}) {
    const OneSample one({{"json", json}, {name, "x"}});
    EXPECT_EQ(find_frames(one.shard->sample(0)).media.kind, Media::Kind::video) << name;
  }
}

TEST(Frames, StillImageIsRepeatedAndDecodedOnce) {
  DecodedSample observed = decode({{"json", json}, {"png", png(9)}}, replicated(3));
  EXPECT_EQ(observed.sample.frames, 3);
  EXPECT_EQ(observed.sample.copies, 3);
  EXPECT_EQ(observed.sample.rows(), 3 + static_cast<int64_t>(observed.sample.texts[0].ids.size()));
  EXPECT_THAT(shades(observed), ElementsAre(9));
  for (int count : {1, 3})
    EXPECT_EQ(
        measure({{"png", png(9)}, {"json", fmt::format(R"({{"caption":"x","frame_count":{}}})", count)}}, replicated(3))
            .frames,
        3);
  EXPECT_THAT(refusal({{"png", png(9)}, {"json", R"({"caption":"x","frame_count":2})"}}, replicated(3)),
              HasSubstr("'frame_count' is 2, and there is 1"));
}

TEST(Frames, NumberedFramesAreOrderedByNumber) {
  Files files = {{"json", json}};
  for (int number : {10, 9, 8, 11}) files.push_back({fmt::format("{}.png", number), png(static_cast<uint8_t>(number))});
  EXPECT_THAT(shades(decode(files, replicated(5))), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(shades(decode({{"json", json}, {"000.png", png(5)}}, replicated(5))), ElementsAre(5))
      << "a clip of one frame";
  EXPECT_EQ(decode({{"json", json}, {"000.png", png(5)}}, replicated(5)).sample.copies, 1);
}

TEST(Frames, MoreThanMaxFramesAreSampledEvenly) {
  EXPECT_THAT(evenly_spaced(3, 5), ElementsAre(0, 1, 2));
  EXPECT_THAT(evenly_spaced(9, 5), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(evenly_spaced(10, 4), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(evenly_spaced(10, 1), ElementsAre(0));
  Files files = {{"json", R"({"caption":"x","frame_count":10})"}};
  for (int i = 0; i < 10; ++i) files.push_back({fmt::format("{:03}.png", i), png(static_cast<uint8_t>(10 * i))});
  Wanted wanted;
  wanted.mix.max_frames = 4;
  EXPECT_THAT(shades(decode(files, wanted)), ElementsAre(0, 30, 60, 90));
}

TEST(Frames, ArrayOfFramesIsOnlyNormalised) {
  std::string data;
  for (int i = 0; i < 3 * 4 * 4 * 3; ++i) data += static_cast<char>(5 * i);
  DecodedSample observed = decode({{"json", R"({"caption":"x","frame_count":3})"}, {"npy", npy("3, 4, 4, 3", data)}});
  ASSERT_EQ(observed.frames.size(), data.size());
  std::vector<float> expected(data.size());
  for (size_t frame = 0; frame < 3; ++frame)
    normalise(std::span(reinterpret_cast<const uint8_t*>(data.data()), data.size()).subspan(frame * 48, 48),
              std::span(expected).subspan(frame * 48, 48));
  EXPECT_EQ(observed.frames, expected);

  Wanted two;
  two.mix.max_frames = 2;
  EXPECT_EQ(decode({{"json", json}, {"npy", npy("3, 4, 4, 3", data)}}, two).sample.media.picks,
            (std::vector<int64_t>{0, 2}));
}

TEST(Frames, ArrayOfOneFrameIsAStillImage) {
  std::string data(48, '\x21');
  EXPECT_EQ(decode({{"json", json}, {"npy", npy("1, 4, 4, 3", data)}}, replicated(3)).sample.frames, 3);
  DecodedSample observed =
      decode({{"json", R"({"caption":"x","frame_count":2})"}, {"npy", npy("1, 4, 4, 3", data)}}, replicated(3));
  EXPECT_EQ(observed.sample.frames, 2);
  EXPECT_EQ(observed.sample.copies, 2);
  EXPECT_THAT(shades(observed), ElementsAre(0x21));
}

TEST(Frames, ReadsNumpyFiles) {
  Folder folder;
  auto command = fmt::format("{} -c \"import numpy; numpy.save('{}/a.npy', numpy.arange(96, dtype=numpy.uint8)"
                             ".reshape(2, 4, 4, 3))\" 2> /dev/null",
                             FVLM_PYTHON, folder.path().string());
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no numpy: scripts/setup puts it there";
  DecodedSample observed = decode({{"json", json}, {"npy", read_file(folder / "a.npy")}});
  EXPECT_THAT(shades(observed), ElementsAre(0, 48));
}

TEST(Frames, SampleWithoutFramesHasToDeclareIt) {
  EXPECT_THAT(refusal({{"json", json}}), HasSubstr("it has no frames"));
  EXPECT_EQ(measure({{"json", R"({"caption":"x","frame_count":0})"}}).frames, 0);
  EXPECT_EQ(measure({{"json", json}}, text_only()).frames, 0);
  EXPECT_THAT(refusal({{"json", json}, {"png", png(1)}}, text_only()),
              HasSubstr("it has frames ('png'), in a text-only source"));
}

TEST(Frames, ErrorsNameSampleAndPart) {
  std::string data(48, 'x');
  struct Wrong {
    Files files;
    const char* message;
  };
  const std::vector<Wrong> cases = {
      {{{"json", json}, {"png", png(1)}, {"mp4", "x"}}, "it has 'png' and 'mp4', and one of them"},
      {{{"json", json}, {"png", png(1)}, {"jpg", png(1)}}, "it has 'png' and 'jpg'"},
      {{{"json", json}, {"png", png(1)}, {"0.png", png(1)}, {"1.png", png(1)}}, "it has 'png' and 2 numbered frames"},
      {{{"json", json}, {"1.png", png(1)}, {"01.png", png(1)}}, "frame 1 is there twice"},
      {{{"json", json}, {"0.png", png(1)}, {"1.png", png(1)}, {"3.png", png(1)}}, "frame 2 is missing"},
      {{{"json", R"({"caption":"x","frame_count":3})"}, {"0.png", png(1)}, {"1.png", png(1)}},
       "'frame_count' is 3, and there are 2"},
      {{{"json", json}, {"mp4", "x"}}, "clips/7.mp4: it needs a plugin that decodes videos"},
      {{{"json", json}, {"png", "nonsense"}}, "clips/7.png"},
      {{{"json", json}, {"0.png", png(1)}, {"1.png", png(1).substr(0, 60)}}, "clips/7.1.png"},
      {{{"json", json}, {"png", ""}}, "clips/7.png"},
      {{{"json", json}, {"tif", "II*"}}, "clips/7.tif is an image of a kind that is not read: expected JPEG"},
      {{{"json", json}, {"000.gif", "GIF89a"}}, "clips/7.000.gif: a broken GIF"},
      {{{"json", json}, {"jpg", std::string("RIFF\x1a\0\0\0WEBPVP8 ", 16)}}, "clips/7.jpg: a broken WebP"},
      {{{"json", json}, {"npy", ""}}, "no NumPy array"},
      {{{"json", json}, {"npy", npy("1, 4, 4, 3", data).substr(0, 30)}}, "the array's head is damaged"},
      {{{"json", json}, {"npy", npy("1, 4, 4, 3", data) + "x"}}, "takes 176 bytes, and there are 177"},
      {{{"json", json}, {"npy", npy("1, 4, 4, 3", data, "<f4")}}, "holds no uint8"},
      {{{"json", json}, {"npy", npy("4, 4, 3", data)}}, "shape is not [frames"},
      {{{"json", json}, {"npy", npy("1, 4, 3, 4", data)}}, "shape is not [frames"},
      {{{"json", json}, {"npy", npy("0, 4, 4, 3", "")}}, "shape is not [frames"},
      {{{"json", json}, {"npy", npy("9223372036854775807, 4, 4, 3", data)}}, "shape is not [frames"},
      {{{"json", json}, {"npy", npy("99999999999999999999, 4, 4, 3", data)}}, "shape is not [frames"},
      {{{"json", json}, {"npy", npy("1048576, 1048576, 1048576, 3", data)}}, "an array of 1048576 frames"},
      {{{"json", json}, {"npy", npy("1, 2, 8, 3", data)}}, "frames of 8x2, and the model takes 4x4"},
      {{{"json", R"({"caption":"x","frame_count":9000})"}, {"npy", npy("1, 4, 4, 3", data)}}, "'frame_count' is 9000"},
      {{{"json", R"({"caption":"x","frame_count":3})"}, {"npy", npy("2, 4, 4, 3", data + data)}}, "clips/7.npy has 2"},
  };
  for (const auto& [files, message] : cases) {
    std::string output = decode_refusal(files);
    EXPECT_THAT(output, HasSubstr(message));
    EXPECT_THAT(output, HasSubstr("a.tar: sample 'clips/7'")) << message;
  }
}

TEST(Frames, ConstantStepBetweenNumbersIsNoGap) {
  EXPECT_EQ(measure({{"json", json}, {"0.png", "-"}, {"5.png", "-"}, {"10.png", "-"}}).frames, 3);
  EXPECT_EQ(
      measure({{"json", R"({"caption":"x","frame_count":3})"}, {"0.png", "-"}, {"5.png", "-"}, {"7.png", "-"}}).frames,
      3);
}

TEST(Frames, SampleThatLostAMemberIsBroken) {
  TarMaker tar;
  tar.file("a.json", json);
  tar.header("a.png", TarMaker::octal(0), '2');
  Folder folder;
  write_bytes(folder / "a.tar", tar.end());
  auto shard = Shard::open(folder / "a.tar", {.cache = folder / "cache"});
  Wanted wanted = text_only();
  SampleReader reader(wanted.mix, byte_tokenizer(), 4, nullptr);
  try {
    reader.measure(*shard, shard->sample(0), wanted.source);
    FAIL() << "a text without its picture";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("a part of it is lost: 'a.png' is a symbolic link"));
  }
}

TEST(Frames, AreThoseOfTheEncodersImageProcessor) {
  ImageProcessor processor;
  processor.resize = ImageProcessor::Resize::shortest_edge;
  processor.edge = 8;
  processor.filter = ResizeFilter::bilinear;
  processor.center_crop = ImageSize{6, 6};
  processor.rescale_factor = 1.0 / 255;
  processor.mean = {0.5, 0.4, 0.3};
  processor.deviation = {0.2, 0.3, 0.4};
  Image image{20, 10, std::vector<uint8_t>(600)};
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(i * 37 % 251);
  const Files files{{"json", R"({"caption":"x"})"}, {"png", write_png(image)}};
  const OneSample one(files);
  const plan::Mix mix;
  for (const int64_t side : {6, 12}) {
    const SampleReader reader(mix, byte_tokenizer(), FramePreparation(side, processor), nullptr);
    const Sample sample = reader.measure(*one.shard, one.shard->sample(0), {});
    std::vector<float> frames(static_cast<size_t>(3 * side * side)), expected(frames.size());
    reader.decode(*one.shard, sample, frames);
    ImageProcessor scaled = processor; // every length in proportion
    scaled.edge = 8 * side / 6;
    scaled.center_crop = ImageSize{side, side};
    process(scaled, image, expected);
    EXPECT_EQ(frames, expected) << side;
  }
  processor.center_crop.reset();
  EXPECT_THROW(FramePreparation(6, processor), Error) << "frames as long as their images";
}
