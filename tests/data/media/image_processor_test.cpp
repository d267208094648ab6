// What configs are refused, and what an image becomes. That the values are transformers': image_processor_test.py.
#include "base/error.h"
#include "base/scratch_folder.h"
#include "data/media/image_processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <gmock/gmock.h>

namespace {

using testing::HasSubstr;

fvlm::ImageProcessor read_config(const std::string& config) {
  const fvlm::ScratchFolder folder;
  std::ofstream(folder.path() / "preprocessor_config.json") << config;
  return fvlm::find_image_processor(folder.path()).value();
}

std::string config_refusal(const std::string& config) {
  try {
    read_config(config);
    return "";
  } catch (const fvlm::Error& error) {
    EXPECT_EQ(error.kind(), fvlm::ErrorKind::data);
    return error.text();
  }
}

std::string clip_with(const std::string& option) {
  return R"({"image_processor_type": "CLIPImageProcessor", )" + option + "}";
}
std::string tiles_with(const std::string& option) {
  return R"({"image_processor_type": "Idefics3ImageProcessor", )" + option + "}";
}

std::string grids_with(const std::string& option) {
  return R"({"image_processor_type": "LlavaNextImageProcessor", )" + option + "}";
}

TEST(ImageProcessor, NamesUnknownTypesAndOptions) {
  EXPECT_THAT(config_refusal(R"({"image_processor_type": "Llama4ImageProcessor"})"),
              AllOf(HasSubstr("'Llama4ImageProcessor'"), HasSubstr("SiglipImageProcessor")));
  EXPECT_THAT(config_refusal("{}"), HasSubstr("'image_processor_type' is missing"));
  EXPECT_THAT(config_refusal(clip_with(R"("crop_sise": 5)")), AllOf(HasSubstr("crop_sise"), HasSubstr("'crop_size'")));
  EXPECT_EQ(config_refusal(clip_with(R"("do_pad": null, "size": null)")), "");
}

TEST(ImageProcessor, RefusesOptionsThatItDoesNotApply) {
  EXPECT_THAT(config_refusal(clip_with(R"("resample": 0)")), HasSubstr("'resample' = 0"));
  EXPECT_THAT(config_refusal(clip_with(R"("do_convert_rgb": false)")), HasSubstr("'do_convert_rgb' = false"));
  EXPECT_THAT(config_refusal(clip_with(R"("do_pad": true)")), HasSubstr("'do_pad' = true"));
  EXPECT_THAT(config_refusal(clip_with(R"("pad_size": {"height": 5, "width": 5})")), HasSubstr("'pad_size'"));
  EXPECT_THAT(config_refusal(clip_with(R"("do_image_splitting": true)")), HasSubstr("'do_image_splitting' = true"));
  EXPECT_THAT(config_refusal(clip_with(R"("data_format": "channels_last")")), HasSubstr("'data_format'"));
  EXPECT_THAT(config_refusal(tiles_with(R"("do_center_crop": true)")), HasSubstr("'do_center_crop' = true"));
}

TEST(ImageProcessor, RefusesOptionsOfPatchesThatItDoesNotApply) {
  const auto with = [](const std::string& option) {
    return R"({"image_processor_type": "GotOcr2ImageProcessor", )" + option + "}";
  };
  EXPECT_THAT(config_refusal(clip_with(R"("crop_to_patches": true)")), HasSubstr("'crop_to_patches' = true"));
  EXPECT_THAT(config_refusal(tiles_with(R"("max_patches": 4)")), HasSubstr("'max_patches' = 4"));
  EXPECT_THAT(config_refusal(with(R"("do_resize": false)")), HasSubstr("'do_resize' = false"));
  EXPECT_THAT(config_refusal(with(R"("do_center_crop": true)")), HasSubstr("'do_center_crop' = true"));
  EXPECT_THAT(config_refusal(with(R"("do_image_splitting": true)")), HasSubstr("'do_image_splitting' = true"));
  EXPECT_THAT(config_refusal(with(R"("size": {"height": 448, "width": 224})")), HasSubstr("frames are squares"));
  EXPECT_THAT(config_refusal(with(R"("size": {"shortest_edge": 448})")), HasSubstr("frames are squares"));
  EXPECT_THAT(config_refusal(with(R"("max_patches": 0)")), HasSubstr("'max_patches'"));
}

TEST(ImageProcessor, RefusesOptionsOfCellsThatItDoesNotApply) {
  const auto with = [](const std::string& option) {
    return R"({"image_processor_type": "Qwen2VLImageProcessor", )" + option + "}";
  };
  EXPECT_THAT(config_refusal(clip_with(R"("patch_size": 14)")), HasSubstr("'patch_size' = 14"));
  EXPECT_THAT(config_refusal(clip_with(R"("max_pixels": 10000)")), HasSubstr("'max_pixels' = 10000"));
  EXPECT_THAT(config_refusal(with(R"("do_resize": false)")), HasSubstr("'do_resize' = false"));
  EXPECT_THAT(config_refusal(with(R"("do_pad": true)")), HasSubstr("'do_pad' = true"));
  EXPECT_THAT(config_refusal(with(R"("max_pixels": 0)")), HasSubstr("'max_pixels'"));
  EXPECT_THAT(config_refusal(with(R"("size": {"height": 5, "width": 5})")), HasSubstr("'shortest_edge'"));
  EXPECT_THAT(config_refusal(with(R"("min_pixels": 5000, "max_pixels": 4000)")), HasSubstr("at least 5000 pixels"));
}

TEST(ImageProcessor, RefusesOptionsOfPixtralThatItDoesNotApply) {
  const auto with = [](const std::string& option) {
    return R"({"image_processor_type": "PixtralImageProcessor", )" + option + "}";
  };
  EXPECT_THAT(config_refusal(clip_with(R"("spatial_merge_size": 2)")), HasSubstr("'spatial_merge_size' = 2"));
  EXPECT_THAT(config_refusal(with(R"("do_resize": false)")), HasSubstr("'do_resize' = false"));
  EXPECT_THAT(config_refusal(with(R"("do_center_crop": true)")), HasSubstr("'do_center_crop' = true"));
  EXPECT_THAT(config_refusal(with(R"("merge_size": 2)")), HasSubstr("'merge_size' = 2"));
  EXPECT_THAT(config_refusal(with(R"("patch_size": "large")")), HasSubstr("'patch_size' = \"large\""));
  EXPECT_THAT(config_refusal(with(R"("patch_size": {"height": 14, "width": 16})")), HasSubstr("patches are squares"));
  EXPECT_THAT(config_refusal(with(R"("size": {"shortest_edge": 5})")), HasSubstr("expected 'longest_edge'"));
}

TEST(ImageProcessor, RefusesOptionsOfGemma4ThatItDoesNotApply) {
  const auto with = [](const std::string& option) {
    return R"({"image_processor_type": "Gemma4ImageProcessor", )" + option + "}";
  };
  EXPECT_THAT(config_refusal(clip_with(R"("max_soft_tokens": 280)")), HasSubstr("max_soft_tokens"));
  EXPECT_THAT(config_refusal(with(R"("max_soft_tokens": 100)")), HasSubstr("one of 70, 140, 280, 560, 1120 is"));
  EXPECT_THAT(config_refusal(with(R"("do_resize": false)")), HasSubstr("'do_resize' = false"));
  EXPECT_THAT(config_refusal(with(R"("max_pixels": 4000)")), HasSubstr("'max_pixels' = 4000"));
  EXPECT_THAT(config_refusal(with(R"("merge_size": 2)")), HasSubstr("'merge_size' = 2"));
  EXPECT_THAT(config_refusal(with(R"("resample": 0)")), HasSubstr("'resample' = 0"));
}

TEST(ImageProcessor, GrowsAndShrinksImagesOfGemma4ToItsNumberOfCells) {
  const fvlm::ImageProcessor cells{
      .tile = 48, .splits_into_tiles = true, .tile_form = fvlm::TileForm::gemma4, .max_pixels = 280 * 48 * 48};
  const auto grid = [&](int64_t height, int64_t width) {
    const fvlm::TileGrid made = layout_of(cells, fvlm::ImageSize{height, width}).grid();
    return std::pair(made.rows, made.columns);
  };
  EXPECT_EQ(grid(48, 48), std::pair(int64_t{16}, int64_t{16}));
  EXPECT_EQ(grid(4800, 3000), std::pair(int64_t{21}, int64_t{13}));
  EXPECT_EQ(grid(1, 1000), std::pair(int64_t{1}, int64_t{280}));
  EXPECT_EQ(grid(1000, 2), std::pair(int64_t{280}, int64_t{1}));
  EXPECT_EQ(grid(301, 1), std::pair(int64_t{280}, int64_t{1}));
}

TEST(ImageProcessor, RefusesImagesThatWouldBeShrunkToNothing) {
  const fvlm::ImageProcessor cells{
      .size = {100, 100}, .tile = 28, .splits_into_tiles = true, .tile_form = fvlm::TileForm::pixtral};
  EXPECT_EQ(layout_of(cells, fvlm::ImageSize{2, 200}).grid(), (fvlm::TileGrid{1, 4, 0, 0, true}));
  try {
    (void)layout_of(cells, fvlm::ImageSize{1, 200});
    FAIL() << "it was cut";
  } catch (const fvlm::Error& refused) {
    EXPECT_THAT(refused.text(), HasSubstr("an image of 200 x 1 pixels is too long and narrow"));
  }
}

TEST(ImageProcessor, RefusesImagesThatAreTooNarrowForCells) {
  const fvlm::ImageProcessor cells{.tile = 28,
                                   .splits_into_tiles = true,
                                   .tile_form = fvlm::TileForm::qwen2_vl,
                                   .min_pixels = 56 * 56,
                                   .max_pixels = 28 * 28 * 1280};
  EXPECT_EQ(layout_of(cells, fvlm::ImageSize{2000, 10}).frames(), layout_of(cells, fvlm::ImageSize{10, 2000}).frames());
  try {
    (void)layout_of(cells, fvlm::ImageSize{10, 2001});
    FAIL() << "it was cut";
  } catch (const fvlm::Error& refused) {
    EXPECT_THAT(refused.text(), HasSubstr("an image of 2001 x 10 pixels is more than 200 times as long"));
  }
}

TEST(ImageProcessor, RefusesSizesWithTheirValue) {
  for (const char* size :
       {R"({"shortest_edge": 224, "longest_edge": 336})", R"({"max_height": 5, "max_width": 5})",
        R"({"longest_edge": 224})", R"({"height": 5})", R"({"shortest_edge": 0})", "99999", "[5]", R"("large")", "2.5"})
    EXPECT_THAT(config_refusal(clip_with(R"("size": )" + std::string(size))), HasSubstr("'size' = ")) << size;
  EXPECT_THAT(config_refusal(clip_with(R"("crop_size": {"shortest_edge": 5})")), HasSubstr("'crop_size' = "));
  EXPECT_THAT(config_refusal(tiles_with(R"("size": 5)")), HasSubstr("'size' = 5"));
  EXPECT_THAT(config_refusal(tiles_with(R"("size": {"shortest_edge": 5})")), HasSubstr("'size' = "));
  EXPECT_THAT(config_refusal(tiles_with(R"("max_image_size": 512)")), HasSubstr("'max_image_size' = 512"));
  EXPECT_THAT(config_refusal(clip_with(R"("image_std": [0, 1, 1])")), HasSubstr("'image_std'"));
  EXPECT_THAT(config_refusal(clip_with(R"("image_mean": [1, 1])")), HasSubstr("'image_mean'"));
}

TEST(ImageProcessor, FolderWithoutAConfigHasNone) {
  const fvlm::ScratchFolder folder;
  EXPECT_FALSE(fvlm::find_image_processor(folder.path()).has_value());
}

TEST(ImageProcessor, ReadsTheFormsOfASize) {
  EXPECT_EQ(read_config(clip_with(R"("size": 336)")), read_config(clip_with(R"("size": {"shortest_edge": 336})")));
  EXPECT_EQ(read_config(clip_with(R"("size": 336, "default_to_square": true)")),
            read_config(clip_with(R"("size": {"height": 336, "width": 336})")));
  EXPECT_EQ(read_config(clip_with(R"("size": [90, 70])")),
            read_config(clip_with(R"("size": {"height": 90, "width": 70})")));
  EXPECT_EQ(read_config(clip_with(R"("image_mean": 0.25)")),
            read_config(clip_with(R"("image_mean": [0.25, 0.25, 0.25])")));
}

TEST(ImageProcessor, TellsTilesOfAnImage) {
  const fvlm::ImageProcessor smolvlm =
      read_config(tiles_with(R"("size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512})"));
  const fvlm::ImageLayout wide = layout_of(smolvlm, {480, 640});
  EXPECT_EQ(wide, (fvlm::ImageLayout{3, 4, {512, 512}}));
  EXPECT_EQ(wide.frames(), 13);
  EXPECT_EQ(layout_of(smolvlm, {512, 512}).frames(), 17);
  const fvlm::ImageLayout whole = layout_of(read_config(tiles_with(R"("do_image_splitting": false)")), {480, 640});
  EXPECT_EQ(whole, (fvlm::ImageLayout{0, 0, {364, 364}}));
  EXPECT_EQ(whole.frames(), 1);
}

TEST(ImageProcessor, TellsPatchesOfAnImage) {
  const std::string internvl =
      R"({"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 448, "width": 448})";
  const fvlm::ImageProcessor cut = read_config(internvl + R"(, "processor_class": "InternVLProcessor"})");
  EXPECT_EQ(layout_of(cut, {480, 640}), (fvlm::ImageLayout{3, 4, {448, 448}}));
  EXPECT_EQ(layout_of(cut, {300, 300}).frames(), 1);
  EXPECT_EQ(layout_of(cut, {700, 700}).frames(), 5) << "of squares the larger one that has less than twice the pixels";
  EXPECT_EQ(cut, read_config(internvl + R"(, "crop_to_patches": true})"));
  EXPECT_EQ(layout_of(read_config(internvl + "}"), {480, 640}), (fvlm::ImageLayout{0, 0, {448, 448}}));
}

