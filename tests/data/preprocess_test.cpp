#include "base/error.h"
#include "base/file.h"
#include "data/preprocess.h"
#include "data/preprocess_manifest.h"
#include "data/samples/sample_reader.h"
#include "data/shards/shard_writer.h"
#include "make-shapes/samples.h"
#include "samples/sample_maker.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

// A mix with every form that samples have: clips as JPEG and PNG of another size than the model's, stills, a clip
// longer than max_frames, pairs, choices, a conversation, text alone, texts too long, and broken ones.
class PreprocessTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder / "clips");
    fs::create_directories(folder / "text");
    write_file_atomic(folder / "tokenizer.json", shapes::make_tokenizer());
    for (int number = 0; number < 3; ++number) write_clips(number);
    ShardWriter texts(folder / "text/0.tar");
    for (uint64_t i = 0; i < 30; ++i)
      texts.add(fmt::format("t{}.json", i), shapes::make_sample(part("text"), 1, i, 4).json);
    texts.commit();

    input.mix.sources.resize(2);
    input.mix.sources[0].shards = {(folder / "clips/*.tar").string()};
    input.mix.sources[0].name = "shapes";
    input.mix.sources[0].fields = {{"user", "question"}};
    input.mix.sources[1].text = {(folder / "text/*.tar").string()};
    input.mix.system = "";
    input.mix.max_frames = 4;
    input.mix.max_text_tokens = 48;
    input.mix.replicate_image_frames = 3;
    input.tokenizer = folder / "tokenizer.json";
    input.image_size = 32;
    options.shards.cache = folder / "cache";
    options.threads = 3;
  }

  static const shapes::Part& part(std::string_view name) {
    for (const auto& part : shapes::parts())
      if (part.name == name) return part;
    throw std::out_of_range(std::string(name));
  }

  void write_clips(int number) const {
    ShardWriter shard(folder / fmt::format("clips/{}.tar", number));
    for (uint64_t i = 0; i < 24; ++i) {
      std::string key = fmt::format("c{}", i);
      const char* name = std::array{"captions", "questions", "pairs", "heldout/questions"}.at(i % 4);
      bool still = i % 7 == 3;
      auto clip = shapes::make_sample(part(name), static_cast<uint64_t>(number), i, i % 5 == 0 ? 7 : 3);
      for (size_t t = 0; t < clip.frames.size(); ++t) {
        Image image = shapes::paint(clip.frames[t], 50, 40, shapes::Ground::textured, i);
        bool jpeg = i % 2 == 0;
        std::string frame = still ? "" : fmt::format(".{:03}", t);
        shard.add(fmt::format("{}{}.{}", key, frame, jpeg ? "jpg" : "png"),
                  jpeg ? write_jpeg(image, 90) : write_png(image));
        if (still) break;
      }
      auto json = nlohmann::json::parse(clip.json);
      if (still) json.erase("frame_count");
      if (json.contains("user")) json["question"] = json["user"], json.erase("user");
      if (i == 5) json["assistant"] = std::string(200, 'x') + " é \"quoted\"";
      if (i == 9)
        json = {{"conversations",
                 {{{"from", "human"}, {"value", "<image>\nhow many?"}},
                  {{"from", "gpt"}, {"value", "one"}},
                  {{"from", "human"}, {"value", "sure?"}},
                  {{"from", "gpt"}, {"value", "yes"}}}}};
      if (i == 13) json["answers"] = {"one", "an \"ell\""};
      if (i == 11) json = {{"frame_count", json.value("frame_count", 1)}}; // broken: no text
      shard.add(key + ".json", json.dump());
    }
    shard.add("last.jpg", "no image");
    shard.add("last.json", R"({"caption": "blue"})");
    shard.commit();
  }

  Preprocessed run() const {
    return preprocess(folder / "out", input, nullptr, options, [](int64_t, int64_t) {});
  }

  // Everything that a reader of the mix gets, by sample.
  struct Got {
    std::optional<Sample> sample;
    std::vector<float> frames;
    std::string error;
  };
  std::vector<Got> read(const plan::Mix& mix, size_t source) const {
    static const Tokenizer tokenizer = Tokenizer::from_json(shapes::make_tokenizer(), "tokenizer.json");
    SampleReader reader(mix, tokenizer, input.image_size, nullptr);
    const plan::Source& from = mix.sources[source];
    ShardSet set(from.patterns(), options.shards);
    std::vector<Got> all(static_cast<size_t>(set.size()));
    for (int64_t i = 0; i < set.size(); ++i) {
      Got& got = all[static_cast<size_t>(i)];
      auto shard = set.shard(set.locate(i));
      try {
        Sample sample = reader.measure(*shard, shard->sample(set.locate(i).sample), from);
        got.frames.resize(static_cast<size_t>(sample.distinct_frames() * input.image_size * input.image_size * 3));
        if (sample.dropped.empty()) reader.decode(*shard, sample, got.frames);
        got.sample = std::move(sample);
      } catch (const Error& error) {
        got.error = error.what();
      }
    }
    return all;
  }

  // The number of samples without an error.
  int compare(const plan::Mix& mix) {
    plan::Mix made = preprocessed_mix(folder / "out", mix);
    int good = 0;
    for (size_t source = 0; source < mix.sources.size(); ++source) {
      auto raw = read(mix, source), fast = read(made, source);
      EXPECT_EQ(raw.size(), fast.size());
      for (size_t i = 0; i < raw.size(); ++i) {
        SCOPED_TRACE(fmt::format("source {}, sample {}", source, i));
        if (!raw[i].sample) {
          EXPECT_THAT(fast[i].error, HasSubstr(raw[i].error)) << "the reason goes along";
          continue;
        }
        EXPECT_EQ(fast[i].error, "");
        if (!fast[i].sample) continue;
        if (!raw[i].sample->dropped.empty()) ++dropped_;
        ++good;
        const Sample &a = *raw[i].sample, &b = *fast[i].sample;
        EXPECT_EQ(a.key, b.key);
        EXPECT_EQ(a.source, b.source);
        EXPECT_EQ(a.texts.size(), b.texts.size());
        for (size_t t = 0; t < std::min(a.texts.size(), b.texts.size()); ++t) {
          EXPECT_EQ(a.texts[t].ids, b.texts[t].ids);
          EXPECT_EQ(a.texts[t].answer_mask, b.texts[t].answer_mask);
        }
        EXPECT_EQ(a.frames, b.frames);
        EXPECT_EQ(a.copies, b.copies);
        EXPECT_EQ(a.correct_choice, b.correct_choice);
        EXPECT_EQ(a.is_desirable, b.is_desirable);
        EXPECT_EQ(a.answers, b.answers);
        EXPECT_EQ(a.has_short_answer, b.has_short_answer);
        EXPECT_EQ(a.truncated_tokens, b.truncated_tokens);
        EXPECT_EQ(a.truncated_answer_tokens, b.truncated_answer_tokens);
        EXPECT_EQ(a.dropped, b.dropped);
        EXPECT_TRUE(raw[i].frames == fast[i].frames) << "other pixels";
      }
    }
    return good;
  }

  int dropped_ = 0; // of those compared
  Folder folder;
  PreprocessInput input;
  PreprocessOptions options;
};

} // namespace

