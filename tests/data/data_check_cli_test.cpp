// The verbs that read a recipe's data, on data sets with some broken samples.
#include "../shell.h"
#include "data/shards/shard_writer.h"
#include "samples/sample_maker.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;
using testing::Not;

namespace {

class DataCheckVerb : public testing::Test {
 protected:
  DataCheckVerb() {
    const Ran made = shell(fmt::format("{} --out {} --samples captions=70,text=8,questions=20,pairs=12,heldout/"
                                       "questions=6,heldout/pairs=6",
                                       FVLM_MAKE_SHAPES, data.string()));
    EXPECT_EQ(made.code, 0) << made.err;
  }
  Ran run(const std::string& verb, const std::string& more = "") const {
    return shell(fmt::format("{} {} {} --arg data={} {}", FVLM_ENGINE, verb, FVLM_QUICKSTART, data.string(), more));
  }
  // One more shard of captions, whose images are no images.
  void add_broken(int samples) const {
    ShardWriter writer(data / "captions" / "broken.tar");
    for (int i = 0; i < samples; ++i) {
      writer.add(fmt::format("bad{:03}.jpg", i), "half a picture");
      writer.add(fmt::format("bad{:03}.json", i), R"({"caption":"nothing","frame_count":1})");
    }
    writer.commit();
  }

  Folder folder;
  fs::path data = folder / "shapes";
};

} // namespace

TEST_F(DataCheckVerb, ListsBrokenSamplesAndExitsWith4) {
  Ran ran = run("data check");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("every sample can be used"));
  add_broken(3);
  ran = run("data check", "--threads 2");
  EXPECT_EQ(ran.code, 4) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("bad002"));
  EXPECT_THAT(ran.out, HasSubstr("broken.tar"));
  EXPECT_THAT(ran.out, HasSubstr("3 skipped (3 image or video)"));
  ran = run("data check", "--stage align --json");
  EXPECT_EQ(ran.code, 4);
  const auto document = nlohmann::json::parse(ran.out);
  EXPECT_EQ(document[0]["good"], false);
  EXPECT_EQ(document[0]["skipped.media"], 3);
  EXPECT_EQ(document[0]["skipped"][0]["kind"], "media");
}

TEST_F(DataCheckVerb, ASampleThatIsLeftOutIsNeitherBrokenNorUsed) {
  const Ran ran = run("data check", "--stage instruct --set stages.instruct.data.max_text_tokens=8");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("20 skipped"));
  EXPECT_THAT(ran.out, HasSubstr("no sample is broken; those listed are left out of training"));
  EXPECT_THAT(ran.out, Not(HasSubstr("every sample can be used")));
}

TEST_F(DataCheckVerb, OpensMoreFilesThanTheShellsSoftLimit) {
  for (int i = 0; i < 20; ++i) fs::copy_file(data / "captions/00000.tar", data / fmt::format("captions/more{}.tar", i));
  const auto limited = [&](const char* limits) {
    return shell(fmt::format("ulimit {} 24 && {} data check {} --arg data={} --stage align", limits, FVLM_ENGINE,
                             FVLM_QUICKSTART, data.string()));
  };
  const Ran raised = limited("-S -n");
  EXPECT_EQ(raised.code, 0) << raised.out << raised.err;
  const Ran too_few = limited("-n");
  EXPECT_EQ(too_few.code, 4) << too_few.err;
  EXPECT_THAT(too_few.out, HasSubstr("raise the limit of open files, which `ulimit -n` prints"));
}

TEST_F(DataCheckVerb, APathToNothingIsNoBrokenSample) {
  fs::remove_all(data / "captions");
  const Ran ran = run("data check", "--stage align");
  EXPECT_EQ(ran.code, 4) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("no file matches"));
  EXPECT_THAT(ran.out, HasSubstr("some of the data could not be opened"));
  EXPECT_THAT(ran.out, Not(HasSubstr("broken")));
}

