// Boxes, points and names of a sample's `objects` in the places of their placeholders.
#include "data/boxes.h"
#include "data/samples/objects.h"
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using plan::BoxForm;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

const std::string wide = write_png(plain_image(200, 100, 9, 9, 9)), tall = write_png(plain_image(40, 80, 9, 9, 9));

Wanted written_as(BoxForm form) {
  Wanted wanted;
  wanted.mix.system = "";
  wanted.mix.boxes = form;
  wanted.image_size = 50;
  return wanted;
}

std::string sample(const std::string& question, const std::string& answer, const std::string& objects) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}},{{"role":"assistant","content":"{}"}}],
                         "objects":{}}})",
                     question, answer, objects);
}

// The answer to "?" about a picture of 200 x 100 pixels.
std::string answered(const std::string& answer, const std::string& objects, const Wanted& wanted) {
  const Sample read = measure({{"png", wide}, {"json", sample("?", answer, objects)}}, wanted);
  std::string text = reported(read.texts.at(0));
  const std::string head = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n[";
  EXPECT_TRUE(text.starts_with(head)) << text;
  EXPECT_TRUE(text.ends_with("<|im_end|>\n]")) << text;
  return text.substr(head.size(), text.size() - head.size() - std::string("<|im_end|>\n]").size());
}

std::string refused(const std::string& answer, const std::string& objects, BoxForm form = BoxForm::norm1000) {
  return refusal({{"png", wide}, {"json", sample("?", answer, objects)}}, written_as(form));
}

const std::string two = R"({"ref":["a dog"],"bbox":[[20,10,100,50],[50.5,75]]})";

} // namespace

TEST(Objects, TakeThePlacesOfTheirPlaceholders) {
  const std::string text = "<ref-object>: <bbox>, <bbox>.";
  EXPECT_EQ(answered(text, two, written_as(BoxForm::norm1000)), "a dog: [100, 100, 500, 500], [252, 750].");
  EXPECT_EQ(answered(text, two, written_as(BoxForm::norm1000_yx)), "a dog: [100, 100, 500, 500], [750, 252].");
  EXPECT_EQ(answered(text, two, written_as(BoxForm::norm1)), "a dog: [0.100, 0.100, 0.500, 0.500], [0.253, 0.750].");
  EXPECT_EQ(answered(text, two, written_as(BoxForm::pixels)), "a dog: [5, 5, 25, 25], [13, 38].")
      << "of an image that is resized to 50 x 50";
}

TEST(Objects, AreCountedInPixelsOrAcrossTheImage) {
  const Wanted wanted = written_as(BoxForm::norm1000_yx);
  const std::string box = "[300, 100, 500, 250]";
  for (const char* objects :
       {R"({"bbox":[[20,30,50,50]]})", R"({"bbox":[[20,30,50,50]],"bbox_type":"real","image_id":[0],"ref":[]})",
        R"({"bbox":[[20,30,50,50]],"bbox_type":null,"image_id":null,"ref":null})",
        R"({"bbox":[[100,300,250,500]],"bbox_type":"norm1000"})",
        R"({"bbox":[[0.1,0.3,0.25,0.5]],"bbox_type":"norm1"})"})
    EXPECT_EQ(answered("<bbox>", objects, wanted), box) << objects;
  EXPECT_EQ(answered("<bbox>", R"({"bbox":[[-0.5,0,200.9,100]]})", wanted), "[0, 0, 1000, 1000]") << "rounded outside";
}

TEST(Objects, AreOfTheImageThatTheyName) {
  const std::string json =
      sample("<bbox>", "<bbox><bbox>", R"({"bbox":[[20,20,40,40],[20,20,40,40],[1,1]],"image_id":[1,0,1]})");
  const Sample read = measure({{"000.png", wide}, {"001.png", tall}, {"json", json}}, written_as(BoxForm::norm1000));
  EXPECT_EQ(reported(read.texts.at(0)), chat({"[500, 250, 1000, 500]", "[100, 200, 200, 400][25, 12]"}));
}

TEST(Objects, OfAPairStandInTheOrderOfTheTexts) {
  const std::string json = R"({"prompt":[{"role":"user","content":"Not <bbox>"}],
      "chosen":[{"role":"assistant","content":"<bbox>"}],"rejected":[{"role":"assistant","content":"<bbox>"}],
      "objects":{"bbox":[[0,0],[20,10],[40,20]]}})";
  const Sample read = measure({{"png", wide}, {"json", json}}, written_as(BoxForm::norm1000));
  ASSERT_EQ(read.texts.size(), 2);
  EXPECT_EQ(reported(read.texts[0]), chat({"Not [0, 0]", "[100, 100]"}));
  EXPECT_EQ(reported(read.texts[1]), chat({"Not [0, 0]", "[200, 200]"}));
}

TEST(Objects, StandInCallsOfToolsToo) {
  const std::string json = R"({"messages":[{"role":"user","content":"?"},{"role":"assistant","content":[
      {"type":"text","text":"<bbox> "},{"type":"text","text":"<bbox>"}]}],"objects":{"bbox":[[0,0],[20,10]]}})";
  const Sample read = measure({{"png", wide}, {"json", json}}, written_as(BoxForm::norm1000));
  EXPECT_EQ(reported(read.texts.at(0)), chat({"?", "[0, 0] [100, 100]"}));
}