TEST_F(PreprocessTest, PreprocessedSamplesAreBitwiseEqual) {
  Preprocessed done = run();
  EXPECT_EQ(done.samples, 3 * 25 + 30);
  EXPECT_EQ(done.broken, 3 * 2) << fmt::format("{}", fmt::join(done.reasons, "\n"));
  ASSERT_EQ(done.reasons.size(), 6u);
  EXPECT_THAT(done.reasons[0], HasSubstr("c11"));
  EXPECT_EQ(compare(input.mix), 3 * 23 + 30);
}

TEST_F(PreprocessTest, KeepsWhichAnswersAreLearnt) {
  const std::string talk = R"({{"messages":[{{"role":"user","content":"1"}},{{"role":"assistant","content":"no"{}}},
{{"role":"user","content":"3"}},{{"role":"assistant","content":"yes"{}}}]}})";
  const auto line = [&](const char* first, const char* second) {
    std::string text = fmt::format(fmt::runtime(talk), first, second);
    std::ranges::replace(text, '\n', ' ');
    return text + "\n";
  };
  write_bytes(folder / "x.jsonl",
              line(R"(,"train":false)", "") + line(R"(,"weight":0)", R"(,"weight":0)") + line("", R"(,"loss":false)"));
  input.mix.sources = {plan::Source{}};
  input.mix.sources[0].text = {(folder / "x.jsonl").string()};
  const Tokenizer tokenizer = Tokenizer::from_json(shapes::make_tokenizer(), "tokenizer.json");
  const auto learnt = [&] {
    run();
    EXPECT_EQ(compare(input.mix), 3);
    std::vector<std::string> all;
    for (const Got& got : read(preprocessed_mix(folder / "out", input.mix), 0)) {
      std::vector<TokenId> ids;
      for (const SampleText& text : got.sample->texts)
        for (size_t i = 0; i < text.ids.size(); ++i)
          if (text.answer_mask[i]) ids.push_back(text.ids[i]);
      all.push_back(got.sample->lacks_answer ? "none" : tokenizer.decode(ids));
    }
    return all;
  };
  EXPECT_THAT(learnt(), testing::ElementsAre("yes<|im_end|>\n", "none", "no<|im_end|>\n"));
  input.mix.mask_history = true;
  EXPECT_EQ(stale_reason(folder / "out", input), "mask_history was nothing and is true");
  EXPECT_THAT(learnt(), testing::ElementsAre("yes<|im_end|>\n", "none", "none"));
}

