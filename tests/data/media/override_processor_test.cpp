// Limits that a user sets of an image processor. What they mean is the same as in a folder, which
// image_processor_test.py compares with transformers.
#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/media/override_processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <gmock/gmock.h>
#include <map>

namespace {

using fvlm::ProcessorOverrides;
using testing::AllOf;
using testing::HasSubstr;

using Files = std::map<std::string, std::string>;

class Folder {
 public:
  explicit Folder(const Files& files) {
    for (const auto& [name, text] : files) write(name, text);
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_.path() / name) << text; }
  fvlm::ImageProcessor processor(const ProcessorOverrides& overrides = {}) const {
    return fvlm::find_image_processor(folder_.path(), overrides).value();
  }
  std::vector<fvlm::ProcessorFile> overridden(const ProcessorOverrides& overrides) const {
    return fvlm::overridden_files(folder_.path(), overrides);
  }
  std::string refusal(const ProcessorOverrides& overrides) const {
    try {
      (void)fvlm::find_image_processor(folder_.path(), overrides);
    } catch (const fvlm::Error& error) {
      EXPECT_EQ(error.kind(), fvlm::ErrorKind::data);
      EXPECT_EQ(error.where(), folder_.path().string());
      return error.text();
    }
    return "it was taken";
  }

 private:
  fvlm::ScratchFolder folder_;
};

std::string of_type(const std::string& type, const std::string& options = "") {
  return R"({"image_processor_type": ")" + type + "\"" + options + "}";
}

Folder images(const std::string& type, const std::string& options = "") {
  return Folder({{"preprocessor_config.json", of_type(type, options)}});
}

TEST(OverrideProcessor, LimitsMeanWhatTheyMeanInAFolder) {
  for (const char* type : {"Qwen2VLImageProcessor", "Glm4vImageProcessor", "Glm46VImageProcessor",
                           "PaddleOCRVLImageProcessor", "HunYuanVLImageProcessor", "VideoLlama3ImageProcessor"}) {
    const Folder folder = images(type);
    const fvlm::ImageProcessor set = folder.processor({.min_pixels = 200'000, .max_pixels = 300'000});
    EXPECT_NE(set, folder.processor()) << type;
    fvlm::ImageProcessor expected =
        images(type, R"(, "size": {"shortest_edge": 200000, "longest_edge": 300000})").processor();
    expected.video = set.video; // the folder's one file is for videos, too, and the overrides are not
    EXPECT_EQ(set, expected) << type;
    EXPECT_EQ(set.video, folder.processor().video) << type;
    EXPECT_LT(layout_of(set, {2000, 2000}).frames(), layout_of(folder.processor(), {2000, 2000}).frames()) << type;
  }
}

