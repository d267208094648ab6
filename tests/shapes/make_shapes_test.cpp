#include "base/file.h"
#include "data/shards/shard_set.h"
#include "data/tokenizer.h"
#include "make-shapes/samples.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <set>
#include <unistd.h>

using namespace fvlm;
using namespace fvlm::shapes;
namespace fs = std::filesystem;

namespace {

const Part& part(std::string_view name) {
  for (const Part& part : parts())
    if (part.name == name) return part;
  throw std::out_of_range(std::string(name));
}

std::string colour_name(const Blob& blob) {
  const std::vector<std::pair<const char*, Rgb>> names{{"red", {255, 0, 0}},      {"green", {0, 255, 0}},
                                                       {"blue", {0, 0, 255}},     {"yellow", {255, 255, 0}},
                                                       {"purple", {200, 0, 200}}, {"cyan", {0, 255, 255}}};
  auto distance = [&](const Rgb& other) {
    int sum = 0;
    for (size_t c = 0; c < 3; ++c) sum += (blob.colour[c] - other[c]) * (blob.colour[c] - other[c]);
    return sum;
  };
  return std::min_element(names.begin(), names.end(),
                          [&](const auto& a, const auto& b) { return distance(a.second) < distance(b.second); })
      ->first;
}

std::string form_name(const Blob& blob) {
  return std::vector<std::string>{"circle", "square", "triangle", "cross", "ring"}.at(static_cast<size_t>(blob.form));
}

// The answer to a question, derived from the frames alone.
std::string observed(const std::string& question, const std::vector<Picture>& frames) {
  const Blob &first = frames.front().blobs.front(), &last = frames.back().blobs.front();
  if (question == "Which colour is it?" || question == "Which colour came first?") return colour_name(first);
  if (question == "Which colour came last?") return colour_name(last);
  if (question == "Which shape came first?") return form_name(first);
  if (question == "Which shape came last?") return form_name(last);
  if (question == "How many balls are there?")
    return std::vector<std::string>{"", "one", "two", "three", "four"}.at(frames.front().blobs.size());
  if (question == "Which way does it move?") {
    int x = last.x - first.x, y = last.y - first.y;
    if (std::abs(x) > std::abs(y)) return x > 0 ? "right" : "left";
    return y > 0 ? "down" : "up";
  }
  if (question == "Where does it end?")
    return fmt::format("{} {}", last.y > span / 2 ? "bottom" : "top", last.x > span / 2 ? "right" : "left");
  if (question == "Which colour is marked?")
    for (const Blob& dot : frames.back().blobs)
      if (dot.x == first.x && dot.y == first.y) return colour_name(dot);
  return "nothing";
}

class MakeShapes : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  // Returns the exit status; the program's output goes to a file, which output() reads.
  int make(const std::string& options) const {
    int status = std::system(fmt::format("{} {} > {}/said 2>&1", FVLM_MAKE_SHAPES, options, folder.string()).c_str());
    return WEXITSTATUS(status);
  }
  std::string output() const { return read_file(folder / "said"); }

  // Every file below, with its content.
  static std::map<std::string, std::string> files(const fs::path& below) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(below))
      if (entry.is_regular_file()) all[fs::relative(entry.path(), below)] = read_file(entry.path());
    return all;
  }

  fs::path folder = fs::temp_directory_path() / fmt::format("fvlm-make-shapes-{}", getpid());
};

std::string text(const Shard& shard, const Member& member) {
  auto bytes = shard.read(member);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

} // namespace

TEST(Shapes, AnswersMatchThePicturesAndWrongOnesDoNot) {
  for (std::string_view name : {"questions", "pairs", "heldout/questions", "heldout/pairs"}) {
    std::map<std::string, int> kinds;
    for (uint64_t number = 0; number < 2000; ++number) {
      Sample sample = make_sample(part(name), 3, number, 4);
      auto json = nlohmann::json::parse(sample.json);
      std::string truth = observed(json["user"], sample.frames);
      ++kinds[json["source"]];
      if (name == "questions") {
        ASSERT_EQ(json["assistant"], truth) << sample.json;
      }
      if (json.contains("chosen_assistant")) {
        ASSERT_EQ(json["chosen_assistant"], truth) << sample.json;
        ASSERT_NE(json["rejected_assistant"], truth) << sample.json;
      }
      if (name == "heldout/questions") {
        ASSERT_EQ(json["choices"].at(json["answer"].get<size_t>()), truth) << sample.json;
        auto choices = json["choices"].get<std::set<std::string>>();
        ASSERT_EQ(choices.size(), 4u) << "each once: " << sample.json;
      }
    }
    for (const char* kind : {"colour", "shape", "direction", "where", "count", "order", "cue"})
      EXPECT_GT(kinds[kind], 40) << kind << " in " << name;
  }
}

