// The built program: exit codes, what goes to standard output and what to standard error, colour.
#include "../../shell.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <gmock/gmock.h>
#include <unistd.h>

using namespace fvlm;
using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / fmt::format("fvlm-command-test-{}", getpid());
    fs::create_directories(folder);
    write_file_atomic(
        folder / "bad.lua",
        "local fvlm = require 'fvlm'\nreturn fvlm.recipe {\n  name = 'x',\n  sede = 1,\n  precision = 5,\n}\n");
  }
  void TearDown() override { fs::remove_all(folder); }

  static test::Ran run(const std::string& arguments, const std::string& environment = "") {
    return test::shell(fmt::format("cd '{}' && {} '{}' {}", FVLM_RECIPES, environment, FVLM_ENGINE, arguments));
  }
  fs::path folder;
};

TEST_F(CommandTest, CheckSummarizesTheRecipe) {
  auto ran = run("check fvlm-135m.lua");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("OK  fvlm-135m.lua"));
  EXPECT_THAT(ran.out, HasSubstr("align 31,250 steps -> instruct 31,250 steps -> prefer 2,594 steps"));
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(CommandTest, CheckListsEveryMistakeAndExitsWith3) {
  std::string bad = (folder / "bad.lua").string();
  auto ran = run("check " + bad);
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_THAT(ran.err, HasSubstr(bad + ":4: sede: unknown key 'sede'\n  did you mean 'seed'?"));
  EXPECT_THAT(ran.err, HasSubstr(bad + ":5: precision: expected"));
  EXPECT_THAT(ran.err, HasSubstr("4 mistakes")); // model and stages are missing
}

TEST_F(CommandTest, CheckFindsControlMemoryThatIsNoText) {
  const auto recipe = [&](const std::string& keeps) {
    write_file_atomic(folder / "c.lua", R"(local fvlm = require "fvlm"
return fvlm.recipe { name = "x", model = fvlm.model { vision = "v", decoder = "d" },
  fvlm.stage "a" { data = fvlm.mix { "a.tar" }, objective = fvlm.next_token {}, samples = 100, batch = 10,
    optimizer = fvlm.adamw { lr = 1e-3 },
    control = { every = 1, run = function(m, memory) memory.kept = )" +
                                            keeps + " end } } }\n");
    return run("check " + (folder / "c.lua").string());
  };
  EXPECT_EQ(recipe("\"plain\"").code, 0);
  EXPECT_EQ(recipe("m.no_such_metric + 1").code, 0) << "what training will tell it is not known here";
  const auto ran = recipe("\"\\xff\\xfe\"");
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("c.lua:5: the memory of `control` contains a string that is not UTF-8"));
}

TEST_F(CommandTest, CheckJsonIsOneDocument) {
  auto ran = run("check --json " + (folder / "bad.lua").string());
  EXPECT_EQ(ran.code, 3);
  auto document = json::parse(ran.out);
  EXPECT_FALSE(document["ok"]);
  EXPECT_EQ(document["mistakes"].size(), 4u);
  EXPECT_EQ(document["mistakes"][2]["line"], 4);
  EXPECT_EQ(document["mistakes"][2]["path"], "sede");
  write_file_atomic(folder / "latin.lua", "return require('fvlm').recipe { name = 'caf\xe9' }");
  auto latin = json::parse(run("check --json " + (folder / "latin.lua").string()).out);
  EXPECT_THAT(latin["mistakes"].dump(), HasSubstr("caf\uFFFD"));
  auto good = json::parse(run("check --json quickstart.lua").out);
  EXPECT_TRUE(good["ok"]);
  EXPECT_EQ(good["stages"][0]["steps"], 3250);
}

TEST_F(CommandTest, CheckFilesNamesMissingFilesAndExitsWith4) {
  auto ran = run("check --files fvlm-135m.lua --arg weights=" + folder.string());
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("missing: " + (folder / "dinov2-small").string() + ": there is no such folder"));
  EXPECT_THAT(ran.err, HasSubstr("missing: data/openvid/*.tar: there is no folder data\n"
                                 "  stages.align.data.sources[1].shards, fvlm.three_stages:"));
}

