#include "../shell.h"
#include "samples/sample_maker.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

// The verb on the quickstart's recipe, over a few shapes.
class PreprocessVerb : public testing::Test {
 protected:
  int run(const std::string& command) {
    ran = shell(command);
    return ran.code;
  }
  int preprocess(const std::string& more) {
    return run(fmt::format("{} preprocess {} --arg data={} --out {} {}", FVLM_ENGINE, FVLM_QUICKSTART, data.string(),
                           made.string(), more));
  }
  const std::string& out() const { return ran.out; }
  const std::string& err() const { return ran.err; }

  Ran ran;
  Folder folder;
  fs::path data = folder / "shapes", made = folder / "made";
};

} // namespace

TEST_F(PreprocessVerb, WritesAFolderPerStageAndKeepsUpToDateOnes) {
  ASSERT_EQ(run(fmt::format("{} --out {} --samples captions=40,text=8,questions=20,pairs=12", FVLM_MAKE_SHAPES,
                            data.string())),
            0)
      << err();
  ASSERT_EQ(preprocess(""), 0) << err();
  EXPECT_THAT(out(), HasSubstr("align: 48 samples"));
  for (const char* stage : {"align", "instruct", "prefer"})
    EXPECT_TRUE(fs::exists(made / stage / "manifest.json")) << stage;

  auto before = fs::last_write_time(made / "align/manifest.json");
  ASSERT_EQ(preprocess("--stage align"), 0) << err();
  EXPECT_THAT(out(), HasSubstr("up to date"));
  EXPECT_THAT(out(), HasSubstr("/align\"` in the fvlm.mix of the stage align\n"));
  EXPECT_EQ(fs::last_write_time(made / "align/manifest.json"), before);

  ASSERT_EQ(preprocess("--stage align --set model.image_size=16 --json"), 0) << err();
  auto document = nlohmann::json::parse(out());
  EXPECT_EQ(document[0]["samples"], 48);
  EXPECT_EQ(document[0]["made"], true);
  EXPECT_THAT(err(), HasSubstr("image_size was 32 and is 16"));
}

TEST_F(PreprocessVerb, MistakesSayWhatToDo) {
  ASSERT_EQ(run(fmt::format("{} --out {} --samples pairs=3", FVLM_MAKE_SHAPES, data.string())), 0) << err();
  EXPECT_EQ(preprocess("--threads 0"), 2);
  EXPECT_THAT(err(), HasSubstr("1 to 1024"));
  EXPECT_EQ(preprocess("--stage perfer"), 2);
  EXPECT_THAT(err(), HasSubstr("did you mean 'prefer'?"));
  EXPECT_EQ(preprocess("--stage align"), 4) << "no captions";
  EXPECT_THAT(err(), HasSubstr("captions"));
  EXPECT_FALSE(fs::exists(made / "align"));
  made = "/proc/made";
  EXPECT_EQ(preprocess("--stage prefer"), 7);
  EXPECT_THAT(err(), HasSubstr("error: /proc/made: cannot create the folder: No such file or directory\n"));
  EXPECT_EQ(run(fmt::format("{} preprocess {}", FVLM_ENGINE, FVLM_QUICKSTART)), 2);
  EXPECT_THAT(err(), HasSubstr("--out"));
}
