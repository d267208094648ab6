#include "base/error.h"
#include "data/tokenizer.h"
#include "model/weights/safetensors.h"
#include "small_run.h"

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <regex>
#include <thread>

namespace fvlm::train {
namespace {

class TrainRun : public SmallRun {
 protected:
  // By how much two checkpoints' weights differ at most.
  double distance(const fs::path& left, const fs::path& right) const {
    double most = 0;
    for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors"}) {
      const auto a = Safetensors::open(left / file), b = Safetensors::open(right / file);
      for (const TensorView& view : a.tensors()) {
        const TensorView& other = b.at(view.name);
        const auto* x = reinterpret_cast<const float*>(view.data.data());
        const auto* y = reinterpret_cast<const float*>(other.data.data());
        for (uint64_t i = 0; i < view.elements(); ++i)
          most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
      }
    }
    return most;
  }

  fs::path last(const std::string& run, const std::string& stage) const {
    const StageFolder checkpoints(folder(run) / stage);
    return checkpoints.of(checkpoints.steps().at(checkpoints.steps().size() - 1));
  }

  std::vector<nlohmann::json> events(const std::string& run, const std::string& what) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : metrics(folder(run)))
      if (line["kind"] == "event" && line["what"] == what) found.push_back(line);
    return found;
  }
};

TEST_F(TrainRun, ThreeStagesHandTheModelOnAndLearn) {
  const TrainReport report = run("a");
  EXPECT_FALSE(report.stopped);
  EXPECT_EQ(report.stage, "prefer");
  EXPECT_EQ(report.steps, 10 + 8 + 6);
  const auto lines = metrics(folder("a"));
  std::map<std::string, std::vector<double>> losses;
  for (const auto& line : lines)
    if (line["kind"] == "step") losses[line["stage"]].push_back(line["loss"]);
  EXPECT_EQ(losses["align"].size(), 5u);
  EXPECT_LT(losses["align"].back(), losses["align"].front());
  // What a stage starts from is what the one before it ended with.
  EXPECT_NEAR(losses["prefer"].front(), std::log(2.0), 1e-2);
  EXPECT_EQ(StageFolder(folder("a") / "align").steps(), (std::vector<int64_t>{9, 10}));
  EXPECT_NO_THROW(verify_checkpoint(last("a", "prefer")));
  EXPECT_EQ(run("a").steps, 0) << "all is done already";
}

// The standard error of a run whose every step has a line of metrics.
class TrainSays : public TrainRun {
 protected:
  std::string output(const std::string& name, TrainRequest request = {}) {
    testing::internal::CaptureStderr();
    run(name, {"log_every=1"}, std::move(request));
    return testing::internal::GetCapturedStderr();
  }
  nlohmann::json first_line(const std::string& name) const {
    const std::string text = read_file(folder(name) / "metrics.jsonl");
    return nlohmann::json::parse(text.substr(0, text.find('\n')));
  }
  static int64_t times_in(const std::string& text, const std::string& pattern) {
    const std::regex regex(pattern);
    return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator());
  }
};

TEST_F(TrainSays, ActivePluginsOnceAndTheRestInTheLog) {
  change_recipe("log_every = 2", "log_every = 2, kernels = { attention = { 'missing', 'auto' } }");
  const std::string text = output("a");
  for (const char* line :
       {"Using attention backend: reference \\(ATen, by segment\\); missing refused: no plugin of this name was found",
        "Using kernel backends: reference \\(layernorm, linear, rmsnorm, .*\\)\n", "Using loss backend: reference \\(",
        "Using optimizer backend: reference \\(adamw: ATen\\)\n", "Using precision: fp32\n",
        "Using activation checkpointing: off\n"})
    EXPECT_EQ(times_in(text, line), 1) << line << "\nin\n" << text;
  const auto padding =
      fmt::format("Using packer backend: reference \\(first-fit decreasing\\); first step: 8 sequences -> "
                  "1 pack, padding {:.1f} % \\(without packing [0-9.]+ %\\)\n",
                  100 * first_line("a")["padding_share"].get<double>());
  EXPECT_EQ(times_in(text, padding), 1) << padding << "\nin\n" << text;
  EXPECT_EQ(times_in(text, "score 1"), 0) << text;
  EXPECT_EQ(times_in(read_file(folder("a") / "log.txt"), "debug: kernels linear: reference \\(score 1: ATen\\)"), 1);
}