TEST_F(CommandTest, CheckFilesLooksForEveryShardOfAPattern) {
  for (const char* name : {"clips/00.tar", "clips/01.tar", "clips/03.tar", "chat/a.tar", "chat/b.tar", "d/config.json",
                           "d/model.safetensors"}) {
    fs::create_directories((folder / name).parent_path());
    write_file_atomic(folder / name, "12345");
  }
  auto check = [&](const std::string& clips, const std::string& chat) {
    std::string in = folder.string();
    write_file_atomic(folder / "r.lua", fmt::format("local fvlm = require 'fvlm'\n"
                                                    "return fvlm.recipe {{\n"
                                                    "  name = 'x', model = fvlm.model {{ vision = '{0}/d', decoder = "
                                                    "'{0}/d' }},\n"
                                                    "  fvlm.stage 's' {{ objective = fvlm.next_token {{ }},\n"
                                                    "    optimizer = fvlm.adamw {{ lr = 1 }}, samples = 1, batch = 1,\n"
                                                    "    data = fvlm.mix {{ '{0}/{1}', {{ text = '{0}/{2}' }} }},\n"
                                                    "  }},\n}}\n",
                                                    in, clips, chat));
    auto ran = run("check --files " + in + "/r.lua");
    std::string text = ran.out + ran.err;
    for (size_t at; (at = text.find(in + "/")) != std::string::npos;) text.erase(at, in.size() + 1);
    return std::pair(ran.code, text);
  };
  auto [good, all_there] = check("clips/{00..01}.tar", "chat/*.tar");
  EXPECT_EQ(good, 4) << "they are there, and are no models and no shards: " << all_there;
  EXPECT_THAT(all_there, Not(HasSubstr("missing: ")));
  auto [bad, some] = check("clips/{00..09}.tar", "chat/*.tra");
  EXPECT_EQ(bad, 4);
  EXPECT_THAT(some, HasSubstr("missing: clips/{00..09}.tar: 7 of 10 files do not exist, the first is clips/02.tar\n"
                              "  stages.s.data.sources[1].shards, r.lua:6\n"));
  EXPECT_THAT(some, HasSubstr("missing: chat/*.tra: no file matches this pattern\n"));
  EXPECT_THAT(some, HasSubstr("2 are missing\n"));
  EXPECT_THAT(check("clips/04.tar", "chat/a.tar").second, HasSubstr("clips/04.tar: there is no such file\n"));
  EXPECT_THAT(check("clip/{4..9}.tar", "chat/a.tar").second, HasSubstr("{4..9}.tar: there is no folder clip\n"));
  EXPECT_THAT(check("clips/{4-9}.tar", "chat/a.tar").second, HasSubstr("'{4-9}' is neither a range nor a list"));
  EXPECT_THAT(check("clips", "chat/a.tar").second, HasSubstr("clips: is a folder of shards, not a shard: "));
}

TEST_F(CommandTest, PlanFitsAPageWithoutColourInAPipe) {
  auto ran = run("plan fvlm-135m.lua --set seed=7 --set quantization=int8 --set stages.align.quantization_aware=true",
                 "TERM=xterm");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("--set seed=7"));
  EXPECT_THAT(ran.out,
              HasSubstr("align  1,000,000 samples in 31,250 steps of 32, from the model's weights\n"
                        "  data          43 %  data/openvid/*.tar\n"
                        "                43 %  data/webvid/*.tar\n"
                        "                14 %  data/smoltalk/*.tar  (text only)\n"
                        "                at most 64 frames, 512 text tokens\n"
                        "  mode          coarse_fine\n"
                        "  objective     next_token, on all\n"
                        "  optimizer     adamw, lr connector 0.001, decoder 1e-5, vision 1e-5, weight_decay 0.01,"));
  EXPECT_THAT(ran.out, HasSubstr("  schedule      converging to 3e-5, warm-up 938 steps (3 %)\n"));
  EXPECT_THAT(run("plan fvlm-135m.lua --set stages.align.schedule.warmup=0.0004").out, HasSubstr("(0.04 %)"));
  EXPECT_THAT(ran.out, HasSubstr("  quantization  scheme int8\n")) << "the longest label";
  EXPECT_THAT(ran.out, testing::ContainsRegex("[0-9]+ values set, [0-9]+ defaults; --all shows each"));
  EXPECT_LT(std::count(ran.out.begin(), ran.out.end(), '\n'), 50);
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1b[")));
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(CommandTest, ColourOnlyForATerminal) {
  // script(1) gives the program a terminal.
  auto in_terminal = [&](const std::string& environment) {
    std::string out = (folder / "typescript").string();
    std::string command = fmt::format("cd '{}' && {} script -qec \"'{}' check quickstart.lua\" '{}' >/dev/null 2>&1",
                                      FVLM_RECIPES, environment, FVLM_ENGINE, out);
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_file(out);
  };
  if (std::system("command -v script >/dev/null") != 0)
    GTEST_SKIP() << "script(1) is not installed: no terminal to be had";
  EXPECT_THAT(in_terminal("env -u NO_COLOR TERM=xterm"), HasSubstr("\x1b["));
  EXPECT_THAT(in_terminal("NO_COLOR=1 TERM=xterm"), Not(HasSubstr("\x1b[")));
}

TEST_F(CommandTest, PlanJsonIsTheSameInEachProcessAndReadsBack) {
  auto first = run("plan fvlm-135m.lua --json"), second = run("plan fvlm-135m.lua --json");
  EXPECT_EQ(first.out, second.out);
  write_file_atomic(folder / "p.json", first.out);
  std::string file = (folder / "p.json").string();
  auto document = json::parse(first.out);
  EXPECT_EQ(json::parse(run("plan --json " + file).out)["hash"], document["hash"]);
  EXPECT_EQ(document["plan"]["stages"][0]["steps"], 31250);
  auto same = run("plan fvlm-135m.lua --diff " + file);
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("the plans are identical"));
}

