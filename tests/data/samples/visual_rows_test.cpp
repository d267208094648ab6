// <image> and <video> in a text: what becomes of them where visual rows stand in place, and which samples are refused.
#include "data/samples/error_context.h"
#include "data/samples/npy.h"
#include "data/visual_marks.h"
#include "recipe/placeholders.h"
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

Wanted in_place(int64_t rows_per_frame) {
  Wanted wanted;
  wanted.mix.system = "";
  wanted.visual_rows = {rows_per_frame, true};
  return wanted;
}

Files images(int count, const std::string& json) {
  Files files{{"json", json}};
  for (int i = 0; i < count; ++i)
    files.emplace_back(fmt::format("{:03}.png", i), write_png(plain_image(4, 4, 200, 0, static_cast<uint8_t>(i))));
  return files;
}

std::string words(const Sample& sample, size_t text = 0) {
  return decode_with_placeholders(byte_tokenizer(), sample.texts.at(text).ids);
}

// A tokenizer with these special tokens besides ChatML's.
Tokenizer tokenizer_with(const std::vector<const char*>& special) {
  nlohmann::json words = small_tokenizer();
  for (const char* content : special)
    words["added_tokens"].push_back(
        {{"id", 259 + words["added_tokens"].size()}, {"content", content}, {"special", true}});
  return Tokenizer::from_json(words.dump(), "tokenizer.json");
}

// Reads samples for an encoder of cells of 4 x 4 pixels.
struct CellReader {
  ImageProcessor processor{
      .tile = 4, .splits_into_tiles = true, .tile_form = TileForm::qwen2_vl, .min_pixels = 16, .max_pixels = 400};
  Wanted wanted = in_place(1);
  Tokenizer tokenizer = tokenizer_with({"<|vision_start|>", "<|vision_end|>"});

  Sample read(const Files& files) const {
    const OneSample one(files);
    return SampleReader(wanted.mix, tokenizer, FramePreparation(4, processor), nullptr, wanted.visual_rows)
        .measure(*one.shard, one.shard->sample(0), {});
  }
  std::string text(const Files& files) const {
    return decode_with_placeholders(tokenizer, read(files).texts.at(0).ids);
  }
  std::string refusal(const Files& files) const {
    try {
      (void)read(files);
      return "it was read";
    } catch (const Error& refused) {
      return refused.text();
    }
  }
};

} // namespace

TEST(VisualRows, StandWhereTheMarksAre) {
  const Sample sample =
      measure(images(2, R"({"user":"Is <image> or <image> red?","assistant":"The <image> is."})"), in_place(3));
  EXPECT_EQ(words(sample), "<|im_start|>user\nIs [3 visual rows] or [3 visual rows] red?<|im_end|>\n"
                           "<|im_start|>assistant\nThe <image> is.<|im_end|>\n");
  const SampleText& text = sample.texts[0];
  EXPECT_EQ(text.placeholders, 6);
  EXPECT_EQ(sample.rows(), std::ssize(text.ids));
  for (size_t i = 0; i < text.ids.size(); ++i)
    EXPECT_FALSE(text.ids[i] == visual_placeholder && text.answer_mask[i]) << i;
}

TEST(VisualRows, AreRemovedForAConnectorWhoseRowsStandBeforeTheText) {
  Wanted wanted = in_place(3);
  wanted.visual_rows.in_place = false;
  const Sample sample = measure(images(2, R"({"user":"<image>\n<image>What?","assistant":"x"})"), wanted);
  EXPECT_THAT(words(sample), HasSubstr("user\nWhat?<|im_end|>"));
  EXPECT_EQ(sample.texts[0].placeholders, 0);
  EXPECT_EQ(sample.rows(), 2 * 3 + std::ssize(sample.texts[0].ids));
}

