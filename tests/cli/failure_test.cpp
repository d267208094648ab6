// Exit codes, failures as JSON, help.
#include "program.h"

#include <gmock/gmock.h>
#include <tuple>
#include <unistd.h>

using namespace fvlm;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace {

struct Failure : test::Program {};

TEST_F(Failure, WhatCannotBeWrittenExitsWith7) {
  const auto quickstart = std::string(FVLM_RECIPES) + "/quickstart.lua";
  const auto to_full_disk = run("plan '" + quickstart + "' > /dev/full");
  EXPECT_EQ(to_full_disk.code, 7) << to_full_disk.err;
  EXPECT_THAT(to_full_disk.err, HasSubstr("standard output: No space left on device"));
  write_file_atomic(scratch / "file", "");
  const auto below_a_file = run("plugin new packer mine --dir file/mine");
  EXPECT_EQ(below_a_file.code, 7) << below_a_file.err;
  const auto run_folder = run("train '" + quickstart + "' --device cpu --run-dir file/run");
  EXPECT_EQ(run_folder.code, 7) << run_folder.err;
  EXPECT_THAT(run_folder.err, HasSubstr("cannot create the folder"));
}

TEST_F(Failure, AFileBeyondTheLimitOfSizesExitsWith7) {
  const auto ran =
      test::shell(fmt::format("cd '{}' && ulimit -f 1 && env FVLM_CACHE=cache '{}' recipe reference > page",
                              scratch.path().string(), FVLM_ENGINE));
  EXPECT_EQ(ran.code, 7) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("standard output: File too large"));
}

TEST_F(Failure, TwoNamesOfAnOptionAreNotTakenTogether) {
  const auto ran = run("generate model --prompt x --max-tokens 3 --limit 5");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--max-tokens and --limit are the same option"));
}

// Advice that --set is said to take is taken.
TEST_F(Failure, OptionsOfOtherProgramsSayWhatToWriteHere) {
  const auto quickstart = "'" + std::string(FVLM_RECIPES) + "/quickstart.lua'";
  const auto said = [&](const std::string& arguments) {
    const auto ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    return ran.err.substr(ran.err.find('\n') + 1);
  };
  for (const auto& [option, path, value] : {std::tuple("--epochs", "stages.*.epochs", "3"),
                                            {"--num_train_epochs", "stages.*.epochs", "3"},
                                            {"--lr", "stages.*.optimizer.lr", "1e-4"},
                                            {"--learning-rate", "stages.*.optimizer.lr", "1e-4"},
                                            {"--batch_size", "stages.*.batch", "8"},
                                            {"--weight_decay", "stages.*.optimizer.weight_decay", "0.1"},
                                            {"--warmup_ratio", "stages.*.schedule.warmup", "0.1"},
                                            {"--save_steps", "checkpoint.every", "10"},
                                            {"--bf16", "precision", "bf16"},
                                            {"--seed", "seed", "7"}})
    for (const std::string verb : {"train ", "plan "}) {
      EXPECT_THAT(said(verb + quickstart + " " + option + " " + value), HasSubstr(fmt::format("--set {}=", path)));
      const auto set = run(fmt::format("check {} --set '{}={}'", quickstart, path, value));
      EXPECT_EQ(set.code, 0) << set.err;
    }
  EXPECT_THAT(said("train " + quickstart + " --output_dir x"), HasSubstr("train --run-dir"));
  EXPECT_THAT(said("train " + quickstart + " --model_name_or_path x"), HasSubstr("the recipe has it, as model"));
  EXPECT_THAT(said("train " + quickstart + " --lora_rank 8"), HasSubstr("as model.adapters[].rank (recipes/"));
  EXPECT_THAT(said("train " + quickstart + " --max_steps 8"), HasSubstr("did you mean '--max-steps'?"));
  EXPECT_THAT(said("train " + quickstart + " --stge x"), HasSubstr("did you mean '--stage'?"));
  EXPECT_THAT(said("train --recipe x"), HasSubstr("write it without --recipe: fvlm-engine train RECIPE\n"));
  EXPECT_THAT(said("generate --model x --prompt y"),
              HasSubstr("write it without --model: fvlm-engine generate MODEL\n"));
  EXPECT_THAT(said("lora merge --model x"), HasSubstr("write it without --model: fvlm-engine lora merge MODEL\n"));
  EXPECT_THAT(said("generate x --epochs 3"), StartsWith("  usage: "));
}

TEST_F(Failure, AnOptionOfOneValueIsGivenOnce) {
  const std::string quickstart = "'" FVLM_RECIPES "/quickstart.lua'";
  for (const auto& [arguments, refusal] :
       {std::pair{"generate x --prompt a --prompt 'b c'", "--prompt takes one value, and was given 2: 'a', 'b c'"},
        {"generate x --prompt a --context b --context=b", "--context takes one value, and was given 2: 'b', 'b'"},
        {"import --out a --out b", "--out takes one value, and was given 2: 'a', 'b'"},
        {"train x --zero --zero 2 --zero", "--zero takes one value, and was given 3: '1', '2', '1'"},
        {"bench serve x --seed 1 --seed 2", "--seed takes one value"}}) {
    const auto ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_THAT(ran.err, HasSubstr(refusal));
    EXPECT_THAT(ran.err, HasSubstr("leave all but one of them out"));
  }
  EXPECT_EQ(run("check " + quickstart + " --set seed=1 --set name=twice").code, 0);
}