TEST(ImageProcessor, TellsGridsOfAnImage) {
  const fvlm::ImageProcessor cut = read_config(grids_with(R"("size": {"shortest_edge": 336}, "crop_size": 336)"));
  EXPECT_EQ(layout_of(cut, {480, 640}), (fvlm::ImageLayout{2, 2, {336, 336}, {480, 640}}));
  EXPECT_EQ(layout_of(cut, {480, 640}).grid(), (fvlm::TileGrid{2, 2, 480, 640}));
  EXPECT_EQ(layout_of(cut, {300, 900}), (fvlm::ImageLayout{1, 3, {336, 336}, {300, 900}}));
  const fvlm::ImageLayout single = layout_of(
      read_config(grids_with(R"("size": 336, "crop_size": 336, "image_grid_pinpoints": [[336, 336]])")), {90, 70});
  EXPECT_EQ(single, (fvlm::ImageLayout{1, 1, {336, 336}, {90, 70}}));
  EXPECT_EQ(single.frames(), 2) << "a grid of one tile is cut, too";
}

TEST(ImageProcessor, CutsNoneOfSeveralImagesAsLlavaOnevision) {
  const fvlm::ImageProcessor onevision = read_config(R"({"image_processor_type": "LlavaOnevisionImageProcessor"})");
  EXPECT_EQ(layout_of(for_images(onevision, 1), {480, 640}), (fvlm::ImageLayout{2, 2, {384, 384}, {480, 640}}));
  EXPECT_EQ(layout_of(for_images(onevision, 2), {480, 640}), (fvlm::ImageLayout{0, 0, {384, 384}}));
  const fvlm::ImageProcessor next = read_config(grids_with(R"("size": 336, "crop_size": 336)"));
  EXPECT_EQ(layout_of(for_images(next, 2), {480, 640}).frames(), 5) << "LLaVA-NeXT cuts all";
}