TEST(Objects, WithoutObjectsPlaceholdersAreText) {
  const std::string json = R"({"user":"<bbox>?","assistant":"A <ref-object>"})";
  const Sample read = measure({{"png", wide}, {"json", json}}, written_as(BoxForm::norm1000));
  EXPECT_EQ(reported(read.texts.at(0)), chat({"<bbox>?", "A <ref-object>"}));
}

TEST(Objects, ThatDoNotFitMakeABrokenSample) {
  EXPECT_THAT(refused("<bbox>", two),
              HasSubstr("its texts have 0 <ref-object>, and 'ref' of its objects is a list of 1"));
  EXPECT_THAT(refused("<ref-object><bbox>", two),
              HasSubstr("its texts have 1 <bbox>, and 'bbox' of its objects is a list of 2"));
  EXPECT_THAT(
      refused("<bbox>", R"({"bbox":[[150,10,202,50]]})"),
      HasSubstr("bbox 0 of its objects, [150, 10, 202, 50], is outside of image 0, which has 200 x 100 pixels"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[-1.5,10]]})"), HasSubstr("is outside of image 0"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[0.5,1.01]],"bbox_type":"norm1"})"),
              HasSubstr("with bbox_type norm1 coordinates are from 0 to 1"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[100,10,30,40]]})"),
              AllOf(HasSubstr("bbox 0 of its objects, [100, 10, 30, 40], ends before it begins"),
                    HasSubstr("[x1, y1, x2, y2]")));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,2]],"bbox_type":"norm100"})"),
              HasSubstr("'bbox_type' of 'objects' is 'norm100', and real, norm1000 or norm1 was expected"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,2,3]]})"), HasSubstr("bbox 0 of 'objects' has 3 numbers"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,"2"]]})"), HasSubstr("a number of bbox 0 of 'objects' is a string"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[1,2]})"), HasSubstr("bbox 0 of 'objects' is a number"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,2]],"image_id":[1]})"),
              HasSubstr("a box of its objects is of image 1, counted from 0, and it has 1 image"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,2]],"image_id":[-1]})"),
              HasSubstr("is -1, and images are numbered from 0"));
  EXPECT_THAT(refused("<bbox>", R"({"bbox":[[1,2]],"image_id":[0,0]})"),
              HasSubstr("'image_id' of 'objects' is a list of 2, and 'bbox' one of 1"));
  EXPECT_THAT(refusal({{"json", sample("?", "<bbox>", R"({"bbox":[[1,2]]})")}}, written_as(BoxForm::norm1000)),
              HasSubstr("it has no image that they are of"));
  EXPECT_THAT(refusal({{"png", wide}, {"json", R"({"user":"?","answers":["<bbox>"],"objects":{"bbox":[[1,2]]}})"}},
                      written_as(BoxForm::norm1000)),
              HasSubstr("'answers'"));
}

TEST(Objects, OfOtherDataAreNotRead) {
  for (const char* other : {"[[1,2]]", "3", R"({"count":2})"})
    EXPECT_THAT(reported(measure({{"json", sample("?", "A cat.", other)}}, text_only()).texts.at(0)),
                HasSubstr("A cat."));
}

TEST(Objects, OfAFamilyThatIsNotKnownAreNoBrokenSampleButAMistakeOfTheRecipe) {
  Wanted wanted;
  try {
    measure({{"png", wide}, {"json", sample("?", "<bbox>", R"({"bbox":[[1,2]]})")}}, wanted);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.text(), HasSubstr("boxes = \"norm1000\" in the mix"));
  }
  const Sample names = measure({{"png", wide}, {"json", sample("?", "<ref-object>", R"({"ref":["a dog"]})")}}, wanted);
  EXPECT_THAT(reported(names.texts.at(0)), HasSubstr("[a dog"));
}

TEST(Objects, ArePlacesInThePictureThatTheProcessorResizesAsAWhole) {
  ImageProcessor qwen{.filter = ResizeFilter::bicubic,
                      .tile = 28,
                      .splits_into_tiles = true,
                      .tile_form = TileForm::qwen2_vl,
                      .min_pixels = 56 * 56,
                      .max_pixels = 28 * 28 * 16};
  const auto size = FramePreparation(28, qwen).resized_size({100, 200}, 1);
  ASSERT_TRUE(size);
  EXPECT_EQ(*size, (ImageSize{56, 140})) << "of 196 x 196 pixels at most";
  EXPECT_EQ(FramePreparation(50).resized_size({100, 200}, 1), (ImageSize{50, 50}));
  ImageProcessor padding{.square_padding = {{0, 0, 0}}, .resize = ImageProcessor::Resize::exact, .size = {28, 28}};
  EXPECT_EQ(FramePreparation(28, padding).resized_size({100, 200}, 1), std::nullopt);
  ImageProcessor cropping{
      .resize = ImageProcessor::Resize::shortest_edge, .edge = 28, .center_crop = ImageSize{28, 28}};
  EXPECT_EQ(FramePreparation(28, cropping).resized_size({100, 200}, 1), std::nullopt);
}