TEST(VisualRows, OfFramesThatNobodyMentionsOpenTheFirstTurnOfTheUser) {
  const char* json = R"({"conversations":[{"from":"human","value":"What?"},{"from":"gpt","value":"x"},
    {"from":"human","value":"And?"},{"from":"gpt","value":"y"}]})";
  const std::string rest = "What?<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
                           "<|im_start|>assistant\ny<|im_end|>\n";
  EXPECT_EQ(words(measure({{"json", json}, {"png", write_png(plain_image(4, 4, 1, 2, 3))}}, in_place(3))),
            "<|im_start|>user\n[3 visual rows]\n" + rest);
  EXPECT_EQ(words(measure(images(2, json), in_place(3))), "<|im_start|>user\n[6 visual rows]\n" + rest);
}

TEST(VisualRows, OfLlavaConversationsStandWhereTheirMarksAre) {
  const char* json =
      R"({"conversations":[{"from":"human","value":"<image>\n<image>\nSame?"},{"from":"gpt","value":"No."}]})";
  EXPECT_EQ(words(measure(images(2, json), in_place(2))),
            "<|im_start|>user\n[2 visual rows]\n[2 visual rows]\nSame?<|im_end|>\n"
            "<|im_start|>assistant\nNo.<|im_end|>\n");
}

TEST(VisualRows, OfEveryTextAreItsOwn) {
  const Sample pair = measure(
      images(1, R"({"user":"<image>Which?","chosen_assistant":"good","rejected_assistant":"bad"})"), in_place(2));
  ASSERT_EQ(pair.texts.size(), 2u);
  for (const SampleText& text : pair.texts) EXPECT_EQ(text.placeholders, 2);
  EXPECT_EQ(pair.rows(), std::ssize(pair.texts[0].ids) + std::ssize(pair.texts[1].ids));
}

TEST(VisualRows, OfAVideoOrOfARepeatedImageStandAtOneMark) {
  EXPECT_THAT(words(measure(images(3, R"({"user":"<video>What?","assistant":"x"})"), in_place(2))),
              HasSubstr("user\n[6 visual rows]What?"));
  Wanted repeated = in_place(2);
  repeated.mix.replicate_image_frames = 4;
  EXPECT_THAT(words(measure({{"json", R"({"user":"<image>What?","assistant":"x"})"},
                             {"png", write_png(plain_image(4, 4, 1, 2, 3))}},
                            repeated)),
              HasSubstr("user\n[8 visual rows]What?"));
}

TEST(VisualRows, OfPartsOfAMessageStandInTheirOrder) {
  const char* json = R"({"messages":[{"role":"user","content":[{"type":"text","text":"A "},{"type":"image"},
    {"type":"text","text":" B"}]},{"role":"assistant","content":"x"},
    {"role":"user","content":[{"type":"image"}]},{"role":"assistant","content":"y"}]})";
  EXPECT_EQ(words(measure(images(2, json), in_place(1))),
            "<|im_start|>user\nA [1 visual row] B<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
            "<|im_start|>user\n[1 visual row]\nDescribe this.<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n");
}

TEST(VisualRows, RefuseOtherNumbersOfMarksThanImages) {
  EXPECT_THAT(refusal(images(2, R"({"user":"<image>What?","assistant":"x"})"), in_place(3)),
              testing::AllOf(HasSubstr("sample 'clips/7'"),
                             HasSubstr("the text has 1 <image>, and the sample has 2 images"),
                             HasSubstr("one <image> for each image")));
  EXPECT_THAT(refusal(images(1, R"({"user":"<video><image>What?","assistant":"x"})"), in_place(3)),
              HasSubstr("1 <video> and 1 <image>"));
  Wanted text = in_place(3);
  text.source.text = {"*.tar"};
  EXPECT_THAT(refusal({{"json", R"({"user":"<image>What?","assistant":"x"})"}}, text),
              HasSubstr("the text has 1 <image>, and the sample has 0 images"));
}