TEST_F(CommandTest, PlanDiffShowsBothValuesAndExitsWith1) {
  auto ran = run("plan fvlm-135m.lua --diff fvlm-1.7b.lua");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.out, testing::ContainsRegex("stages.align.optimizer.lr.connector +0.001 +0.0003"));
  EXPECT_THAT(ran.out, Not(HasSubstr("stages.align.samples")));
  auto document = json::parse(run("plan fvlm-135m.lua --diff fvlm-1.7b.lua --json").out);
  EXPECT_EQ(document[0]["path"], "name");
}

TEST_F(CommandTest, PlanAllListsEveryValueWithItsLine) {
  auto ran = run("plan fvlm-135m.lua --all");
  EXPECT_THAT(ran.out, testing::ContainsRegex("stages.align.data.max_text_tokens +512 +fvlm.three_stages:[0-9]+ via "
                                              "fvlm-135m.lua:13\n"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("stages.prefer.steps +2594 +derived"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("log_every +10 +default"));
}

TEST_F(CommandTest, FullDiskIsAnError) {
  const fs::path err = folder / "err";
  const auto into = [&](const std::string& command, const char* where) {
    const int status = std::system(
        fmt::format("cd '{}' && '{}' {} {} 2>'{}'", FVLM_RECIPES, FVLM_ENGINE, command, where, err.string()).c_str());
    return WEXITSTATUS(status);
  };
  for (const char* command : {"plan fvlm-135m.lua", "plan fvlm-135m.lua --json", "recipe reference", "--help"}) {
    EXPECT_EQ(into(command, ">/dev/full"), 7) << command;
    EXPECT_EQ(read_file(err), "error: standard output: No space left on device\n") << command;
  }
  EXPECT_EQ(into("check fvlm-135m.lua", ">&-"), 0) << "nobody listens";
}

TEST_F(CommandTest, WrongUsageExitsWith2) {
  EXPECT_EQ(run("plan").code, 2);
  EXPECT_EQ(run("plan fvlm-135m.lua --set seed").code, 2);
  EXPECT_EQ(run("plan fvlm-135m.lua --al").code, 2);
  EXPECT_EQ(run("check fvlm-135m.lua --arg x").code, 2);
  EXPECT_EQ(run("recipe referense").code, 2);
}

TEST_F(CommandTest, OptionWithoutItsValueShowsWhatIsExpected) {
  EXPECT_EQ(run("plan fvlm-135m.lua --set").err,
            "error: --set needs a value\n  --set PATH=VALUE: change a value of the plan, e.g. --set "
            "stages.align.samples=1000 (repeatable)\n");
  EXPECT_EQ(run("plan fvlm-135m.lua --all=5").err.substr(0, 27), "error: --all takes no value");
}

TEST_F(CommandTest, PlanDiffNamesSetOptions) {
  EXPECT_THAT(run("plan fvlm-135m.lua --set seed=7 --diff fvlm-135m.lua").out,
              HasSubstr("fvlm-135m.lua --set seed=7  fvlm-135m.lua\n"));
}

TEST_F(CommandTest, SetOfAnUnknownPathExitsWith3) {
  auto ran = run("plan fvlm-135m.lua --set stages.align.optimiser.eps=1");
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("did you mean 'optimizer'?"));
}

TEST_F(CommandTest, NamesAMissingRecipe) {
  auto ran = run("check nowhere.lua");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("nowhere.lua"));
}

TEST_F(CommandTest, TrainRefusesProcessesThatDoNotKnowOfEachOther) {
  const std::pair<std::string, std::string> launchers[] = {
      {"WORLD_SIZE", "RANK is not set"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID is not set"},
      {"OMPI_COMM_WORLD_SIZE", "mpirun started 2 processes, which do not know of each other"}};
  for (const auto& [variable, expected] : launchers) {
    auto ran = run("train fvlm-135m.lua --dry-run", variable + "=2");
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr(expected));
    EXPECT_EQ(run("train fvlm-135m.lua --dry-run", variable + "=1").code, 4) << "there are no weights";
  }
}