TEST_F(PreprocessTest, KeepsThatAnswersAreShort) {
  write_bytes(folder / "x.jsonl",
              R"({"context": "A red ball.", "question": "Which colour?", "answers": ["red", "Red"]})"
              "\n"
              R"({"user": "Which?", "assistant": "Red.", "label": false})"
              "\n");
  input.mix.questions = plan::QuestionForm();
  input.mix.sources = {plan::Source{}};
  input.mix.sources[0].text = {(folder / "x.jsonl").string()};
  run();
  EXPECT_EQ(compare(input.mix), 2);
  const auto made = read(preprocessed_mix(folder / "out", input.mix), 0);
  ASSERT_EQ(made.size(), 2u);
  EXPECT_TRUE(made[0].sample->has_short_answer) << "the first line of what is generated counts";
  EXPECT_FALSE(made[1].sample->has_short_answer);
  EXPECT_EQ(made[1].sample->is_desirable, false);
}

TEST_F(PreprocessTest, CropAtReadTimeMayChange) {
  run();
  input.mix.max_text_tokens = 26; // the long answers, and here and there another
  EXPECT_EQ(stale_reason(folder / "out", input), std::nullopt);
  EXPECT_EQ(compare(input.mix), 3 * 23 + 30);
  EXPECT_EQ(dropped_, 0);
  input.mix.overlong = plan::Overlong::drop;
  EXPECT_EQ(compare(input.mix), 3 * 23 + 30);
  EXPECT_GT(dropped_, 3);
}

TEST_F(PreprocessTest, ThreadsChangeNoByte) {
  run();
  std::string shard = read_file(folder / "out/0/000001.tar");
  options.threads = 1;
  run();
  EXPECT_TRUE(read_file(folder / "out/0/000001.tar") == shard);
}

TEST_F(PreprocessTest, NumpyReadsThePixels) {
  run();
  write_file_atomic(folder / "read.py", R"(
import io, json, sys, tarfile
try:
    import numpy
except ImportError:
    sys.exit(77)
with tarfile.open(sys.argv[1]) as tar:
    frames = numpy.load(io.BytesIO(tar.extractfile("c1.npy").read()))
    sample = json.load(tar.extractfile("c1.json"))
assert frames.dtype == numpy.uint8 and frames.shape == (3, 32, 32, 3), (frames.dtype, frames.shape)
assert sample["frame_count"] == 3 and len(sample["token_ids"]) == len(sample["loss_mask"]), sample
)");
  int status = std::system(
      fmt::format("{} {} {}", FVLM_PYTHON, (folder / "read.py").string(), (folder / "out/0/000000.tar").string())
          .c_str());
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "numpy is not there: ./scripts/setup --oracles";
  EXPECT_EQ(status, 0);
}