TEST(VisualRows, OfTokenIdsAreAsManyAsTheFramesHave) {
  const std::string good = R"({"token_ids":[5,-1,-1,6],"loss_mask":[0,1,0,1]})";
  const Sample sample = measure(images(1, good), in_place(2));
  EXPECT_EQ(sample.texts[0].placeholders, 2);
  EXPECT_EQ(sample.texts[0].answer_mask, (std::vector<uint8_t>{0, 0, 0, 1})) << "a placeholder is no label";
  EXPECT_THAT(refusal(images(2, good), in_place(2)),
              HasSubstr("the text has 2 placeholders for visual rows, and the sample has 4: 2 frames of 2 each"));
  Wanted before = in_place(2);
  before.visual_rows.in_place = false;
  EXPECT_THAT(refusal(images(1, good), before), HasSubstr("is no token: -1"));
  EXPECT_EQ(measure(images(2, R"({"token_ids":[5,-19,-16,-16,6],"loss_mask":[0,0,0,0,1]})"), in_place(2)).rows(), 5)
      << "numbered ones may leave rows out";
  EXPECT_THAT(refusal(images(2, R"({"token_ids":[5,-20,-16,6],"loss_mask":[0,0,0,1]})"), in_place(2)),
              HasSubstr("2 placeholders for visual rows, 2 of them numbered up to 4, and the sample has 4"));
  EXPECT_THAT(refusal(images(1, R"({"token_ids":[5,-9,6],"loss_mask":[0,0,1]})"), in_place(2)),
              HasSubstr("is no token: -9"));
}

TEST(VisualRows, AreNoTokensForMaxTextTokens) {
  Wanted wanted = in_place(50);
  wanted.mix.max_text_tokens = 60;
  const std::string json =
      R"({"user":"<image>What?","assistant":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})";
  const Sample sample = measure(images(1, json), wanted);
  EXPECT_EQ(sample.dropped, "");
  EXPECT_EQ(sample.texts[0].tokens(), 60);
  EXPECT_EQ(sample.texts[0].placeholders, 50);
  EXPECT_GT(sample.truncated_tokens, 0);
  wanted.mix.max_text_tokens = 4;
  EXPECT_THAT(measure(images(1, R"({"user":"What is there? <image>","assistant":"x"})"), wanted).dropped,
              HasSubstr("max_text_tokens = 4 removes places of images"));
}

TEST(VisualRows, OfTilesStandBetweenTheTokensThatNameThem) {
  ImageProcessor processor;
  processor.resize = ImageProcessor::Resize::longest_edge;
  processor.edge = 8;
  processor.tile = 4;
  processor.splits_into_tiles = true;
  Wanted wanted = in_place(2);
  nlohmann::json with_token = small_tokenizer();
  with_token["added_tokens"].push_back({{"id", 261}, {"content", "<fake_token_around_image>"}, {"special", true}});
  const Tokenizer tokenizer = Tokenizer::from_json(with_token.dump(), "tokenizer.json");
  const Files files{{"json", R"({"user":"What?","assistant":"xyz"})"}, {"png", write_png(plain_image(16, 8, 1, 2, 3))}};
  const auto read = [&](const Files& of, const Tokenizer& by) {
    const OneSample one(of);
    return SampleReader(wanted.mix, by, FramePreparation(4, processor), nullptr, wanted.visual_rows)
        .measure(*one.shard, one.shard->sample(0), {});
  };
  const auto measured = [&] { return read(files, tokenizer); };
  const auto error = [&](const Files& of, const Tokenizer& by) -> std::string {
    try {
      read(of, by);
      return "it was read";
    } catch (const Error& refused) {
      return refused.text();
    }
  };
  const Sample sample = measured();
  EXPECT_EQ(sample.frames, 3);
  EXPECT_EQ(sample.texts[0].placeholders, 6);
  EXPECT_THAT(decode_with_placeholders(tokenizer, sample.texts[0].ids),
              HasSubstr("user\n<fake_token_around_image><row_1_col_1>[2 visual rows]"
                        "<fake_token_around_image><row_1_col_2>[2 visual rows]"
                        "\n\n<fake_token_around_image><global-img>[2 visual rows]"
                        "<fake_token_around_image>\nWhat?<|im_end|>"));
  wanted.mix.max_frames = 2;
  EXPECT_THAT(measured().dropped,
              HasSubstr("1 image that the image processor cuts into 3 frames, more than max_frames"));
  EXPECT_TRUE(measured().exceeds_frames);
  wanted.mix.max_frames = 3;
  const int64_t whole = sample.texts[0].tokens();
  wanted.mix.max_text_tokens = whole - 3; // "yz", the end of the turn and a line break are cut to one token
  const Sample cut = measured();
  EXPECT_EQ(cut.dropped, "");
  EXPECT_FALSE(cut.exceeds_frames);
  EXPECT_EQ(cut.texts[0].tokens(), whole - 3);
  EXPECT_EQ(cut.texts[0].placeholders, 6);
  EXPECT_EQ(cut.truncated_answer_tokens, 3) << "counted as of every other sample";
  wanted.mix.max_text_tokens = 60;
  EXPECT_THAT(measured().dropped, HasSubstr("of whose answer max_text_tokens = 60 leaves nothing"));
  EXPECT_THAT(error(files, byte_tokenizer()), HasSubstr("no special token '<fake_token_around_image>'"));
  const Files half{{"json", files[0].second}, {"png", "half a picture"}};
  EXPECT_THAT(error(half, tokenizer), HasSubstr("7.png: not an image: expected JPEG"));
  EXPECT_THROW(read(half, tokenizer), MediaError) << "counted as an image, not as a text";
  wanted.mix.replicate_image_frames = 2;
  EXPECT_THAT(error(files, tokenizer), HasSubstr("leave replicate_image_frames out"));
}