TEST(Shapes, CorrectChoiceStandsAnywhere) {
  std::array<int, 4> places{};
  for (uint64_t number = 0; number < 2000; ++number)
    ++places.at(nlohmann::json::parse(make_sample(part("heldout/questions"), 1, number, 4).json)["answer"]);
  for (int times : places) EXPECT_NEAR(times, 500, 100);
}

TEST(Shapes, StillsAreSinglePicturesThatNoOneElseHas) {
  std::set<std::string> answers;
  for (std::string_view name : {"stills/captions", "stills/questions", "heldout/stills"})
    for (uint64_t number = 0; number < 500; ++number) {
      const Sample sample = make_sample(part(name), 1, number, 4);
      ASSERT_EQ(sample.frames.size(), 1U);
      const auto json = nlohmann::json::parse(sample.json);
      ASSERT_EQ(json["frame_count"], 1);
      if (name != "stills/questions") continue;
      const Blob& blob = sample.frames[0].blobs.front();
      const std::string question = json["user"];
      const std::string truth = question == "Which shape is it?" ? form_name(blob) : observed(question, sample.frames);
      ASSERT_EQ(json["assistant"], truth) << sample.json;
      answers.insert(truth);
    }
  EXPECT_EQ(answers.size(), 6U + 4 + 4) << "colours, shapes and numbers";
}

TEST(Shapes, DocumentsTellAndAskOfPictures) {
  const std::string text = nlohmann::json::parse(make_sample(part("documents"), 1, 0, 4).json)["text"];
  EXPECT_EQ(text, nlohmann::json::parse(make_sample(part("documents"), 1, 0, 2).json)["text"].get<std::string>());
  EXPECT_NE(text,
            nlohmann::json::parse(make_sample(part("heldout/documents"), 1, 0, 4).json)["text"].get<std::string>());
  EXPECT_NE(text.find("?"), text.npos);
}

TEST(Shapes, NoClipIsBothHeldOutAndTrainedOn) {
  auto pixels = [](const Sample& sample) {
    std::string all;
    for (const Picture& picture : sample.frames) {
      Image image = paint(picture, 32, 32, Ground::plain, 0);
      all.append(image.rgb.begin(), image.rgb.end());
    }
    return all;
  };
  std::set<std::string> trained;
  for (std::string_view name : {"captions", "questions", "pairs"})
    for (uint64_t number = 0; number < 3000; ++number) trained.insert(pixels(make_sample(part(name), 1, number, 4)));
  for (std::string_view name : {"heldout/questions", "heldout/pairs"})
    for (uint64_t number = 0; number < 1000; ++number)
      ASSERT_FALSE(trained.contains(pixels(make_sample(part(name), 1, number, 4)))) << name << " " << number;
}

TEST(Shapes, EveryWordIsOneToken) {
  Tokenizer tokenizer = Tokenizer::from_json(make_tokenizer(), "tokenizer.json");
  for (const Part& part : parts())
    for (uint64_t number = 0; number < 300; ++number) {
      auto json = nlohmann::json::parse(make_sample(part, 9, number, 4).json);
      for (const char* key : {"caption", "user", "assistant", "chosen_assistant", "rejected_assistant"}) {
        if (!json.contains(key)) continue;
        auto said = json[key].get<std::string>();
        auto words = 1 + std::count(said.begin(), said.end(), ' ') + std::count(said.begin(), said.end(), ',') +
                     std::count(said.begin(), said.end(), '?') + std::count(said.begin(), said.end(), '.');
        // In numbers, the space before them and every digit is a token of its own.
        auto digits = std::count_if(said.begin(), said.end(), [](unsigned char c) { return std::isdigit(c); });
        ASSERT_LE(tokenizer.encode(said).size(), static_cast<size_t>(words + digits)) << said;
      }
    }
}

