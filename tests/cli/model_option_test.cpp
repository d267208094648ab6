// How the command line resolves a model: the newest checkpoint of a run, and hints for paths that do not exist.
#include "program.h"
#include "weights/tiny_model.h"

#include <csignal>
#include <gmock/gmock.h>

using namespace fvlm;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

namespace {

struct ModelOption : test::Program {
  ModelOption() { tiny::write_towers(scratch.path()); }

  test::Ran import_to(const std::string& out) const {
    return run("import --vision vision --decoder decoder --query-dim 6 --out '" + out + "'");
  }
  test::Ran export_of(const std::string& model) {
    return run(fmt::format("export '{}' --out out{} --dtype bf16", model, ++exports));
  }
  int exports = 0;
};

TEST_F(ModelOption, FoldersAboveAnOutAreMade) {
  EXPECT_EQ(import_to("models/deep/fresh").code, 0);
  EXPECT_EQ(run("export models/deep/fresh --out exported/deep/half --dtype bf16").code, 0);
  EXPECT_TRUE(fs::exists(scratch / "exported/deep/half/fvlm.json"));
}

TEST_F(ModelOption, ARunIsItsNewestFinishedCheckpoint) {
  ASSERT_EQ(import_to("runs/x/align/step-000100").code, 0);
  const auto plan = run("plan '" FVLM_RECIPES "/quickstart.lua' --json > runs/x/plan.json");
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto copy_to = [&](const char* to) {
    fs::create_directories((scratch / "runs/x" / to).parent_path());
    fs::copy(scratch / "runs/x/align/step-000100", scratch / "runs/x" / to, fs::copy_options::recursive);
  };
  for (const char* to :
       {"align/step-000099", "align/step-000200.damaged", "align/step-000300.partial-0123456789abcdef"})
    copy_to(to);
  fs::create_directories(scratch / "runs/x/align/step-000400"); // holds nothing
  EXPECT_THAT(export_of("runs/x").err, HasSubstr("runs/x: using its newest checkpoint, runs/x/align/step-000100"));
  copy_to("instruct/step-000002");
  copy_to("instruct/step-000010");
  EXPECT_THAT(export_of("runs/x/").err, HasSubstr("using its newest checkpoint, runs/x/instruct/step-000010"));
  EXPECT_THAT(export_of("runs/x/align").err, HasSubstr("using its newest checkpoint, runs/x/align/step-000100"));
  for (const std::string verb : {"generate runs/x --batch none.safetensors", "trace runs/x --batch none --out o",
                                 "eval '" FVLM_RECIPES "/quickstart.lua' --model runs/x"})
    EXPECT_THAT(run(verb).err, HasSubstr("runs/x: using its newest checkpoint, runs/x/instruct/step-000010")) << verb;
  const auto checked =
      run("check '" FVLM_RECIPES "/quickstart.lua' --files --set stages.align.from=runs/x --set name=x").err;
  EXPECT_THAT(checked, HasSubstr("runs/x: using its newest checkpoint, runs/x/instruct/step-000010"));
  EXPECT_THAT(checked, Not(HasSubstr("stages.align.from")));
  const auto itself = export_of("runs/x/align/step-000099");
  EXPECT_EQ(itself.code, 0);
  EXPECT_EQ(itself.err, "") << "a checkpoint is taken without a word";
}

TEST_F(ModelOption, ARunWithoutACheckpointSaysSo) {
  fs::create_directories(scratch / "runs/x");
  ASSERT_EQ(run("plan '" FVLM_RECIPES "/quickstart.lua' --json > runs/x/plan.json").code, 0);
  const auto ran = export_of("runs/x");
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("runs/x: this run has no finished checkpoint yet"));
}

TEST_F(ModelOption, ANameOfTheHubIsAdvisedToDownload) {
  const std::string advice = "`hf download facebook/dinov2-small --local-dir weights/dinov2-small`";
  EXPECT_THAT(export_of("facebook/dinov2-small").err, HasSubstr(advice));
  EXPECT_THAT(export_of("HuggingFaceTB/SmolVLM-256M-Instruct").err,
              HasSubstr("`hf download HuggingFaceTB/SmolVLM-256M-Instruct --local-dir weights/SmolVLM-256M-Instruct`; "
                        "`fvlm-engine import` makes a model directory of it"));
  EXPECT_THAT(run("import --vision facebook/dinov2-small --decoder decoder --out o").err, HasSubstr(advice));
  EXPECT_THAT(run("check '" FVLM_RECIPES "/fvlm-135m.lua' --files --set model.vision=facebook/dinov2-small").err,
              HasSubstr(advice));
  EXPECT_THAT(export_of("Qwen/Qwen2-VL-2B-Instruct").err,
              HasSubstr("`hf download Qwen/Qwen2-VL-2B-Instruct --local-dir weights/Qwen2-VL-2B-Instruct`; "));
  for (const char* ours : {"models/missing", "runs/missing"})
    EXPECT_THAT(export_of(ours).err, AllOf(Not(HasSubstr("hf download")), HasSubstr("or the folder of a run")));
  EXPECT_THAT(export_of("./a/b").err, Not(HasSubstr("hf download")));
}