TEST(VisualRows, OfCellsAreAsManyAsTheImagesHave) {
  CellReader reader;
  const Files images{{"000.png", write_png(plain_image(17, 8, 1, 2, 3))},
                     {"001.png", write_png(plain_image(3, 4, 1, 2, 3))},
                     {"json", R"({"user":"<image>or <image>?","assistant":"x"})"}};
  const std::vector<ImageGrid> grids{{2, 4}, {1, 1}};
  const Sample sample = reader.read(images);
  EXPECT_EQ(sample.frames, 9);
  EXPECT_EQ(sample.grids(), grids);
  EXPECT_EQ(sample.texts[0].placeholders, 9);
  EXPECT_THAT(reader.text(images), HasSubstr("<|vision_start|>[8 visual rows]<|vision_end|>or "
                                             "<|vision_start|>[1 visual row]<|vision_end|>?"));

  // As `preprocess` writes it.
  const std::string array = npy_head(9, 4, 4) + std::string(9 * 4 * 4 * 3, 'p');
  const auto written = [&](const std::string& image_grids) {
    return Files{{"json", R"({"token_ids":[-1,-1,-1,-1,-1,-1,-1,-1,-1,5],"loss_mask":[0,0,0,0,0,0,0,0,0,1])" +
                              image_grids + "}"},
                 {"npy", array}};
  };
  const Sample again = reader.read(written(R"(,"image_grids":[[2,4],[1,1]])"));
  EXPECT_EQ(again.frames, 9);
  EXPECT_EQ(again.grids(), grids);
  EXPECT_EQ(again.texts[0].placeholders, 9);
  EXPECT_THAT(reader.refusal(written("")),
              HasSubstr("'image_grids' have 0 cells of images, and clips/7.npy has 9 frames"));
  EXPECT_THAT(reader.refusal(written(R"(,"image_grids":[[2,4]])")), HasSubstr("8 cells of images"));
  EXPECT_THAT(reader.refusal(written(R"(,"image_grids":[[2,0]])")), HasSubstr("'image_grids' is no list of pairs"));

  reader.wanted.mix.max_frames = 8;
  EXPECT_THAT(reader.read(images).dropped, HasSubstr("2 images that the image processor cuts into 9 frames"));
  EXPECT_THAT(reader.read(written(R"(,"image_grids":[[2,4],[1,1]])")).dropped, HasSubstr("more than max_frames = 8"));
  EXPECT_THAT(reader.refusal({{"json", R"({"user":"?","assistant":"x"})"}, {"gif", "GIF89a"}}),
              HasSubstr("the model's folder does not say how videos are prepared"));
  EXPECT_THROW(FramePreparation(8, reader.processor), Error) << "cells have four pixels a side";
}