TEST(Shapes, BlobsArePaintedAtTheirPlace) {
  Picture picture{grey, {{Form::square, {200, 0, 0}, 128, 384, 128}}};
  Image image = paint(picture, 64, 32, Ground::plain, 0);
  auto red = [&](int64_t x, int64_t y) { return image.rgb.at(static_cast<size_t>(y * 64 + x) * 3); };
  EXPECT_EQ(red(16, 24), 200) << "a quarter across, three quarters down";
  EXPECT_EQ(red(16, 8), red(0, 0));
  EXPECT_EQ(red(48, 24), red(0, 0));
  EXPECT_EQ(red(0, 0), 124);
}

TEST_F(MakeShapes, SameOptionsGiveTheSameBytesOnAnyNumberOfThreads) {
  const std::string samples = "--samples captions=50,questions=30,text=20,heldout/pairs=10 --shard-size 20";
  ASSERT_EQ(make(fmt::format("--out {}/a {} --threads 1", folder.string(), samples)), 0) << output();
  ASSERT_EQ(make(fmt::format("--out {}/b {} --threads 3", folder.string(), samples)), 0) << output();
  ASSERT_EQ(make(fmt::format("--out {}/c {} --seed 2", folder.string(), samples)), 0) << output();
  auto a = files(folder / "a"), b = files(folder / "b"), c = files(folder / "c");
  EXPECT_EQ(a.size(), 3u + 2 + 1 + 1 + 3) << "shards, the manifest and two files of the tokenizer";
  EXPECT_TRUE(a == b);
  EXPECT_NE(a["captions/00000.tar"], c["captions/00000.tar"]);
  EXPECT_EQ(a["tokenizer/tokenizer.json"], c["tokenizer/tokenizer.json"]);
}

TEST_F(MakeShapes, ShardsHoldWholeSamplesWithFramesInOrder) {
  for (const char* format : {"png", "jpeg"}) {
    ASSERT_EQ(make(fmt::format("--out {}/a --samples captions=50,text=5 --shard-size 20 --frames 3 --format {}",
                               folder.string(), format)),
              0)
        << output();
    const std::string suffix = format == std::string("png") ? "png" : "jpg";
    ShardSet captions({(folder / "a/captions/*.tar").string()}), texts({(folder / "a/text/*.tar").string()});
    ASSERT_EQ(captions.size(), 50);
    ASSERT_EQ(captions.shards(), 3);
    std::set<std::string> keys;
    for (int64_t i = 0; i < captions.size(); ++i) {
      auto place = captions.locate(i);
      auto shard = captions.shard(place);
      auto sample = shard->sample(place.sample);
      EXPECT_TRUE(keys.insert(sample.key).second) << sample.key;
      ASSERT_EQ(sample.members.size(), 4u);
      for (size_t t = 0; t < 3; ++t) EXPECT_EQ(sample.members[t].name, fmt::format("{:03}.{}", t, suffix));
      auto json = nlohmann::json::parse(text(*shard, sample.members[3]));
      EXPECT_EQ(json["frame_count"], 3);
      EXPECT_TRUE(json["caption"].is_string());
      EXPECT_EQ(shard->damages(), 0u);
    }
    EXPECT_EQ(texts.shard(0)->sample(0).members.size(), 1u) << "text alone";
  }
}

TEST_F(MakeShapes, StillsAreImagesWithoutAFrameNumber) {
  for (const char* format : {"png", "jpeg"}) {
    ASSERT_EQ(make(fmt::format("--out {}/a --samples stills/captions=5,heldout/stills=3,captions=2 --format {}",
                               folder.string(), format)),
              0)
        << output();
    const std::string suffix = format == std::string("png") ? "png" : "jpg";
    for (const char* name : {"stills/captions", "heldout/stills"}) {
      ShardSet stills({(folder / "a" / name / "*.tar").string()});
      ASSERT_GT(stills.size(), 0);
      for (int64_t i = 0; i < stills.size(); ++i) {
        const auto sample = stills.shard(stills.locate(i))->sample(stills.locate(i).sample);
        ASSERT_EQ(sample.members.size(), 2u);
        EXPECT_EQ(sample.members[0].name, suffix);
        EXPECT_EQ(sample.members[1].name, "json");
      }
    }
    ShardSet captions({(folder / "a/captions/*.tar").string()});
    EXPECT_EQ(captions.shard(0)->sample(0).members[0].name, "000." + suffix);
  }
}