TEST_F(TrainSays, ResultsCheckpointsAndStageEndsAsTheyCome) {
  const std::string text = output("a");
  EXPECT_EQ(times_in(text, "instruct, step [48]: questions \\(coarse_fine\\): loss [0-9.]+, accuracy [0-9.]+ %; 12 "
                           "samples in "),
            2)
      << text;
  EXPECT_EQ(times_in(text, "checkpoint saved: .*/a/align/step-000003\n"), 1) << text;
  EXPECT_EQ(times_in(text, "align: done, 10 steps, .*80 used, loss of the last step [0-9.]+\n"), 1) << text;
  EXPECT_EQ(times_in(text, "\nalign 1/10 \\(overall 4 %\\)  loss [0-9.]+  lr 2.0e-3  dt .*samples/s .*tokens/s .*eta "),
            1)
      << "8 of 192 samples\n"
      << text;
}

TEST_F(TrainSays, HowLongItWaitsForData) {
  Faults slow;
  slow.before_data = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  const std::string text = output("a", {.stage = "align", .max_steps = 1, .faults = slow});
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex("align 1/10 .*data wait ([0-9]+) %"))) << text;
  EXPECT_EQ(std::stoll(found[1]), std::llround(100 * first_line("a")["data_wait_share"].get<double>())) << text;
}

TEST_F(TrainRun, EvaluatesOnceWhereEveryDividesTheLastStep) {
  const auto evaluated_at = [&](const std::string& name) {
    std::vector<int64_t> steps;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "evaluation" && line["stage"] == "instruct") steps.push_back(line["step"]);
    return steps;
  };
  run("a"); // eight steps, evaluated every fourth
  EXPECT_EQ(evaluated_at("a"), (std::vector<int64_t>{4, 8}));
  EXPECT_TRUE(read_state(last("a", "instruct")).score) << "the last checkpoint is still judged by it";
  // Killed between the evaluation and the end of the stage: its last checkpoint contains the evaluation.
  run("b", {"checkpoint.every=4"}, {.max_steps = 10 + 8});
  run("b", {"checkpoint.every=4"});
  EXPECT_EQ(evaluated_at("b"), (std::vector<int64_t>{4, 8}));
  EXPECT_TRUE(read_state(last("b", "instruct")).score);
}

TEST_F(TrainRun, MetricsHaveAttentionEntropy) {
  run("a");
  for (const auto& line : metrics(folder("a"))) {
    if (line["kind"] != "step") continue;
    ASSERT_TRUE(line.contains("attention_entropy")) << line.dump();
    EXPECT_GT(line["attention_entropy"], 0);
    EXPECT_LE(line["attention_entropy"], std::log(5.0) + 1e-6) << "of the five tokens of a frame";
  }
}

TEST_F(TrainRun, StoppedAnywhereEndsInTheSameBits) {
  run("whole");
  int64_t steps = 0;
  for (int part = 0; part < 40; ++part) { // 24 steps, a few at a time
    const auto report = run("parts", {}, {.max_steps = 1 + part % 3});
    steps += report.steps;
    if (!report.stopped) break;
  }
  EXPECT_EQ(steps, 24);
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainRun, ClosingTerminalStopsItAndClosingPipeDoesNot) {
  run("whole", {}, {.stage = "align"});
  Faults faults;
  faults.before_step = [](const std::string&, int64_t step, model::Parameters&) {
    if (step == 2) std::raise(SIGPIPE);
    if (step == 4) std::raise(SIGHUP), std::raise(SIGHUP); // a shell and the kernel
  };
  const auto report = run("parts", {}, {.stage = "align", .faults = faults});
  EXPECT_TRUE(report.stopped);
  EXPECT_LT(report.steps, 10);
  EXPECT_FALSE(run("parts", {}, {.stage = "align"}).stopped);
  expect_equal_runs("whole", "parts");
  const auto ignored = std::signal(SIGHUP, SIG_IGN);
  EXPECT_FALSE(run("nohup", {}, {.stage = "align", .faults = faults}).stopped);
  std::signal(SIGHUP, ignored);
}