// Three frames are two steps of two, the last of which shows the third frame twice.
TEST(VisualRows, OfAVideoOfCellsAreThoseOfItsSteps) {
  CellReader reader;
  reader.processor.step_frames = 2;
  reader.processor.video = VideoProcessor{16, 400, false, {}};
  const auto clip = [](const char* user, int count, int64_t width = 8) {
    Files files{{"json", fmt::format(R"({{"user":"{}","assistant":"x"}})", user)}};
    for (int i = 0; i < count; ++i)
      files.emplace_back(fmt::format("{:03}.png", i),
                         write_png(plain_image(width, 4, 200, 0, static_cast<uint8_t>(i))));
    return files;
  };
  const Sample sample = reader.read(clip("<video>What?", 3));
  EXPECT_EQ(sample.frames, 4);
  EXPECT_EQ(sample.distinct_frames(), 8);
  EXPECT_EQ(sample.grids(), (std::vector<ImageGrid>{{1, 2, 2, 2, 2.0}}));
  EXPECT_THAT(reader.text(clip("<video>What?", 3)),
              HasSubstr("user\n<|vision_start|>[4 visual rows]<|vision_end|>What?"));
  EXPECT_EQ(reader.read(clip("What?", 3)).grids(), (std::vector<ImageGrid>{{1, 2}, {1, 2}, {1, 2}}))
      << "numbered frames are single images unless the text says <video>";
  std::vector<int> blues;
  const OneSample one(clip("<video>What?", 3));
  const SampleReader samples(reader.wanted.mix, reader.tokenizer, FramePreparation(4, reader.processor), nullptr,
                             reader.wanted.visual_rows);
  samples.each_frame(*one.shard, sample, [&](std::span<const uint8_t> pixels) { blues.push_back(pixels[2]); });
  EXPECT_EQ(blues, (std::vector<int>{0, 0, 1, 1, 2, 2, 2, 2}));

  // The limits of Qwen3-VL are for all frames together, and each step has a label.
  reader.processor.video = VideoProcessor{16, 64, true, {}};
  EXPECT_EQ(reader.read(clip("<video>What?", 4)).grids(),
            (std::vector<ImageGrid>{{1, 1, 1, 2, 2.0}, {1, 1, 1, 2, 2.0}}));
  EXPECT_THAT(reader.text(clip("<video>What?", 4)),
              HasSubstr("user\n<0.5 seconds><|vision_start|>[1 visual row]<|vision_end|>"
                        "<2.5 seconds><|vision_start|>[1 visual row]<|vision_end|>What?"));
  reader.processor.video = VideoProcessor{16, 400, false, {}};
  reader.wanted.mix.max_frames = 5;
  const Sample fewer = reader.read(clip("<video>What?", 9));
  EXPECT_EQ(fewer.grids(), (std::vector<ImageGrid>{{1, 2, 2, 2, 2 * 8 / 3.0}})) << "four frames of nine";
  EXPECT_EQ(fewer.media.times, (std::vector<double>{0, 2, 5, 8}));
  reader.wanted.mix.max_frames = 1;
  EXPECT_THAT(reader.read(clip("<video>What?", 9)).dropped,
              HasSubstr("a video of which one frame has 2 cells, more than max_frames = 1"));
  reader.wanted.mix.max_frames = 64;
  EXPECT_THAT(reader.refusal(clip("<video> or <video>?", 2)), HasSubstr("the text has 2 <video> and 0 <image>"));
  EXPECT_THAT(reader.refusal(clip("<video> or <image>?", 2)),
              HasSubstr("the text has an <image>, and the sample has a video"));
  Files other = clip("<video>What?", 2);
  other.back().second = write_png(plain_image(9, 4, 0, 0, 0));
  const OneSample uneven(other);
  try {
    samples.each_frame(*uneven.shard, samples.measure(*uneven.shard, uneven.shard->sample(0), {}), [](auto) {});
    FAIL() << "frames of two sizes were read";
  } catch (const Error& refused) {
    EXPECT_THAT(refused.text(), HasSubstr("frame 1 of the video has 9 x 4 pixels, and the first one 8 x 4"));
  }

  // As `preprocess` writes it.
  const Files written{
      {"json", R"({"token_ids":[-1,-1,-1,-1,5],"loss_mask":[0,0,0,0,1],"image_grids":[[1,2,2,2,1.5]]})"},
      {"npy", npy_head(8, 4, 4) + std::string(8 * 4 * 4 * 3, 'p')}};
  EXPECT_EQ(reader.read(written).grids(), (std::vector<ImageGrid>{{1, 2, 2, 2, 1.5}}));
  EXPECT_EQ(reader.read(written).frames, 4);
}

