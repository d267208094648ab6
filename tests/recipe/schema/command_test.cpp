// The built program: exit codes, what goes to standard output and what to standard error, colour.
#include "base/file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <gmock/gmock.h>
#include <sys/wait.h>
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

  struct Ran {
    int code;
    std::string out, err;
  };
  Ran run(const std::string& arguments, const std::string& environment = "") {
    std::string out = (folder / "out").string(), err = (folder / "err").string();
    std::string command =
        fmt::format("cd '{}' && {} '{}' {} >'{}' 2>'{}'", FVLM_RECIPES, environment, FVLM_ENGINE, arguments, out, err);
    int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
  }
  fs::path folder;
};

TEST_F(CommandTest, check_says_ok_and_what_the_recipe_does) {
  auto ran = run("check fvlm-135m.lua");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("OK  fvlm-135m.lua"));
  EXPECT_THAT(ran.out, HasSubstr("align 31,250 steps -> instruct 31,250 steps -> prefer 2,594 steps"));
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(CommandTest, check_lists_every_mistake_on_standard_error_and_exits_3) {
  std::string bad = (folder / "bad.lua").string();
  auto ran = run("check " + bad);
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_THAT(ran.err, HasSubstr(bad + ":4: sede: unknown key 'sede'\n  did you mean 'seed'?"));
  EXPECT_THAT(ran.err, HasSubstr(bad + ":5: precision: expected"));
  EXPECT_THAT(ran.err, HasSubstr("4 mistakes")); // model and stages are missing
}

TEST_F(CommandTest, check_json_is_one_document) {
  auto ran = run("check --json " + (folder / "bad.lua").string());
  EXPECT_EQ(ran.code, 3);
  auto document = json::parse(ran.out);
  EXPECT_FALSE(document["ok"]);
  EXPECT_EQ(document["mistakes"].size(), 4u);
  EXPECT_EQ(document["mistakes"][2]["line"], 4);
  EXPECT_EQ(document["mistakes"][2]["path"], "sede");
  auto good = json::parse(run("check --json quickstart.lua").out);
  EXPECT_TRUE(good["ok"]);
  EXPECT_EQ(good["stages"][0]["steps"], 2000);
}

TEST_F(CommandTest, check_files_names_what_is_missing_and_exits_4) {
  auto ran = run("check --files fvlm-135m.lua --arg weights=" + folder.string());
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("missing: " + (folder / "dinov2-small/config.json").string()));
  EXPECT_THAT(ran.err, HasSubstr("missing: data/openvid  (stages.align.data.sources[1].shards"));
}

TEST_F(CommandTest, plan_prints_sections_values_and_sources_without_colour_in_a_pipe) {
  auto ran = run("plan fvlm-135m.lua --set seed=7", "TERM=xterm");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("--set seed=7"));
  EXPECT_THAT(
      ran.out,
      HasSubstr("stage align  1,000,000 samples in 31,250 steps, 938 of them warm-up, from the model's weights"));
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1b[")));
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(CommandTest, colour_only_for_a_terminal_that_wants_it) {
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

TEST_F(CommandTest, plan_json_has_the_same_bytes_in_each_process_and_reads_back) {
  auto first = run("plan fvlm-135m.lua --json"), second = run("plan fvlm-135m.lua --json");
  EXPECT_EQ(first.out, second.out);
  write_file_atomic(folder / "p.json", first.out);
  std::string file = (folder / "p.json").string();
  auto document = json::parse(first.out);
  EXPECT_EQ(json::parse(run("plan --json " + file).out)["hash"], document["hash"]);
  EXPECT_EQ(document["plan"]["stages"][0]["steps"], 31250);
  auto same = run("plan fvlm-135m.lua --diff " + file);
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("the same plan"));
}

TEST_F(CommandTest, plan_diff_shows_both_values_and_exits_1) {
  auto ran = run("plan fvlm-135m.lua --diff fvlm-1.7b.lua");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.out, testing::ContainsRegex("stages.align.optimizer.lr.connector +0.001 +0.0003"));
  EXPECT_THAT(ran.out, Not(HasSubstr("stages.align.samples")));
  auto document = json::parse(run("plan fvlm-135m.lua --diff fvlm-1.7b.lua --json").out);
  EXPECT_EQ(document[0]["path"], "name");
}

TEST_F(CommandTest, provenance_lists_every_value) {
  auto ran = run("plan fvlm-135m.lua --provenance");
  EXPECT_THAT(ran.out, testing::ContainsRegex("stages.prefer.steps +2594 +derived"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("log_every +10 +default"));
}

TEST_F(CommandTest, wrong_usage_exits_2) {
  EXPECT_EQ(run("plan").code, 2);
  EXPECT_EQ(run("plan fvlm-135m.lua --set seed").code, 2);
  EXPECT_EQ(run("plan fvlm-135m.lua --provnance").code, 2);
  EXPECT_EQ(run("check fvlm-135m.lua --arg x").code, 2);
  EXPECT_EQ(run("recipe referense").code, 2);
}

TEST_F(CommandTest, a_set_that_names_nothing_exits_3) {
  auto ran = run("plan fvlm-135m.lua --set stages.align.optimiser.eps=1");
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("did you mean 'optimizer'?"));
}

TEST_F(CommandTest, a_missing_recipe_is_named) {
  auto ran = run("check nowhere.lua");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("nowhere.lua"));
}