TEST_F(TrainRun, StageByStageWritesWhatTheWholeRunWrites) {
  run("whole", {}, {.replicas = ThreadReplicas::Size{3, 3}});
  for (const char* stage : {"align", "instruct", "prefer"})
    run("parts", {}, {.stage = stage, .replicas = ThreadReplicas::Size{3, 1}});
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainRun, StartOfTheFirstStageIsNoLaterOnesReference) {
  run("start", {}, {.stage = "align"});
  const fs::path from = last("start", "align");
  run("whole", {}, {.from = from});
  run("parts", {}, {.from = from, .max_steps = 10 + 8 + 4});
  run("parts", {}, {.from = from});
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainRun, ResumingWithOtherWeightsIsReported) {
  run("start", {}, {.stage = "align"});
  const StageFolder checkpoints(folder("start") / "align");
  const std::string warning = "not those that it was begun with";
  run("a", {}, {.stage = "prefer", .from = checkpoints.of(9), .max_steps = 2});
  fs::remove(folder("a") / "prefer" / "reference.safetensors"); // as in a run of an earlier version, which kept none
  testing::internal::CaptureStderr();
  run("a", {}, {.stage = "prefer", .from = checkpoints.of(9), .max_steps = 2});
  EXPECT_EQ(testing::internal::GetCapturedStderr().find(warning), std::string::npos);
  testing::internal::CaptureStderr();
  run("a", {}, {.stage = "prefer", .from = checkpoints.of(10), .max_steps = 1});
  EXPECT_NE(testing::internal::GetCapturedStderr().find(warning), std::string::npos);
}

TEST_F(TrainRun, ResumesFromAnEarlierCheckpoint) {
  run("whole");
  run("back");
  run("back", {}, {.resume = StageFolder(folder("back") / "align").of(9), .max_steps = 0});
  EXPECT_TRUE(fs::exists(folder("back") / "align" / "step-000010.aside"));
  EXPECT_TRUE(fs::exists(folder("back") / "prefer" / "step-000006.aside"));
  EXPECT_EQ(run("back").steps, 1 + 8 + 6);
  expect_equal_runs("whole", "back");
}

TEST_F(TrainRun, RefusesAFolderInUseByAnotherProcess) {
  Faults faults;
  faults.before_pack = [&](const std::string&, int64_t step, HostPack&) {
    if (step != 4) return;
    const std::string lines = read_file(folder("a") / "metrics.jsonl");
    try {
      run("a");
      ADD_FAILURE() << "two at once";
    } catch (const Error& error) {
      EXPECT_NE(error.text().find("another process trains into this folder"), std::string::npos) << error.text();
    }
    EXPECT_EQ(read_file(folder("a") / "metrics.jsonl"), lines);
  };
  run("a", {}, {.stage = "align", .faults = faults});
  run("b", {}, {.stage = "align"});
  expect_equal_runs("a", "b");
}