TEST_F(MakeShapes, KeepsMatchingDataAndRegeneratesTheRest) {
  const std::string a = fmt::format("--out {}/a --samples captions=5 ", folder.string());
  ASSERT_EQ(make(a), 0);
  auto before = fs::last_write_time(folder / "a/manifest.json");
  ASSERT_EQ(make(a), 0);
  EXPECT_NE(output().find("there already"), std::string::npos) << output();
  EXPECT_EQ(fs::last_write_time(folder / "a/manifest.json"), before);

  fs::resize_file(folder / "a/captions/00000.tar", 1000);
  ASSERT_EQ(make(a), 0);
  EXPECT_GT(fs::file_size(folder / "a/captions/00000.tar"), 1000u) << "a shard cut short is made anew";

  ASSERT_EQ(make(a + "--seed 5"), 0);
  EXPECT_NE(output().find("made in"), std::string::npos) << output();
}

TEST_F(MakeShapes, NeverRemovesFilesOfOthers) {
  fs::create_directories(folder / "mine/captions");
  write_file_atomic(folder / "mine/captions/letter.txt", "dear");
  EXPECT_EQ(make(fmt::format("--out {}/mine --samples captions=5", folder.string())), 7);
  EXPECT_EQ(read_file(folder / "mine/captions/letter.txt"), "dear");
  EXPECT_NE(output().find("a file or folder of this name already exists"), std::string::npos) << output();
}

TEST_F(MakeShapes, RefusesWrongOptionsWithAReason) {
  for (auto [options, reason] : {std::pair{"--frames 1", "--frames: expected 2 to 64, got 1"},
                                 {"--size 32x", "--size: expected an integer from 8 to 4096, got '32x'"},
                                 {"--size 5", "--size: expected an integer from 8 to 4096, got '5'"},
                                 {"--samples caption=5", "did you mean captions="},
                                 {"--samples captions", "is no PART=N"},
                                 {"--samples captions=0", "from 1"},
                                 {"--format gif", "--format is png"},
                                 {"--format mp4", "make-shapes-mp4"},
                                 {"--sede 5", "did you mean '--seed'"},
                                 {"--nosuch", "make-shapes has no option '--nosuch'"},
                                 {"--shard-size 0", "--shard-size: expected 1"}}) {
    EXPECT_EQ(make(fmt::format("--out {}/a {}", folder.string(), options)), 2) << options;
    EXPECT_NE(output().find(reason), std::string::npos) << options << ": " << output();
  }
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST_F(MakeShapes, HelpSaysWhereMp4IsToBeHad) {
  EXPECT_EQ(make("--help"), 0);
  EXPECT_NE(output().find("mp4: only in make-shapes-mp4, which `ninja -C build/cpu make-shapes-mp4` builds"),
            std::string::npos)
      << output();
}

#ifdef FVLM_MAKE_SHAPES_MP4
TEST_F(MakeShapes, ClipMayBeOneMp4) {
  for (const char* name : {"a", "b"})
    ASSERT_EQ(
        std::system(fmt::format("{} --out {}/{} --format mp4 --size 64x48 --samples captions=3,text=1 > {}/said 2>&1",
                                FVLM_MAKE_SHAPES_MP4, folder.string(), name, folder.string())
                        .c_str()),
        0)
        << output();
  EXPECT_TRUE(files(folder / "a") == files(folder / "b"));
  ShardSet captions({(folder / "a/captions/*.tar").string()}), texts({(folder / "a/text/*.tar").string()});
  auto sample = captions.shard(0)->sample(1);
  ASSERT_EQ(sample.members.size(), 2u);
  EXPECT_EQ(sample.members[0].name, "mp4");
  EXPECT_NE(text(*captions.shard(0), sample.members[0]).find("ftyp"), std::string::npos);
  EXPECT_EQ(texts.shard(0)->sample(0).members.size(), 1u);
}
#endif
