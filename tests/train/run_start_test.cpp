// Where a run starts: the model of its first stage, its folder, and what it may resume.
#include "base/error.h"
#include "small_run.h"
#include "train/checkpoint.h"

namespace fvlm::train {
namespace {

class RunStart : public SmallRun {
 protected:
  std::string stderr_of(const std::function<void()>& work) const {
    testing::internal::CaptureStderr();
    work();
    return testing::internal::GetCapturedStderr();
  }

  // The message of the Error that `work` throws, and what it wrote before.
  std::pair<std::string, std::string> refusal_of(const std::function<void()>& work) const {
    std::string text;
    const std::string before = stderr_of([&] {
      try {
        work();
        ADD_FAILURE() << "it was not refused";
      } catch (const Error& error) {
        text = error.text();
      }
    });
    return {text, before};
  }

  std::vector<std::string> events(const std::string& run) const {
    std::vector<std::string> texts;
    for (const auto& line : metrics(folder(run)))
      if (line["kind"] == "event" && line["what"] == "data_change") texts.push_back(line["text"]);
    return texts;
  }

  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
};

TEST_F(RunStart, AGroupOfTheLastLayerIsThatOfItsIndex) {
  change_recipe("connector = { query_dim = 12 },", R"(connector = { query_dim = 12 },
    groups = { last = "decoder.model.layers." .. fvlm.arg("layer", "1") .. ".*" },)");
  const std::vector<std::string> sets = {R"(stages.align.freeze=["vision","connector","decoder"])"};
  const TrainReport by_index = run("index", sets, {.stage = "align", .max_steps = 2});
  args_["layer"] = "-1";
  const TrainReport from_end = run("end", sets, {.stage = "align", .max_steps = 2});
  EXPECT_TRUE(content(by_index.checkpoint).at("decoder/model.safetensors") ==
              content(from_end.checkpoint).at("decoder/model.safetensors"));
  EXPECT_NO_THROW(rehearse(resolved(sets), {.folder = folder("rehearsed"), .stage = "align"}, registry_));
  args_["layer"] = "-3";
  EXPECT_THROW(rehearse(resolved(sets), {.folder = folder("rehearsed"), .stage = "align"}, registry_), Error);
}

TEST_F(RunStart, FromTakesTheFolderOfARunOrOfAStage) {
  run("start", {}, {.stage = "align"});
  const fs::path checkpoint = StageFolder(folder("start") / "align").of(10);
  run("checkpoint", {}, {.stage = "instruct", .from = checkpoint});
  run("run", {}, {.stage = "instruct", .from = folder("start")});
  run("stage", {}, {.stage = "instruct", .from = folder("start") / "align"});
  run("recipe", {"stages.instruct.from=" + folder("start").string()}, {.stage = "instruct"});
  for (const char* name : {"run", "stage", "recipe"}) expect_equal_runs("checkpoint", name);
  EXPECT_NO_THROW(rehearse(resolved(), {.stage = "instruct", .from = folder("start")}, registry_));
  const std::string taught = R"(stages.instruct.objective=[{"kind":"next_token"},{"kind":"kl","teacher":")" +
                             folder("start").string() + "\"}]";
  EXPECT_NO_THROW(rehearse(resolved({taught}), {.stage = "instruct"}, registry_));
  EXPECT_EQ(run("taught", {taught}, {.stage = "instruct", .from = folder("start"), .max_steps = 1}).steps, 1);
}

TEST_F(RunStart, AModelToStartFromIsNotDroppedSilently) {
  run("model", {}, {.stage = "align"});
  const fs::path model = folder("model");
  const auto said = [&](int64_t steps) {
    return stderr_of([&] { run("a", {}, {.stage = "align", .from = model, .max_steps = steps}); });
  };
  const std::string unused = "nothing starts from " + model.string() + " (--from)";
  EXPECT_FALSE(has(said(4), unused));
  EXPECT_TRUE(has(said(-1), "the run has begun already, so that " + unused));
  EXPECT_TRUE(has(said(-1), "every stage is already complete, so that " + unused));
}

TEST_F(RunStart, AChangeThatCannotBeResumedIsNotAdvisedToBeAllowed) {
  run("a", {}, {.max_steps = 5});
  for (const bool allowed : {false, true}) {
    const auto [text, before] =
        refusal_of([&] { run("a", {"stages.align.batch.samples=4"}, {.allow_plan_change = allowed}); });
    EXPECT_TRUE(has(text, "its stage 'align' cannot be resumed at step 5")) << text;
    EXPECT_TRUE(has(text, "--allow-plan-change does not help")) << text;
    EXPECT_TRUE(has(text, "stages.align.batch.samples")) << text;
    EXPECT_FALSE(has(before, "resumes")) << before;
  }
  const auto [text, before] = refusal_of([&] { run("a", {"stages.align.optimizer.clip=2"}); });
  EXPECT_TRUE(has(text, "--allow-plan-change resumes with the new one")) << text;
  EXPECT_FALSE(has(before, "resumes")) << before;
}

TEST_F(RunStart, AnotherNumberOfSamplesIsRefusedByName) {
  run("a", {}, {.max_steps = 5});
  for (const bool allowed : {false, true}) {
    const auto [text, before] =
        refusal_of([&] { run("a", {"stages.align.samples=160"}, {.allow_plan_change = allowed}); });
    EXPECT_TRUE(has(text, "stages.align.samples was 80 and is 160, and the stage is under way, at step 5")) << text;
    EXPECT_TRUE(has(text, "train the stage to its end with 80 samples")) << text;
  }
  const auto [text, before] = refusal_of([&] {
    run("a", {"stages.align.samples=160", "stages.align.batch.samples=4"}, {.allow_plan_change = true});
  });
  EXPECT_TRUE(has(text, "other shards, weights, samples, seed or batch give other samples")) << text;
}

TEST_F(RunStart, ACheckpointOfAnotherRunIsRefusedInANewFolder) {
  run("a", {}, {.max_steps = 5});
  const fs::path checkpoint = StageFolder(folder("a") / "align").of(5);
  for (const bool allowed : {false, true}) {
    const auto [text, before] =
        refusal_of([&] { run("new", {}, {.resume = checkpoint, .allow_plan_change = allowed}); });
    EXPECT_TRUE(has(text, "this checkpoint belongs to another run")) << text;
    EXPECT_TRUE(has(text, "--run-dir " + folder("a").string() + " resumes its own run")) << text;
    EXPECT_TRUE(has(text, "--from " + checkpoint.string())) << text;
    EXPECT_FALSE(has(text, "move it out")) << text;
    EXPECT_FALSE(fs::exists(folder("new") / "align"));
  }
  run("b", {}, {.max_steps = 2});
  const auto [text, before] = refusal_of([&] { run("b", {}, {.resume = checkpoint}); });
  EXPECT_TRUE(has(text, "belongs to another run: its id is")) << text;
  EXPECT_FALSE(has(text, "move it out")) << text;
  fs::remove(folder("a") / "run.json");
  EXPECT_EQ(run("a", {}, {.resume = checkpoint, .max_steps = 1}).step, 6) << "it lies in its own run's folder";
}

TEST_F(RunStart, AFolderWithOtherFilesBecomesNoRun) {
  fs::create_directories(folder("my") / "data");
  write_file_atomic(folder("my") / "mine.lua", "return 1");
  const auto [text, before] = refusal_of([&] { run("my"); });
  EXPECT_TRUE(has(text, "this folder is not empty and holds no run: it has data and 1 more")) << text;
  EXPECT_FALSE(fs::exists(folder("my") / "metrics.jsonl"));
  write_file_atomic(folder("file"), "notes");
  EXPECT_TRUE(has(refusal_of([&] { run("file"); }).first, "a run needs a folder, and this is a file"));
  fs::create_directories(folder("empty"));
  write_file_atomic(folder("empty") / "train.log", "the shell's");
  EXPECT_EQ(run("empty", {}, {.max_steps = 1}).steps, 1);
}

TEST_F(RunStart, AnAttemptThatFailsLeavesNothing) {
  const std::vector<std::string> mistaken{"stages.align.data.sources.1.shards=nowhere/*.tar"};
  fs::create_directories(folder("empty"));
  write_file_atomic(folder("empty") / "train.log", "the shell's");
  for (const char* name : {"a", "empty"})
    EXPECT_TRUE(has(refusal_of([&] { run(name, mistaken); }).first, "there is no folder nowhere"));
  EXPECT_FALSE(fs::exists(folder("a")));
  EXPECT_EQ(content(folder("empty")), (std::map<std::string, std::string>{{"train.log", "the shell's"}}));
  EXPECT_EQ(run("a", {}, {.max_steps = 1}).steps, 1);
  const auto trained = content(folder("a"));
  refusal_of([&] { run("a", mistaken, {.allow_plan_change = true}); });
  for (const auto& [file, text] : trained) EXPECT_TRUE(fs::exists(folder("a") / file)) << file;
}

TEST_F(RunStart, ARunWithoutACheckpointSaysThatItStartsAnew) {
  Faults faults;
  faults.before_pack = [](const std::string&, int64_t step, HostPack&) {
    if (step == 2) throw std::runtime_error("killed");
  };
  const std::string anew = "the run has no checkpoint to resume from; stage align starts from its first step";
  EXPECT_FALSE(has(stderr_of([&] { EXPECT_ANY_THROW(run("a", {}, {.faults = faults})); }), anew));
  ASSERT_TRUE(StageFolder(folder("a") / "align").steps().empty());
  EXPECT_TRUE(has(stderr_of([&] { run("a", {}, {.max_steps = 1}); }), anew));
  EXPECT_FALSE(has(stderr_of([&] { run("a", {}, {.max_steps = 1}); }), anew));
}

TEST_F(RunStart, ARehearsalSaysWhereTheRunWouldResume) {
  const auto start = [&](const std::vector<std::string>& sets = {}) {
    return planned_start(resolved(sets), {.folder = folder("a")}, registry_);
  };
  EXPECT_TRUE(has(start(), "the run would start at stage align, step 0")) << start();
  EXPECT_FALSE(fs::exists(folder("a")));
  run("a", {}, {.max_steps = 12});
  const auto before = content(folder("a"));
  EXPECT_TRUE(has(start(), "the run would resume at stage instruct, step 2 (")) << start();
  EXPECT_THROW(start({"stages.instruct.optimizer.clip=2"}), Error);
  EXPECT_TRUE(content(folder("a")) == before);
}

TEST_F(RunStart, DataOfOtherContentAreRefused) {
  run("a", {}, {.max_steps = 5});
  const fs::path shard = data() / "text/00000.tar", away = data() / "elsewhere";
  fs::copy(shard.parent_path(), away);
  const std::string elsewhere = fmt::format(R"(stages.align.data.sources.2.text=["{}/*.tar"])", away.string());
  EXPECT_EQ(run("a", {elsewhere}, {.allow_plan_change = true, .max_steps = 1}).steps, 1);
  EXPECT_EQ(run("a", {}, {.allow_plan_change = true, .max_steps = 1}).steps, 1);
  EXPECT_TRUE(events("a").empty()) << "the same data, copied";

  std::string text = read_file(shard);
  const size_t place = text.find("What is");
  ASSERT_NE(place, std::string::npos);
  write_file_atomic(shard, text.replace(place, 4, "Whet"));
  const fs::path checkpoint = StageFolder(folder("a") / "align").of(6);
  for (const bool named : {false, true}) {
    const auto before = content(folder("a"));
    TrainRequest request;
    if (named) request.resume = checkpoint;
    const auto [refusal, said] = refusal_of([&] { run("a", {}, request); });
    EXPECT_TRUE(
        has(refusal, "the data have changed since the first " + std::string(named ? "6" : "7") +
                         " steps of stage 'align', though they are as many samples: " + shard.parent_path().string()))
        << refusal;
    EXPECT_FALSE(has(refusal, "captions")) << refusal;
    const auto after = content(folder("a"));
    for (const auto& [file, bytes] : before) EXPECT_TRUE(file == "log.txt" || after.at(file) == bytes) << file;
  }
  EXPECT_THROW(planned_start(resolved(), {.folder = folder("a")}, registry_), Error);
  EXPECT_EQ(run("a", {}, {.allow_plan_change = true, .max_steps = 1}).steps, 1);
  EXPECT_EQ(events("a").size(), 1u) << "told once";
  EXPECT_EQ(run("a", {}, {.max_steps = 1}).steps, 1) << "the data of now are the run's";
}

} // namespace
} // namespace fvlm::train