TEST(OverrideProcessor, OneLimitLeavesTheOtherToTheFolder) {
  const Folder folder = images("Qwen2VLImageProcessor", R"(, "min_pixels": 4000, "max_pixels": 90000)");
  EXPECT_EQ(folder.processor({.max_pixels = 50'000}).min_pixels, 4000);
  EXPECT_EQ(folder.processor({.min_pixels = 5000}).max_pixels, 90'000);
  EXPECT_EQ(folder.processor({.video_max_pixels = 5000}).max_pixels, 90'000);
}

// What the changed files say without the overrides is what the others say with them.
TEST(OverrideProcessor, WrittenFilesSayTheSame) {
  const std::string limits = R"(, "size": {"shortest_edge": 4000, "longest_edge": 90000})",
                    old_limits = R"(, "min_pixels": 4000, "max_pixels": 90000)",
                    videos = R"({"video_processor_type": "Qwen2VLVideoProcessor"})",
                    image = of_type("Qwen2VLImageProcessorFast", limits);
  const std::vector<Files> folders{
      {{"preprocessor_config.json", of_type("Qwen2VLImageProcessorFast")}},
      {{"preprocessor_config.json", image}},
      {{"preprocessor_config.json", of_type("Qwen2VLImageProcessor", old_limits)}},
      {{"preprocessor_config.json", image}, {"video_preprocessor_config.json", videos}},
      {{"processor_config.json", R"({"image_processor": )" + image + R"(, "video_processor": )" + videos + "}"}},
      {{"preprocessor_config.json", image}, {"processor_config.json", R"({"video_processor": )" + videos + "}"}},
      {{"processor_config.json", R"({"image_processor": )" + image + "}"}, {"preprocessor_config.json", image}},
  };
  const std::vector<ProcessorOverrides> all{{.max_pixels = 50'000},
                                            {.min_pixels = 5000, .max_pixels = 6000},
                                            {.video_min_pixels = 2000, .video_max_pixels = 7000},
                                            {.max_pixels = 50'000, .video_min_pixels = 1000, .video_max_pixels = 7000}};
  for (size_t i = 0; i < folders.size(); ++i)
    for (const ProcessorOverrides& overrides : all) {
      Folder folder(folders[i]);
      const fvlm::ImageProcessor expected = folder.processor(overrides);
      EXPECT_NE(expected, folder.processor());
      for (const auto& [name, text] : folder.overridden(overrides)) folder.write(name, text);
      EXPECT_EQ(folder.processor(), expected) << "folder " << i;
    }
  EXPECT_TRUE(Folder(folders.front()).overridden({}).empty());
}

TEST(OverrideProcessor, FamiliesWithoutSuchLimitsRefuseThemByName) {
  const std::map<std::string, std::string> families{
      {of_type("PixtralImageProcessor"), "Pixtral"},
      {of_type("PixtralImageProcessor", R"(, "processor_class": "LightOnOcrProcessor")"), "LightOnOCR"},
      {of_type("Lfm2VlImageProcessor"), "LFM2-VL"},
      {of_type("MiniCPMV4_6ImageProcessor"), "MiniCPM-V"},
      {of_type("Gemma4ImageProcessor"), "Gemma 4"},
      {of_type("Idefics3ImageProcessor"), "Idefics3"},
      {of_type("GotOcr2ImageProcessor", R"(, "crop_to_patches": true)"), "InternVL"},
      {of_type("Ovis2ImageProcessor", R"(, "crop_to_patches": true)"), "Ovis2"},
      {of_type("LlavaOnevisionImageProcessor"), "LLaVA-OneVision"},
      {of_type("SiglipImageProcessor"), "frames have one size"},
      {of_type("CLIPImageProcessor"), "frames have one size"},
  };
  for (const auto& [config, name] : families) {
    const Folder folder({{"preprocessor_config.json", config}});
    EXPECT_THAT(folder.refusal({.max_pixels = 300'000}), AllOf(HasSubstr("max_pixels cannot be set"), HasSubstr(name)));
    EXPECT_THAT(folder.refusal({.video_min_pixels = 300'000}),
                AllOf(HasSubstr("video_min_pixels cannot be set"), HasSubstr(name)));
  }
  EXPECT_THAT(Folder({}).refusal({.max_pixels = 300'000}), HasSubstr("there is no image processor"));
}

TEST(OverrideProcessor, LimitsOfVideosNeedAFolderThatHasSome) {
  EXPECT_THAT(images("Glm46VImageProcessor").refusal({.video_max_pixels = 300'000}),
              HasSubstr("video_max_pixels cannot be set: the folder does not say how videos are prepared"));
  EXPECT_THAT(images("HunYuanVLImageProcessor").refusal({.video_min_pixels = 300'000}),
              HasSubstr("video_min_pixels cannot be set: the image processor of HunyuanOCR reads no videos"));
}

TEST(OverrideProcessor, RefusesRangesWithoutAnImage) {
  const Folder folder = images("Qwen2VLImageProcessor");
  EXPECT_THAT(folder.refusal({.max_pixels = 783}), HasSubstr("max_pixels = 783 is less than one cell of 28 x 28"));
  EXPECT_THAT(folder.refusal({.min_pixels = 5000, .max_pixels = 4000}),
              HasSubstr("min_pixels = 5000 is more than max_pixels = 4000"));
  EXPECT_THAT(folder.refusal({.max_pixels = 1000}), HasSubstr("min_pixels = 3136 is more than max_pixels = 1000"));
  EXPECT_THAT(folder.refusal({.video_min_pixels = 900'000}),
              AllOf(HasSubstr("video_min_pixels = 900000 is more than video_max_pixels"), HasSubstr("set both")));
}

} // namespace