TEST(VisualRows, OfAVideoOfGlmHaveTheTimeBehindEachStep) {
  CellReader reader;
  reader.processor.step_frames = 2;
  reader.processor.video = VideoProcessor{16, 64, true, {}};
  reader.tokenizer =
      tokenizer_with({"<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"});
  Files clip{{"json", R"({"user":"<video>What?","assistant":"x"})"}};
  for (const char* name : {"000.png", "001.png", "002.png"})
    clip.emplace_back(name, write_png(plain_image(4, 4, 200, 0, 0)));
  const std::string row = "<|begin_of_image|>[1 visual row]<|end_of_image|>";
  for (const auto& [form, times] : {std::pair(TileForm::glm4v, std::pair("0", "2")),
                                    std::pair(TileForm::glm, std::pair("0.0 seconds", "2.0 seconds"))}) {
    reader.processor.tile_form = form;
    EXPECT_EQ(reader.read(clip).grids(), (std::vector<ImageGrid>{{1, 1, 1, 2, 2.0}, {1, 1, 1, 2, 2.0}}));
    EXPECT_THAT(reader.text(clip), HasSubstr("user\n<|begin_of_video|>" + row + times.first + row + times.second +
                                             "<|end_of_video|>What?"));
  }
  reader.tokenizer = tokenizer_with({"<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>"});
  EXPECT_THAT(reader.refusal(clip), HasSubstr("the tokenizer has no special token '<|end_of_video|>'"));
}

TEST(VisualRows, OfCellsAreOfSingleImagesAndNotOfAVideo) {
  CellReader reader;
  const auto with = [](const char* user) { return images(2, fmt::format(R"({{"user":"{}","assistant":"x"}})", user)); };
  EXPECT_THAT(reader.text(with("What?")), HasSubstr("user\n<|vision_start|>[1 visual row]<|vision_end|>"
                                                    "<|vision_start|>[1 visual row]<|vision_end|>\nWhat?<|im_end|>"));
  // As `preprocess` writes cells, with a text that mentions no image.
  Files cells{{"json", R"({"user":"What?","assistant":"x","image_grids":[[2,1],[1,1]]})"},
              {"npy", npy_head(3, 4, 4) + std::string(3 * 4 * 4 * 3, 'p')}};
  EXPECT_THAT(reader.text(cells), HasSubstr("user\n<|vision_start|>[2 visual rows]<|vision_end|>"
                                            "<|vision_start|>[1 visual row]<|vision_end|>\nWhat?"));
  EXPECT_THAT(reader.refusal(with("<video>What?")),
              HasSubstr("the model's folder does not say how videos are prepared"));
  EXPECT_THAT(reader.refusal(with("<image>What?")), HasSubstr("the text has 1 <image>, and the sample has 2 images"));
  for (const auto& [special, missing] : std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{}, "'<|vision_start|>'"}, {{"<|vision_start|>"}, "'<|vision_end|>'"}}) {
    reader.tokenizer = tokenizer_with(special);
    EXPECT_THAT(reader.refusal(with("What?")),
                HasSubstr(fmt::format("the tokenizer has no special token {}", missing)));
  }
}