TEST_F(DataCheckVerb, ShowSaysWhichPassAndWritesAPictureOnlyWhenAsked) {
  const auto show = [&](const std::string& more) {
    return shell(fmt::format("cd '{}' && {} data show {} {} --stage align --arg data={}", folder.path().string(),
                             FVLM_ENGINE, FVLM_QUICKSTART, more, data.string()));
  };
  const auto pictures = [&] {
    return std::count_if(fs::directory_iterator(folder.path()), {},
                         [](const auto& entry) { return entry.path().extension() == ".png"; });
  };
  Ran ran = show("0");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("pass 1 over the "));
  EXPECT_THAT(ran.out, HasSubstr("4 frames"));
  EXPECT_THAT(ran.out, HasSubstr("--out FILE"));
  EXPECT_EQ(pictures(), 0);
  ran = show("5000 --set stages.align.samples=80 --out sheet.png");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("sample 5,000 of the stage's 80: pass "));
  EXPECT_THAT(ran.out, HasSubstr("after the end of the stage"));
  EXPECT_EQ(pictures(), 1);
  ran = show("nine");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("N: expected an integer, got 'nine'"));
  EXPECT_THAT(ran.err, Not(HasSubstr("--N")));
}

TEST_F(DataCheckVerb, StatsCountInOneForm) {
  const Ran ran = run("data stats", "--stage align --samples 2000");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("the first 2,000 samples"));
  EXPECT_THAT(ran.out, Not(HasSubstr("2000")));
}

TEST_F(DataCheckVerb, HalfBrokenSetIsReportedByEveryVerb) {
  add_broken(80);
  for (const char* verb : {"data stats", "train --dry-run", "preprocess"}) {
    const Ran ran = run(verb, verb == std::string("preprocess") ? "--out " + (folder / "made").string() : "");
    EXPECT_EQ(ran.code, 4) << verb << ran.out << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("samples are broken")) << verb;
  }
}

// The same samples as JSON lines with paths, and as the tars that `data convert` makes of them.
TEST_F(DataCheckVerb, JsonLinesAreReadAsTheyLieAndConvert) {
  fs::create_directories(folder / "lines/images");
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    if (i != 7) write_bytes(folder / fmt::format("lines/images/{}.png", i), write_png(plain_image(8, 8, 1, 2, 3)));
    lines += fmt::format(R"({{"image": "{0}.png", "caption": "number {0}"}})", i) + "\n";
  }
  write_bytes(folder / "lines/a.jsonl", lines);
  const std::string source = "--stage align --set stages.align.data.sources[1].shards=";
  const Ran lost = run("data check", source + (folder / "lines/a.jsonl").string());
  EXPECT_EQ(lost.code, 4);
  EXPECT_THAT(lost.out, HasSubstr("line 1")) << "its images are elsewhere";
  const std::string root = " --set stages.align.data.sources[1].root=" + (folder / "lines/images").string();
  const Ran found = run("data check", source + (folder / "lines/a.jsonl").string() + root);
  EXPECT_EQ(found.code, 4) << found.err;
  EXPECT_THAT(found.out, HasSubstr("line 8"));
  EXPECT_THAT(found.out, HasSubstr("1 skipped"));

  const std::string convert =
      fmt::format("{} data convert {} --root {} --json --out {}", FVLM_ENGINE, (folder / "lines/a.jsonl").string(),
                  (folder / "lines/images").string(), (folder / "tars/a-").string());
  const Ran converted = shell(convert + "%03d.tar");
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_EQ(nlohmann::json::parse(converted.out)["samples"], 30);
  EXPECT_EQ(nlohmann::json::parse(converted.out)["broken"], 1);
  EXPECT_THAT(converted.err, HasSubstr("line 8"));
  const Ran tars = run("data check", source + (folder / "tars/a-*.tar").string());
  EXPECT_THAT(tars.out, HasSubstr("7.png: No such file")) << "the reason is kept";
  EXPECT_THAT(tars.out, HasSubstr("1 skipped"));
  const Ran unnumbered = shell(convert + ".tar");
  EXPECT_EQ(unnumbered.code, 2);
  EXPECT_THAT(unnumbered.err, HasSubstr("%06d"));
}