TEST_F(PreprocessTest, StaleFolderSaysWhatDiffers) {
  run();
  fs::path out = folder / "out";
  ASSERT_EQ(stale_reason(out, input), std::nullopt);
  auto reason = [&](auto&& change) {
    PreprocessInput other = input;
    change(other);
    return stale_reason(out, other).value_or("fits");
  };
  EXPECT_EQ(reason([](auto& other) { other.image_size = 64; }), "image_size was 32 and is 64");
  EXPECT_EQ(reason([](auto& other) { other.mix.max_frames = 8; }), "max_frames was 4 and is 8");
  EXPECT_THAT(reason([](auto& other) { other.mix.system = "Speak."; }), HasSubstr("system was \"\" and is \"Speak.\""));
  EXPECT_THAT(reason([](auto& other) { other.mix.prompts["shapes"] = "Well?"; }), HasSubstr("prompts was"));
  const auto grids = [&](const std::vector<ImageSize>& sizes) {
    input.processor = ImageProcessor{.tile = 32, .splits_into_tiles = true, .tile_form = TileForm::llava_next};
    input.processor->grids = sizes;
    return made_from(input);
  };
  EXPECT_NE(grids({{1, 2}}), grids({{2, 1}}));
  const auto limits = [&](int64_t max_pixels, int64_t video_max_pixels) {
    input.processor = ImageProcessor{.tile = 32, .splits_into_tiles = true, .tile_form = TileForm::qwen2_vl};
    input.processor->max_pixels = max_pixels;
    input.processor->video.emplace().max_pixels = video_max_pixels;
    return made_from(input);
  };
  EXPECT_EQ(limits(4096, 8192), limits(4096, 8192));
  EXPECT_NE(limits(4096, 8192), limits(2048, 8192));
  EXPECT_NE(limits(4096, 8192), limits(4096, 4096));
  input.processor.reset();
  EXPECT_EQ(reason([](auto& other) { other.mix.sources[0].fields.clear(); }),
            "of source 0, fields was {\"user\":\"question\"} and is {}");
  EXPECT_THAT(reason([](auto& other) { other.mix.documents = plan::Documents::joined; }), HasSubstr("documents"));
  EXPECT_EQ(reason([](auto& other) { other.mix.sources.pop_back(); }), "there were 2 sources and are 1");
  for (const auto& harmless : std::vector<std::function<void(PreprocessInput&)>>{
           [](auto& other) { other.mix.max_text_tokens = 7; },
           [](auto& other) { other.mix.sources[0].weight.points = {0.25}; },
           [](auto& other) { other.mix.text_ratio = 0.5; }})
    EXPECT_EQ(reason(harmless), "fits");

  const std::string one = (folder / "clips/1.tar").string(), bytes = read_file(one),
                    changed = "of source 0, the data have changed";
  fs::last_write_time(one, fs::last_write_time(one) + std::chrono::seconds(1));
  EXPECT_EQ(stale_reason(out, input), std::nullopt) << "times do not count";
  fs::copy(folder / "clips", folder / "copied");
  EXPECT_EQ(reason([&](auto& other) { other.mix.sources[0].shards = {(folder / "copied/*.tar").string()}; }), "fits");
  EXPECT_EQ(reason([&](auto& other) { other.mix.sources[0].root = "elsewhere"; }), "fits")
      << "nothing is named by path";
  std::string other = bytes;
  other[other.find("caption")] ^= 1;
  write_bytes(one, other);
  EXPECT_EQ(stale_reason(out, input), changed);
  write_bytes(one, bytes);
  EXPECT_EQ(stale_reason(out, input), std::nullopt);
  fs::copy_file(one, folder / "clips/9.tar");
  EXPECT_EQ(stale_reason(out, input), changed);
  fs::remove(folder / "clips/9.tar");
  fs::rename(folder / "clips/2.tar", folder / "2.tar");
  EXPECT_EQ(stale_reason(out, input), changed);
  fs::rename(folder / "2.tar", folder / "clips/2.tar");
  auto manifest = nlohmann::json::parse(read_file(out / "manifest.json"));
  manifest["made_from"]["sources"][1].erase("content");
  write_file_atomic(out / "manifest.json", manifest.dump());
  EXPECT_THAT(stale_reason(out, input).value_or(""), HasSubstr("an earlier version made it"));
  write_file_atomic(folder / "tokenizer.json", read_file(folder / "tokenizer.json") + " ");
  EXPECT_THAT(stale_reason(out, input).value_or(""), HasSubstr("the tokenizer is another one"));
}