TEST(VisualRows, OfCellsStandBetweenTheirTokensOnce) {
  const Tokenizer tokenizer = tokenizer_with({"<|vision_start|>", "<|vision_end|>"});
  const auto start = *tokenizer.special_id("<|vision_start|>"), end = *tokenizer.special_id("<|vision_end|>");
  const auto expanded = [&](std::vector<TokenId> ids) {
    MarkedFrames frames{3, 1, false, {}, {}};
    add_tile_texts(frames, tokenizer, TileForm::qwen2_vl, {{1, 2, 0, 0, true}, {1, 1, 0, 0, true}});
    std::vector<uint8_t> mask(ids.size(), 1);
    EXPECT_EQ(expand_marks(ids, mask, frames), 3);
    EXPECT_EQ(mask.size(), ids.size());
    return ids;
  };
  const TokenId row = visual_placeholder;
  const std::vector<TokenId> both{start, row, row, end, start, row, end, 7};
  EXPECT_EQ(expanded({image_mark_id, image_mark_id, 7}), both);
  EXPECT_EQ(expanded({start, image_mark_id, end, start, image_mark_id, end, 7}), both);
  EXPECT_EQ(expanded({start, image_mark_id, end, image_mark_id, 7}), both);
  for (const auto& [ids, words] : std::vector<std::pair<std::vector<TokenId>, const char*>>{
           {{start, image_mark_id, image_mark_id, end},
            "<|vision_start|> before an image without <|vision_end|> behind"},
           {{image_mark_id, end, 7, image_mark_id}, "<|vision_end|> behind an image without <|vision_start|> before"}})
    try {
      (void)expanded(ids);
      FAIL() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_THAT(error.text(), HasSubstr(words));
    }
}

TEST(VisualRows, OfLlavaNextShowOnePictureWithoutItsMargins) {
  ImageProcessor processor;
  processor.tile = 8;
  processor.splits_into_tiles = true;
  processor.tile_form = TileForm::llava_next;
  processor.grids = {{1, 2}};
  Wanted wanted = in_place(4 * 5); // lines of 4 patches and a newline
  const Files files{{"000.png", write_png(plain_image(16, 4, 1, 2, 3))},
                    {"001.png", write_png(plain_image(8, 16, 1, 2, 3))},
                    {"json", R"({"user":"<image>or <image>?","assistant":"x"})"}};
  const auto read = [&] {
    const OneSample one(files);
    return SampleReader(wanted.mix, byte_tokenizer(), FramePreparation(8, processor), nullptr, wanted.visual_rows)
        .measure(*one.shard, one.shard->sample(0), {});
  };
  const Sample sample = read();
  EXPECT_EQ(sample.frames, 6);
  std::vector<int64_t> rows, expected;
  for (const TokenId id : sample.texts[0].ids)
    if (is_placeholder(id)) rows.push_back(visual_row_of(id));
  const auto expect = [&](int64_t frame, int64_t line, std::vector<int64_t> columns) {
    for (const int64_t column : columns) expected.push_back(frame * 20 + line * 5 + column);
  };
  // The first image is twice as wide as the grid: one line above it and one below it are margins. The second one is a
  // quarter as wide.
  for (int64_t line = 0; line < 4; ++line) expect(2, line, {0, 1, 2, 3});
  for (const int64_t line : {1, 2}) expect(0, line, {0, 1, 2, 3}), expect(1, line, {0, 1, 2, 3, 4});
  for (int64_t line = 0; line < 4; ++line) expect(5, line, {0, 1, 2, 3});
  for (int64_t line = 0; line < 4; ++line) expect(3, line, {3}), expect(4, line, {0, 4});
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(sample.texts[0].placeholders, std::ssize(expected));
  EXPECT_EQ(sample.rows(), std::ssize(sample.texts[0].ids)) << "and not all rows of six frames";
  wanted.visual_rows.per_frame = 16;
  try {
    (void)read();
    FAIL() << "a connector without newlines was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("the connector makes 16 rows of a frame"), HasSubstr("fvlm.mlp { newline = true }")));
  }
}