TEST_F(TrainRun, PackSizeChangesNothing) {
  const auto of_samples = [&](const std::string& name, int samples) {
    std::vector<std::string> sets = {"precision=fp32"};
    for (const char* stage : {"align", "instruct", "prefer"})
      sets.push_back(fmt::format("stages.{}.packing.segments={}", stage, samples));
    run(name, sets);
  };
  of_samples("one", 1);
  of_samples("two", 2);
  of_samples("eight", 8);
  for (const char* stage : {"align", "instruct", "prefer"}) {
    EXPECT_LT(distance(last("one", stage), last("eight", stage)), 2e-5) << stage;
    EXPECT_LT(distance(last("two", stage), last("eight", stage)), 2e-5) << stage;
  }
  const auto one = metrics(folder("one")), eight = metrics(folder("eight"));
  ASSERT_EQ(one.size(), eight.size());
  for (size_t i = 0; i < one.size(); ++i)
    if (one[i].contains("loss")) {
      EXPECT_NEAR(one[i]["loss"].get<double>(), eight[i]["loss"].get<double>(), 1e-6) << "line " << i + 1;
    }
}

TEST_F(TrainRun, ReplicasGiveTheSameResultOnAnyThread) {
  run("alone", {}, {.replicas = ThreadReplicas::Size{1, 1}});
  run("in_turns", {}, {.replicas = ThreadReplicas::Size{3, 1}});
  run("at_once", {}, {.replicas = ThreadReplicas::Size{3, 3}});
  expect_equal_runs("in_turns", "at_once");
  EXPECT_LT(distance(last("alone", "align"), last("at_once", "align")), 2e-5);
  EXPECT_GT(distance(last("alone", "align"), last("at_once", "align")), 0) << "it was one learner";
}

TEST_F(TrainRun, NumberOfReplicasIsKept) {
  run("whole", {}, {.replicas = ThreadReplicas::Size{3, 3}});
  run("parts", {}, {.max_steps = 13, .replicas = ThreadReplicas::Size{3, 3}});
  run("parts", {}, {.replicas = ThreadReplicas::Size{2, 1}});
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainRun, NonFiniteLossOrGradientIsNeverApplied) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Faults faults;
  faults.before_pack = [&](const std::string& stage, int64_t step, HostPack& pack) {
    if (stage == "align" && step == 2) pack.normalization = &not_a_number();
  };
  faults.before_step = [&](const std::string& stage, int64_t step, model::Parameters& parameters) {
    if (stage == "align" && step == 5) parameters.at("q_static").gradient.fill_(nan); // one group's
  };
  run("a", {}, {.stage = "align", .faults = faults});
  const auto skipped = events("a", "nonfinite");
  ASSERT_EQ(skipped.size(), 2u);
  EXPECT_EQ(skipped[0]["step"], 3);
  EXPECT_EQ(skipped[1]["step"], 6);
  EXPECT_EQ(metrics(folder("a")).at(4)["skipped_steps"], 2);
  for (const auto& line : metrics(folder("a")))
    if (line["kind"] == "step") {
      EXPECT_TRUE(std::isfinite(line["loss"].get<double>())) << line;
    }
}

TEST_F(TrainRun, ControlIsCalledBehindAStepThatWasNotApplied) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 1, run = function(m, memory)
    if m.loss > 5 then memory.high = (memory.high or 0) + 1 end
    if m.loss ~= m.loss and m.gradient_norm ~= m.gradient_norm and m.samples > 0 then memory.unknown = m.step end
  end },)");
  Faults faults;
  faults.before_pack = [&](const std::string& stage, int64_t step, HostPack& pack) {
    if (stage == "align" && step == 2) pack.normalization = &not_a_number();
  };
  run("a", {"log_every=1"}, {.stage = "align", .faults = faults});
  const auto memory = nlohmann::json::parse(read_state(last("a", "align")).memory);
  EXPECT_EQ(memory["unknown"], 3) << memory;
  EXPECT_EQ(memory["high"], 9) << memory << ": of the steps that were applied";
}