TEST_F(Failure, RelativePathsSayWhereTheyStart) {
  const std::string start = "relative to the folder that the program was started in, " + scratch.path().string() + "\n";
  for (const char* arguments :
       {"generate nowhere --prompt x", "import --vision v --decoder d --out o",
        "train '" FVLM_RECIPES "/quickstart.lua' --device cpu", "check '" FVLM_RECIPES "/quickstart.lua' --files"})
    EXPECT_THAT(run(arguments).err, HasSubstr(start)) << arguments;
  EXPECT_THAT(run("generate '" + (scratch / "nowhere").string() + "' --prompt x").err, Not(HasSubstr("relative")));
}

TEST_F(Failure, AFailureWithJsonIsADocument) {
  const auto expect = [&](const std::string& arguments, int code, const char* kind) {
    const auto ran = run(arguments);
    EXPECT_EQ(ran.code, code) << arguments << ran.err;
    ASSERT_NE(ran.err, "") << "people are told, too";
    const auto document = nlohmann::json::parse(ran.out, nullptr, false);
    ASSERT_TRUE(document.is_object()) << arguments << ": " << ran.out;
    EXPECT_EQ(document.value("ok", true), false);
    EXPECT_EQ(document["error"]["kind"], kind) << arguments;
    EXPECT_EQ(document["error"]["code"], code);
    EXPECT_THAT(ran.err, HasSubstr(document["error"]["what"].get<std::string>()));
  };
  const auto quickstart = std::string(FVLM_RECIPES) + "/quickstart.lua";
  for (const char* verb : {"check", "plan", "train", "data stats", "preprocess --out data"})
    expect(fmt::format("{} nowhere.lua --json", verb), 3, "recipe");
  expect("export nowhere --out out --dtype bf16 --json", 4, "data");
  expect("generate nowhere --prompt hello --json", 4, "data");
  expect("report nowhere --json", 4, "data");
  expect("plugin info nowhere --json", 5, "plugin");
  expect("train '" + quickstart + "' --device cuda:0 --json", 2, "usage");
  expect("trian '" + quickstart + "' --json", 2, "usage");
  expect("plugin lsit --json", 2, "usage");
}

TEST_F(Failure, MistakesOfARecipeAreInTheDocumentOfEveryVerb) {
  write_file_atomic(scratch / "bad.lua", "return require('fvlm').recipe {\n  sede = 1 }");
  for (const char* verb : {"check", "plan", "train"}) {
    const auto ran = run(fmt::format("{} bad.lua --json", verb));
    const auto document = nlohmann::json::parse(ran.out, nullptr, false);
    ASSERT_TRUE(document.is_object()) << verb << ran.out;
    EXPECT_EQ(document["mistakes"].back()["line"], 2) << document;
  }
}

TEST_F(Failure, HelpOfAVerbIsThatOfItsOption) {
  for (const char* verb : {"plan", "doctor", "plugin", "plugin check"}) {
    const auto requested = run(fmt::format("help {}", verb)), option = run(fmt::format("{} --help", verb));
    EXPECT_EQ(requested.code, 0) << requested.err;
    EXPECT_EQ(requested.out, option.out);
    EXPECT_NE(requested.out, run("help").out);
  }
  EXPECT_THAT(run("help plann").err, HasSubstr("did you mean 'plan'?"));
  EXPECT_THAT(run("help").out, HasSubstr("7 cannot write output, 8 training diverged"));
}

TEST_F(Failure, OptionsOfTrainAreNamedWithWhatTheyExpect) {
  const auto train = [&](const std::string& options) {
    const auto ran = run(fmt::format("train '{}/quickstart.lua' {}", FVLM_RECIPES, options));
    EXPECT_EQ(ran.code, 2) << options;
    return ran.err;
  };
  EXPECT_THAT(train("--nosuch"), HasSubstr("train has no option '--nosuch'\n  usage: fvlm-engine train RECIPE"));
  EXPECT_THAT(run("data show x.lua 0 --nosuch").err, HasSubstr("data show has no option '--nosuch'"));
  EXPECT_THAT(train("--rundir x"), HasSubstr("did you mean '--run-dir'?"));
  EXPECT_THAT(train("--run-dir ''"), HasSubstr("--run-dir: expected the path of the run's folder"));
  EXPECT_THAT(train("--resume yes"), HasSubstr("--resume: expected auto or a checkpoint's folder, got 'yes'"));
  EXPECT_THAT(run("help train").out, HasSubstr("stop after N steps of this call"));
}

TEST_F(Failure, ExamplesNameAModelThatTheQuickstartKeeps) {
  for (const char* verb : {"eval", "generate"}) {
    const std::string help = run(fmt::format("help {}", verb)).out;
    EXPECT_THAT(help, HasSubstr("runs/quickstart"));
    EXPECT_THAT(help, testing::Not(HasSubstr("step-0")));
  }
}

TEST_F(Failure, ADeviceByItsNumberIsAdvisedOn) {
  for (const char* verb : {"plan", "train"}) {
    const auto ran = run(fmt::format("{} '{}/quickstart.lua' --device cuda:1", verb, FVLM_RECIPES));
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err,
                HasSubstr("--device: expected cpu or cuda, got 'cuda:1'\n  --device cuda uses the first visible "
                          "GPU; set CUDA_VISIBLE_DEVICES=1 to choose it"));
  }
}

} // namespace