namespace {

std::string place(BoxForm form, const std::vector<double>& numbers) {
  return box_text(form, numbers, {BoxSide{200, 420}, BoxSide{100, 196}});
}

} // namespace

TEST(Boxes, AreWrittenInEachForm) {
  const std::vector<double> box{20, 10, 100, 50}, point{50.5, 75}, far{0, 0, 200, 100};
  EXPECT_EQ(place(BoxForm::pixels, box), "[42, 20, 210, 98]");
  EXPECT_EQ(place(BoxForm::pixels, far), "[0, 0, 419, 195]") << "the last pixel";
  EXPECT_EQ(place(BoxForm::loc, box), "<loc0102><loc0102><loc0512><loc0512>") << "511.5 is rounded to even";
  EXPECT_EQ(place(BoxForm::loc, point), "<loc0767><loc0258>");
  EXPECT_EQ(place(BoxForm::loc, far), "<loc0000><loc0000><loc1023><loc1023>");
  EXPECT_EQ(place(BoxForm::qwen2_vl, box), "<|box_start|>(100,100),(500,500)<|box_end|>");
  EXPECT_EQ(place(BoxForm::qwen2_vl, point), "<|box_start|>(252,750)<|box_end|>");
  EXPECT_EQ(place(BoxForm::internvl, box), "<box>[[100, 100, 500, 500]]</box>");
  EXPECT_EQ(box_name_text(BoxForm::qwen2_vl, "a dog"), "<|object_ref_start|>a dog<|object_ref_end|>");
  EXPECT_EQ(box_name_text(BoxForm::internvl, "a dog"), "<ref>a dog</ref>");
  EXPECT_EQ(box_name_text(BoxForm::pixels, "a dog"), "a dog");
}

TEST(Boxes, AreWrittenAsTheDecodersFamilyWritesThem) {
  Folder folder;
  const auto form = [&](const std::string& file, const std::string& type) {
    const std::string config = fmt::format(R"({{"model_type":"{}"}})", type);
    write_bytes(folder / file, file == "config.json" ? config : fmt::format(R"({{"config":{}}})", config));
    return box_form_of(folder / ".");
  };
  EXPECT_EQ(box_form_of(""), std::nullopt);
  EXPECT_EQ(box_form_of(folder / "."), std::nullopt);
  EXPECT_EQ(form("config.json", "llama"), std::nullopt);
  EXPECT_EQ(form("config.json", "qwen2_5_vl_text"), BoxForm::pixels);
  EXPECT_EQ(form("config.json", "gemma4_text"), BoxForm::norm1000_yx);
  EXPECT_EQ(form("config.json", "qwen2"), std::nullopt);
  for (const auto& [type, expected] : {std::pair{"qwen2_vl", BoxForm::qwen2_vl},
                                       {"qwen3_vl", BoxForm::norm1000},
                                       {"qwen3_5", BoxForm::norm1000},
                                       {"internvl", BoxForm::internvl},
                                       {"paligemma", BoxForm::loc},
                                       {"glm46v", BoxForm::norm1000}})
    EXPECT_EQ(form("whole_model.json", type), expected) << type;
  EXPECT_EQ(form("whole_model.json", "smolvlm"), std::nullopt);
}

// A tokenizer with the special tokens of Qwen2-VL.
TEST(Boxes, StandBetweenTokensAndWhatElseIsSpelledIsText) {
  nlohmann::json words = small_tokenizer();
  for (const char* content : {"<|box_start|>", "<|box_end|>", "<|object_ref_start|>", "<|object_ref_end|>"})
    words["added_tokens"].push_back(
        {{"id", 259 + words["added_tokens"].size()}, {"content", content}, {"special", true}});
  const Tokenizer tokenizer = Tokenizer::from_json(words.dump(), "tokenizer.json");
  const Wanted wanted = written_as(BoxForm::qwen2_vl);
  OneSample one(
      {{"png", wide}, {"json", sample("?", "<ref-object><bbox><|im_end|>", R"({"ref":["dog"],"bbox":[[20,10]]})")}});
  const SampleReader reader(wanted.mix, tokenizer, wanted.image_size, nullptr, {});
  const Sample read = reader.measure(*one.shard, one.shard->sample(0), wanted.source);
  std::vector<TokenId> special;
  for (const TokenId id : read.texts.at(0).ids)
    if (id >= 259) special.push_back(id);
  EXPECT_THAT(special, ElementsAre(259, 260, 259, 263, 264, 261, 262, 260));
  EXPECT_THAT(tokenizer.decode(read.texts.at(0).ids, true), HasSubstr("dog(100,100)<|im_end|>"));
}

TEST(Boxes, NeedTheTokensOfTheirForm) {
  const Wanted wanted = written_as(BoxForm::loc);
  EXPECT_THAT(refusal({{"png", wide}, {"json", R"({"user":"?","assistant":"!"})"}}, wanted),
              HasSubstr("the tokenizer has no token '<loc0000>', which boxes = \"loc\" writes"));
}