TEST_F(TrainRun, TooManyBadStepsNameTheLastGoodCheckpoint) {
  Faults faults;
  faults.before_step = [&](const std::string&, int64_t step, model::Parameters& parameters) {
    if (step >= 4) parameters.at("q_static").gradient.fill_(std::numeric_limits<float>::infinity());
  };
  try {
    run("a", {"guard.nonfinite_limit=3"}, {.faults = faults});
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::diverged);
    EXPECT_NE(error.text().find("3 steps in a row"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("step-000003"), std::string::npos) << error.text();
  }
  // Without the fault it goes on from there.
  EXPECT_EQ(run("a", {"guard.nonfinite_limit=3"}).steps, 24 - 3);
}

TEST_F(TrainRun, AStageThatDivergesBeforeItsFirstCheckpointSaysSo) {
  Faults faults;
  faults.before_step = [&](const std::string&, int64_t, model::Parameters& parameters) {
    parameters.at("q_static").gradient.fill_(std::numeric_limits<float>::infinity());
  };
  try {
    run("a", {"guard.nonfinite_limit=2"}, {.faults = faults});
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.text().find("none of this stage"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("the stage has no checkpoint yet, and the same command begins it anew"),
              std::string::npos)
        << error.text();
  }
  EXPECT_EQ(run("a", {"guard.nonfinite_limit=2"}).steps, 24);
}

TEST_F(TrainRun, RollsBackOnceForEachCheckpoint) {
  Faults faults;
  int broken = 0;
  faults.before_step = [&](const std::string& stage, int64_t step, model::Parameters& parameters) {
    if (stage != "align" || step < 4 || ++broken > 2) return;
    parameters.at("q_static").gradient.fill_(std::numeric_limits<float>::infinity());
  };
  const auto report =
      run("a", {"guard.nonfinite_limit=2", "guard.rollback=true"}, {.stage = "align", .faults = faults});
  EXPECT_EQ(report.step, 10);
  ASSERT_EQ(events("a", "rollback").size(), 1u);
  EXPECT_EQ(events("a", "rollback")[0]["step"], 6);
}

TEST_F(TrainRun, PackTooLargeForTheMemoryIsSplit) {
  Faults faults;
  faults.before_pack = [](const std::string& stage, int64_t step, HostPack& pack) {
    if (stage == "align" && step >= 3 && pack.samples.size() > 2) throw std::bad_alloc();
  };
  run("whole", {}, {.stage = "align"});
  const auto report = run("cut", {}, {.stage = "align", .faults = faults});
  EXPECT_EQ(report.steps, 10);
  EXPECT_EQ(events("cut", "out_of_memory").size(), 2u) << "8 samples to 4, and 4 to 2";
  EXPECT_LT(distance(last("whole", "align"), last("cut", "align")), 2e-5);
  EXPECT_EQ(read_state(last("cut", "align")).split, 4) << "remembered";
  faults.before_pack = [](const std::string&, int64_t, HostPack&) { throw std::bad_alloc(); };
  try {
    run("none", {}, {.faults = faults});
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
  }
}

TEST_F(TrainRun, AnotherPlanHasToBeAllowed) {
  run("a", {}, {.max_steps = 4});
  try {
    run("a", {"stages.align.optimizer.clip=2"});
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("stages.align.optimizer.clip"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("--allow-plan-change"), std::string::npos) << error.text();
  }
  EXPECT_EQ(run("a", {"stages.align.optimizer.clip=2"}, {.allow_plan_change = true}).steps, 20);
}

TEST_F(TrainRun, PlanThatTrainedNothingDoesNotBind) {
  const std::string absent = R"(stages.align.data.sources.1.shards=["/nowhere/a.tar"])";
  EXPECT_THROW(run("a", {absent}), Error);
  EXPECT_EQ(run("a", {}, {.max_steps = 1}).steps, 1) << "the path is right now";
  for (const char* change : {"stages.align.samples=96", "seed=7"}) {
    EXPECT_THROW(run("a", {change}, {.allow_plan_change = true}), Error) << "other data than before";
    EXPECT_EQ(run("a", {}, {.max_steps = 1}).steps, 1) << "the run's own plan is still there";
  }
}