TEST_F(ModelOption, ALocalPathIsNoNameOfTheHub) {
  const auto advice = [&](const std::string& decoder) {
    return run("import --vision vision --decoder '" + decoder + "' --out o").err;
  };
  EXPECT_THAT(run("import --vision weights/dinov2-small --decoder decoder --out o").err,
              HasSubstr("`hf download facebook/dinov2-small --local-dir weights/dinov2-small`"));
  EXPECT_THAT(
      advice("/nowhere/SmolLM2-135M-Instruct"),
      HasSubstr("`hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir /nowhere/SmolLM2-135M-Instruct`"));
  const std::string unknown = advice("weights/mine");
  EXPECT_THAT(unknown, Not(HasSubstr("download weights/mine")));
  EXPECT_THAT(unknown, HasSubstr("`hf download facebook/dinov2-small --local-dir weights/dinov2-small`"));
}

TEST_F(ModelOption, FiguresOfAnImportAreGrouped) {
  EXPECT_THAT(import_to("model").out, testing::ContainsRegex("all +[0-9]+,[0-9]{3}"));
}

TEST_F(ModelOption, ABatchOfOtherShapesIsToldOfThemAndOfTheRightOnes) {
  ASSERT_EQ(import_to("model").code, 0);
  const auto trace = [&](std::vector<TensorInfo> tensors) {
    SafetensorsWriter writer(scratch / "batch.safetensors", std::move(tensors));
    for (const TensorInfo& tensor : writer.order()) writer.append(std::vector<std::byte>(tensor.byte_size()));
    writer.commit();
    const auto ran = run("trace model --batch batch.safetensors --out numbers.safetensors");
    EXPECT_EQ(ran.code, 4);
    EXPECT_THAT(
        ran.err,
        HasSubstr("a batch for this model holds frames [all frames, 3, height, width], frame_counts [samples]"));
    return ran.err;
  };
  const TensorInfo frames{"frames", DType::f32, {2, 3, 20, 20}};
  EXPECT_THAT(trace({{"frames", DType::f32, {2, 20, 20, 3}}}),
              HasSubstr("frames: expected [all frames, 3, height, width], got [2, 20, 20, 3]"));
  EXPECT_THAT(trace({frames}), HasSubstr("frame_counts: there is no such tensor"));
  EXPECT_THAT(trace({frames, {"frame_counts", DType::f32, {1}}}),
              HasSubstr("frame_counts: expected integers of one dimension, got Float [1]"));
}

TEST_F(ModelOption, ATildeThatNoShellExpandedIsNamed) {
  const std::string advice = "a shell expands ~ only outside quotes: write $HOME/models";
  EXPECT_THAT(export_of("~/models/x").err, HasSubstr(advice));
  EXPECT_THAT(run("plan '~/models/x'").err, HasSubstr(advice));
  const auto out = import_to("~/models/x");
  EXPECT_EQ(out.code, 7);
  EXPECT_THAT(out.err, HasSubstr(advice));
  EXPECT_FALSE(fs::exists(scratch / "~")) << "no folder of that name appears";
  EXPECT_THAT(run("check '" FVLM_RECIPES "/quickstart.lua' --files --arg data='~/models/x'").err,
              HasSubstr("'~/models/x/captions/*.tar': a recipe does not expand '~'"));
}

TEST_F(ModelOption, SequencesLongerThanADecodersPositionsAreRefusedWithTheirLine) {
  write_file_atomic(scratch / "long.lua", R"(local fvlm = require "fvlm"
return fvlm.recipe { name = "long", model = fvlm.model { image_size = 20, vision = "vision", decoder = "decoder" },
  fvlm.stage "align" {
    objective = fvlm.next_token {}, optimizer = fvlm.adamw { lr = 1e-3 }, samples = 100, batch = 10,
    data = fvlm.mix { "a.tar" },
  } })");
  for (const char* verb : {"check", "plan", "plan --budget", "data check"}) {
    const auto ran = run(fmt::format("{} long.lua", verb));
    EXPECT_EQ(ran.code, 3) << verb;
    EXPECT_THAT(ran.err, HasSubstr("long.lua:5: stages.align.data.max_text_tokens: 64 frames and 1024 text tokens "
                                   "exceed the decoder's 512 positions"))
        << verb;
  }
}

// Initializing 27 M connector parameters takes a while: the signal is sent once the unfinished folder exists.
TEST_F(ModelOption, ASignalWhileWritingLeavesNothing) {
  for (const auto& [name, number] : {std::pair("INT", SIGINT), std::pair("TERM", SIGTERM), std::pair("HUP", SIGHUP)}) {
    const auto ran = test::shell(
        fmt::format("cd '{0}' && mkdir -p made && {{ env --default-signal=INT '{1}' import --vision vision --decoder "
                    "decoder --query-dim 1000000 --out made/model & "
                    "while kill -0 $! 2>/dev/null; do ls -d made/model.partial-* >/dev/null "
                    "2>&1 && break; done; kill -{2} $!; wait $!; }}; "
                    "code=$?; ls -A made; exit $code",
                    scratch.path().string(), FVLM_ENGINE, name));
    EXPECT_EQ(ran.code, 128 + number) << "it ends by the signal: " << ran.err;
    EXPECT_EQ(ran.out, "") << "something stays";
    EXPECT_THAT(ran.err, HasSubstr("interrupted: removed unfinished files"));
  }
}

} // namespace