TEST(ImageProcessor, RefusesGridsThatItDoesNotCutImagesInto) {
  EXPECT_THAT(config_refusal(clip_with(R"("image_grid_pinpoints": [[336, 336]])")),
              HasSubstr("'image_grid_pinpoints' = [[336,336]]"));
  const auto with = [](const std::string& option) {
    return config_refusal(grids_with(R"("size": 336, "crop_size": 336, )" + option));
  };
  for (const char* grids : {"[]", "336", "[336, 336]", "[[336]]", "[[336, 0]]", "[[336, 500]]", R"([{"height": 336}])",
                            R"([["336", 336]])", "[[336, 99999]]"})
    EXPECT_THAT(with(R"("image_grid_pinpoints": )" + std::string(grids)),
                HasSubstr("multiples of the 336 pixels of a tile"))
        << grids;
  EXPECT_THAT(with(R"("do_resize": false)"), HasSubstr("'do_resize' = false"));
  EXPECT_THAT(config_refusal(grids_with(R"("size": 336, "crop_size": 300)")), HasSubstr("'crop_size' = 300"));
  EXPECT_THAT(config_refusal(grids_with(R"("size": {"height": 336, "width": 300})")), HasSubstr("frames are squares"));
}

TEST(ImageProcessor, RefusesImagesThatWouldBecomeTooLarge) {
  try {
    layout_of(read_config(clip_with(R"("size": 2048)")), {1, 65535});
    FAIL() << "134 million columns were accepted";
  } catch (const fvlm::Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("65535 x 1 pixels would be resized to 134215680 x 2048"));
  }
}

TEST(ImageProcessor, RefusesMemoryOfAnotherSize) {
  const fvlm::Image image{2, 2, std::vector<uint8_t>(12)};
  std::vector<float> out(3 * 224 * 224 - 1);
  EXPECT_THROW(process(read_config(clip_with(R"("size": 224)")), image, out), fvlm::Error);
}

} // namespace