TEST_F(TrainRun, RefusesTokensBeyondTheVocabularyBeforeTheFirstStep) {
  run("a", {}, {.max_steps = 1});
  const fs::path decoder = last("a", "align") / "decoder", file = decoder / "tokenizer.json";
  auto tokenizer = nlohmann::json::parse(read_file(file));
  const size_t tokens = Tokenizer::from_file(file).size();
  tokenizer["added_tokens"].push_back({{"id", tokens}, {"content", "ball"}, {"special", false}});
  write_file_atomic(file, tokenizer.dump());
  const std::vector<std::string> sets = {"model.decoder=" + decoder.string()};
  for (const bool rehearsed : {true, false}) {
    try {
      if (rehearsed)
        rehearse(resolved(sets), {.folder = folder("b")}, registry_);
      else
        run("b", sets);
      FAIL() << "it was not missed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_EQ(error.what(), fmt::format("the tokenizer has {} tokens, the decoder {}", tokens + 1, tokens));
      EXPECT_EQ(error.where(), decoder.string());
    }
  }
}

TEST_F(TrainRun, FrozenGroupsStayUnchanged) {
  run("a", {}, {.stage = "align"});
  const std::vector<std::string> sets = {R"(stages.instruct.freeze=["vision","decoder"])"};
  run("b", sets, {.stage = "instruct", .from = last("a", "align")});
  for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors"})
    EXPECT_TRUE(read_file(last("a", "align") / file) == read_file(last("b", "instruct") / file)) << file;
  EXPECT_GT(distance(last("a", "align"), last("b", "instruct")), 1e-4) << "the connector learns";
}

TEST_F(TrainRun, ControlActsIsJournaledAndReplayed) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.calls = (memory.calls or 0) + 1
    if memory.calls == 2 then return { fvlm.scale_lr(0.5), fvlm.save() } end
    if memory.calls == 4 then return fvlm.stop_stage() end
  end },)");
  const auto report = run("whole", {}, {.stage = "align"});
  EXPECT_EQ(report.step, 8);
  EXPECT_EQ(read_state(last("whole", "align")).rate_scale, 0.5);
  EXPECT_EQ(split(read_file(folder("whole") / "journal.jsonl"), '\n').size(), 4u + 1);
  for (int part = 0; part < 9; ++part)
    if (!run("parts", {}, {.stage = "align", .max_steps = 1}).stopped) break;
  expect_equal_runs("whole", "parts");
}

TEST_F(TrainRun, ControlOfAnotherPlanIsCalledAgain) {
  const std::string first = "samples = 80, control = { every = 2, run = function() return fvlm.scale_lr(0.5) end },";
  change_recipe("samples = 80,", first);
  run("a", {}, {.stage = "align", .max_steps = 5});
  const fs::path third = StageFolder(folder("a") / "align").of(3);
  change_recipe(first, "samples = 80, control = { every = 4, run = function() return fvlm.stop_stage() end },");
  EXPECT_EQ(run("a", {}, {.stage = "align", .resume = third, .allow_plan_change = true}).step, 4);
  EXPECT_EQ(read_state(last("a", "align")).rate_scale, 0.5) << "of the second step, which came before";
}

TEST_F(TrainRun, MuonStepsMatricesAndAdamWTheRest) {
  change_recipe("described.optimizer or fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }",
                "fvlm.muon { lr = 0.02, others = { lr = 2e-3 } }");
  run("whole", {}, {.stage = "align"});
  const auto state = Safetensors::open(last("whole", "align") / "training_state" / "optimizer.safetensors");
  EXPECT_TRUE(state.find("muon.momentum"));
  EXPECT_TRUE(state.find("adamw.v"));
  EXPECT_FALSE(state.find("adamw.m")) << "it is in the momentum's arena, where that has nothing";
  run("parts", {}, {.stage = "align", .max_steps = 5});
  run("parts", {}, {.stage = "align"});
  expect_equal_runs("whole", "parts");
}

} // namespace
} // namespace fvlm::train