TEST_F(PreprocessTest, WatchesTheChatTemplate) {
  const auto reason = [&] { return stale_reason(folder / "out", input).value_or("fits"); };
  const std::string other = "the chat template, or a special token that it writes, is another one";
  fs::create_directories(folder / "out");
  input.mix.sources.clear();
  input.mix.chat_template = "default";
  write_bytes(folder / "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}");
  auto made = made_from(input);
  write_manifest(folder / "out", made, {});
  EXPECT_EQ(reason(), "fits");
  write_bytes(folder / "chat_template.jinja", "{{ bos_token }}> {{ messages[0].content }}");
  EXPECT_EQ(reason(), other);
  write_bytes(folder / "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}");
  EXPECT_EQ(reason(), "fits");
  write_bytes(folder / "tokenizer_config.json", R"({"bos_token": "<|im_start|>"})");
  EXPECT_EQ(reason(), other);
  fs::remove(folder / "tokenizer_config.json");
  fs::create_directories(folder / "additional_chat_templates");
  write_bytes(folder / "additional_chat_templates/tool_use.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(reason(), other);
  input.mix.chat_template.reset();
  EXPECT_EQ(reason(), "chat_template was \"default\" and is nothing");
  input.mix.chat_template = "default";
  made["settings"].erase("chat_template_hash"); // as earlier versions made it
  write_manifest(folder / "out", made, {});
  EXPECT_EQ(reason(), "fits");
}

TEST_F(PreprocessTest, WatchesTheFilesThatJsonNames) {
  write_bytes(folder / "red.jpg", write_jpeg(Image{2, 2, std::vector<uint8_t>(12, 200)}, 90));
  write_bytes(folder / "x.jsonl", "{\"image\": \"red.jpg\", \"caption\": \"light\"}\n");
  input.mix.sources.resize(1);
  input.mix.sources[0].patterns() = {(folder / "x.jsonl").string()};
  run();
  ASSERT_EQ(stale_reason(folder / "out", input), std::nullopt);
  write_bytes(folder / "red.jpg", write_jpeg(Image{2, 2, std::vector<uint8_t>(12, 20)}, 90));
  EXPECT_EQ(stale_reason(folder / "out", input), "of source 0, the data have changed");
}

TEST_F(PreprocessTest, KeepsSamplesWhoseNamesNoTarMayHave) {
  fs::create_directories(folder / "named");
  for (const char* name : {"a", "b\xff", "c\t", "d"}) {
    write_bytes(folder / "named" / (std::string(name) + ".txt"), fmt::format("number {}", name[0]));
    write_bytes(folder / "named" / (std::string(name) + ".png"), write_png(plain_image(4, 4, 1, 2, 3)));
  }
  input.mix.sources.resize(1);
  input.mix.sources[0].shards = {(folder / "named").string()};
  input.mix.sources[0].fields.clear();
  const Preprocessed done = run();
  EXPECT_EQ(done.samples, 4);
  EXPECT_EQ(done.broken, 0) << fmt::format("{}", fmt::join(done.reasons, "\n"));
  const auto raw = read(input.mix, 0), fast = read(preprocessed_mix(folder / "out", input.mix), 0);
  ASSERT_EQ(fast.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(fast[i].sample) << fast[i].error;
    EXPECT_EQ(fast[i].sample->texts[0].ids, raw[i].sample->texts[0].ids) << i;
  }
}

TEST_F(PreprocessTest, WatchesItsOwnShards) {
  run();
  fs::resize_file(folder / "out/0/000002.tar", 1024);
  EXPECT_THAT(stale_reason(folder / "out", input).value_or(""), HasSubstr("its own shard 0/000002.tar has 1024 bytes"));
  fs::remove(folder / "out/0/000002.tar");
  EXPECT_EQ(stale_reason(folder / "out", input), "its own shard 0/000002.tar is gone");
}

TEST_F(PreprocessTest, LeavesOtherFoldersAlone) {
  fs::create_directories(folder / "out/0");
  write_bytes(folder / "out/0/letter.txt", "dear");
  EXPECT_THROW(stale_reason(folder / "out", input), Error);
  EXPECT_THROW(run(), Error);
  write_bytes(folder / "out/manifest.json", R"({"program": "make-shapes"})");
  EXPECT_THROW(stale_reason(folder / "out", input), Error);
  EXPECT_THROW(run(), Error);
  EXPECT_EQ(read_file(folder / "out/0/letter.txt"), "dear");
}

TEST_F(PreprocessTest, ReplacesOlderOnesAndLeavesNothingAfterFailure) {
  run();
  input.image_size = 16;
  run();
  EXPECT_EQ(stale_reason(folder / "out", input), std::nullopt);
  options.quarantine = {.count = 1, .share = 0.001};
  fs::remove_all(folder / "out");
  try {
    run();
    FAIL() << "6 broken samples, and 1 is allowed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.text(), HasSubstr("samples are broken"));
    EXPECT_THAT(error.text(), HasSubstr("c11"));
  }
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().filename().string().find("out"), std::string::npos) << entry.path();
}
