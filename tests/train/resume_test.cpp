// What a run resumes from, and defects that must not prevent it.
#include "../weights/format_1.h"
#include "base/error.h"
#include "base/hash.h"
#include "model/weights/safetensors_writer.h"
#include "small_run.h"
#include "train/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <span>

namespace fvlm::train {
namespace {

class Resume : public SmallRun {
 protected:
  std::string stderr_of(const std::function<void()>& work) const {
    testing::internal::CaptureStderr();
    work();
    return testing::internal::GetCapturedStderr();
  }

  fs::path events_of(const std::string& name) const {
    for (const auto& entry : fs::directory_iterator(folder(name)))
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
    return {};
  }

  // The last stage: those before it may lack what the test took away.
  void expect_equal_prefer(const std::string& name) const {
    const fs::path one = StageFolder(folder("whole") / "prefer").of(6),
                   other = StageFolder(folder(name) / "prefer").of(6);
    for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors",
                             "training_state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(one / file) == read_file(other / file)) << name << ": " << file;
    EXPECT_EQ(metrics(folder("whole")), metrics(folder(name))) << name;
  }

  // Steps of the lines of kind "step".
  std::vector<int64_t> logged(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") steps.push_back(line["step"]);
    return steps;
  }
};

TEST_F(Resume, NeedsNoLogs) {
  run("whole", {}, {.stage = "align"});
  for (const bool removed : {true, false}) {
    const std::string name = removed ? "removed" : "shortened";
    run(name, {}, {.stage = "align", .max_steps = 5});
    const fs::path lines = folder(name) / "metrics.jsonl", events = events_of(name);
    if (removed) {
      fs::remove(lines);
      fs::remove(events);
    } else {
      fs::resize_file(lines, fs::file_size(lines) - 1);
      fs::resize_file(events, fs::file_size(events) - 1);
    }
    const std::string output = stderr_of([&] { EXPECT_EQ(run(name, {}, {.stage = "align"}).steps, 5); });
    EXPECT_NE(output.find("metrics.jsonl"), std::string::npos) << output;
    EXPECT_NE(output.find("TensorBoard"), std::string::npos) << output;
    EXPECT_EQ(logged(name), removed ? (std::vector<int64_t>{6, 8, 10}) : (std::vector<int64_t>{2, 6, 8, 10}));
    const fs::path last = StageFolder(folder(name) / "align").of(10);
    EXPECT_TRUE(read_file(last / "connector.safetensors") ==
                read_file(StageFolder(folder("whole") / "align").of(10) / "connector.safetensors"));
  }
}

// A change of one bit in the middle of a file.
void damage(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes.at(bytes.size() / 2) ^= 1;
  write_file_atomic(file, bytes);
}

// Rewrites a checkpoint's checksums after a test changed a file.
void sign(const fs::path& checkpoint) {
  const fs::path list = checkpoint / "training_state" / "checksums.txt";
  std::string lines;
  for (const std::string& line : split(read_file(list), '\n'))
    if (const auto words = split(line, ' '); words.size() == 3) {
      const std::string bytes = read_file(checkpoint / words[2]);
      lines += fmt::format("{:016x} {} {}\n", xxh64(bytes), bytes.size(), words[2]);
    }
  write_file_atomic(list, lines + fmt::format("{:016x}\n", xxh64(lines)));
}

// Makes a run folder look like that of an earlier version: without an id, and without stages' copies of the reference.
void make_old(const fs::path& run) {
  fs::remove(run / "run.json");
  for (const char* stage : {"align", "instruct", "prefer"}) {
    const StageFolder folder(run / stage);
    for (const char* name : {"latest", "best", "reference.safetensors"}) fs::remove(folder.path() / name);
    for (const int64_t step : folder.steps()) {
      const fs::path file = folder.of(step) / "training_state" / "state.json";
      auto state = nlohmann::json::parse(read_file(file));
      state.erase("run_id");
      write_file_atomic(file, state.dump(1) + "\n");
      sign(folder.of(step));
    }
  }
}

void copy_folder(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

TEST_F(Resume, NeedsNoWholeJournal) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.calls = (memory.calls or 0) + 1
    if memory.calls == 2 then return fvlm.scale_lr(0.5) end
  end },)");
  run("whole", {}, {.stage = "align"});
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.rfind(from), from.size(), to);
  };
  // As earlier versions wrote them.
  const auto without_hashes = [](const std::string& text) {
    return std::regex_replace(text, std::regex(R"(,"hash":"[0-9a-f]{16}"\})"), "}");
  };
  const auto in_old = [&](const std::string& from, const std::string& to) {
    return [=](const std::string& text) { return changed(without_hashes(text), from, to); };
  };
  const auto in_new = [&](const std::string& from, const std::string& to) {
    return [=](const std::string& text) { return changed(text, from, to); };
  };
  const std::vector<std::pair<std::string, std::function<std::string(const std::string&)>>> damages = {
      {"no_json", [](const auto& text) { return "z" + text.substr(1); }},
      {"no_object", [](const auto& text) { return "[1]\n" + text; }},
      {"no_list", in_old(R"("actions":[{"scale_lr":0.5}])", R"("actions":5)")},
      {"no_action", in_old(R"({"scale_lr":0.5})", R"("stop_stags")")},
      {"no_factor", in_old(R"({"scale_lr":0.5})", R"({"scale_lr":"a"})")},
      {"no_table", in_old(R"("memory":{"calls":2})", R"("memory":2)")},
      {"no_plan", in_old(R"("plan")", R"("plao")")},
      // One bit each.
      {"other_factor", in_new(R"("scale_lr":0.5)", R"("scale_lr":0.7)")},
      {"other_memory", in_new(R"("calls":2)", R"("calls":3)")},
      {"other_step", in_new(R"("step":4)", R"("step":6)")},
      {"other_stage", in_new(R"("stage":"align")", R"("stage":"alicn")")},
      {"other_hash", in_new(R"("hash":)", R"("hasi":)")},
  };
  for (const auto& [name, damaged] : damages) {
    run(name, {}, {.stage = "align", .max_steps = 5});
    const StageFolder stage(folder(name) / "align");
    const fs::path journal = folder(name) / "journal.jsonl";
    write_file_atomic(journal, damaged(read_file(journal)));
    const std::string output =
        stderr_of([&] { EXPECT_EQ(run(name, {}, {.stage = "align", .resume = stage.of(3)}).step, 10) << name; });
    EXPECT_NE(output.find("journal.jsonl: 1 line cannot be used, the first is line "), std::string::npos)
        << name << output;
    EXPECT_TRUE(read_file(stage.of(10) / "connector.safetensors") ==
                read_file(StageFolder(folder("whole") / "align").of(10) / "connector.safetensors"))
        << name;
  }
}

TEST_F(Resume, UsesAJournalWithoutHashes) {
  change_recipe("samples = 80,",
                "samples = 80, control = { every = 4, run = function(m) return fvlm.scale_lr(0.5) end },");
  run("whole", {}, {.stage = "align"});
  run("old", {}, {.stage = "align", .max_steps = 5});
  const StageFolder stage(folder("old") / "align");
  const fs::path journal = folder("old") / "journal.jsonl";
  write_file_atomic(
      journal, std::regex_replace(read_file(journal), std::regex(R"(0\.5(.*),"hash":"[0-9a-f]{16}"\})"), "0.25$1}"));
  const std::string output =
      stderr_of([&] { EXPECT_EQ(run("old", {}, {.stage = "align", .resume = stage.of(3)}).step, 10); });
  EXPECT_EQ(output.find("cannot be used"), std::string::npos) << output;
  EXPECT_FALSE(read_file(stage.of(10) / "connector.safetensors") ==
               read_file(StageFolder(folder("whole") / "align").of(10) / "connector.safetensors"))
      << "it says 0.25, as no call would";
}

TEST_F(Resume, OfAnEarlierVersionsRunEndsInTheSameBits) {
  run("whole");
  for (const int64_t steps : {5, 10 + 8 + 2}) {
    const std::string name = fmt::format("old-{}", steps);
    run(name, {}, {.max_steps = steps});
    make_old(folder(name));
    EXPECT_EQ(run(name).steps, 24 - steps);
    expect_equal_runs("whole", name);
    EXPECT_EQ(read_state(StageFolder(folder(name) / "prefer").of(6)).run_id, RunRecord::read(folder(name)).id);
  }
}

TEST_F(Resume, RefusesTheCheckpointOfAnotherRun) {
  const std::string rate = "stages.align.optimizer.lr.decoder=5e-2";
  run("a", {}, {.max_steps = 5});
  run("same", {}, {.max_steps = 7});
  run("other", {rate}, {.max_steps = 7});
  for (const char* foreign : {"same", "other"}) {
    const fs::path laid = folder("a") / "align" / "step-000007";
    copy_folder(folder(foreign) / "align" / "step-000007", laid);
    for (const bool allowed : {false, true}) try {
        run("a", {}, {.allow_plan_change = allowed});
        ADD_FAILURE() << foreign << " was resumed";
      } catch (const Error& error) {
        EXPECT_NE(error.text().find("belongs to another run"), std::string::npos) << error.text();
        EXPECT_EQ(error.where(), laid.string());
      }
    fs::remove_all(laid);
  }
  EXPECT_THROW(run("a", {}, {.resume = folder("same") / "align" / "step-000007"}), Error);
  run("whole");
  EXPECT_EQ(run("a").steps, 24 - 5) << "nothing of it was touched";
  expect_equal_runs("whole", "a");
}

// Earlier versions kept moments of Muon and of AdamW apart, each over the whole arena.
TEST_F(Resume, ReadsMomentsThatAnEarlierVersionKeptApart) {
  change_recipe("described.optimizer or fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }",
                "fvlm.muon { lr = 0.02, others = { lr = 2e-3 } }");
  run("whole", {}, {.stage = "align"});
  run("old", {}, {.stage = "align", .max_steps = 5});
  const fs::path checkpoint = StageFolder(folder("old") / "align").of(5);
  const fs::path file = checkpoint / "training_state" / "optimizer.safetensors";
  std::map<std::string, std::vector<float>> moments;
  int64_t elements = 0;
  {
    const auto state = Safetensors::open(file);
    EXPECT_FALSE(state.find("adamw.m")) << "they share an arena now";
    elements = state.at("adamw.v").shape[0];
    for (const char* name : {"muon.momentum", "adamw.v"}) {
      const auto* values = reinterpret_cast<const float*>(state.at(name).data.data());
      moments[name].assign(values, values + elements);
    }
  }
  auto &both = moments.at("muon.momentum"), &first = moments["adamw.m"];
  first.resize(both.size());
  for (size_t i = 0; i < both.size(); ++i)
    if (moments.at("adamw.v")[i] != 0) std::swap(both[i], first[i]);
  EXPECT_GT(std::ranges::count_if(both, [](float value) { return value != 0; }), 0);
  EXPECT_GT(std::ranges::count_if(first, [](float value) { return value != 0; }), 0);
  std::vector<TensorInfo> tensors;
  for (const auto& [name, values] : moments) tensors.push_back({name, DType::f32, {elements}});
  SafetensorsWriter writer(file, tensors);
  for (const TensorInfo& tensor : writer.order()) writer.append(std::as_bytes(std::span(moments.at(tensor.name))));
  writer.commit();
  sign(checkpoint);
  run("old", {}, {.stage = "align"});
  expect_equal_runs("whole", "old");
}

// Checkpoints of earlier versions have no run id.
TEST_F(Resume, RefusesACheckpointOfAPlanThatTheRunNeverHad) {
  run("a", {}, {.max_steps = 5});
  run("other", {"stages.align.optimizer.lr.decoder=5e-2"}, {.max_steps = 7});
  make_old(folder("a"));
  make_old(folder("other"));
  copy_folder(folder("other") / "align" / "step-000007", folder("a") / "align" / "step-000007");
  try {
    run("a");
    FAIL() << "it was resumed";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("a plan that this run was never trained under"), std::string::npos) << error.text();
  }
  EXPECT_EQ(run("a", {}, {.allow_plan_change = true}).steps, 24 - 7) << "as somebody says that he wants it";
}

TEST_F(Resume, RefusesACheckpointInAnothersPlace) {
  run("a", {}, {.max_steps = 5});
  copy_folder(folder("a") / "align" / "step-000005", folder("a") / "align" / "step-000009");
  try {
    run("a");
    FAIL() << "it was resumed";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("the checkpoint of stage 'align', step 5"), std::string::npos) << error.text();
  }
  fs::remove_all(folder("a") / "align" / "step-000009");
  // Files of two checkpoints, with a list that fits them.
  const fs::path mixed = folder("a") / "align" / "step-000005";
  fs::copy_file(folder("a") / "align" / "step-000003" / "fvlm.json", mixed / "fvlm.json",
                fs::copy_options::overwrite_existing);
  sign(mixed);
  try {
    run("a");
    FAIL() << "it was resumed";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("files of two checkpoints"), std::string::npos) << error.text();
  }
}

TEST_F(Resume, FromACheckpointThatListsNoParts) {
  run("whole", {}, {.stage = "align"});
  run("old", {}, {.stage = "align", .max_steps = 5});
  const fs::path checkpoint = folder("old") / "align" / "step-000005";
  write_file_atomic(checkpoint / "fvlm.json", as_format_1(read_file(checkpoint / "fvlm.json")));
  sign(checkpoint);
  EXPECT_EQ(run("old", {}, {.stage = "align"}).steps, 5);
  expect_equal_runs("whole", "old");
}

TEST_F(Resume, NeedsNoRunJson) {
  run("whole", {}, {.stage = "align"});
  for (const bool removed : {true, false}) {
    const std::string name = removed ? "removed" : "damaged";
    run(name, {}, {.stage = "align", .max_steps = 5});
    const std::string id = RunRecord::read(folder(name)).id;
    if (removed)
      fs::remove(folder(name) / "run.json");
    else
      damage(folder(name) / "run.json");
    EXPECT_EQ(run(name, {}, {.stage = "align"}).steps, 5);
    expect_equal_runs("whole", name);
    EXPECT_EQ(RunRecord::read(folder(name)).id, id) << "its checkpoints know it";
  }
}

TEST_F(Resume, OfAPreferenceStageNeedsNoOtherStagesCheckpoint) {
  run("whole");
  for (const char* file : {"connector.safetensors", "decoder/tokenizer_config.json", ""}) {
    const std::string name = std::string("hurt-") + fs::path(file).stem().string();
    run(name, {}, {.max_steps = 10 + 8 + 2});
    const StageFolder earlier(folder(name) / "instruct");
    for (const int64_t step : earlier.steps())
      if (const fs::path checkpoint = earlier.of(step); *file)
        damage(checkpoint / file);
      else
        fs::remove_all(checkpoint);
    EXPECT_EQ(run(name).steps, 4) << file;
    expect_equal_prefer(name);
  }
}

TEST_F(Resume, OfAnEarlierVersionsPreferenceStageNeedsTheWeightsAlone) {
  run("whole");
  run("old", {}, {.max_steps = 10 + 8 + 2});
  make_old(folder("old"));
  damage(StageFolder(folder("old") / "instruct").of(8) / "decoder" / "tokenizer_config.json");
  EXPECT_EQ(run("old").steps, 4);
  expect_equal_prefer("old");
}

TEST_F(Resume, WithoutAnyReferenceSaysWhatHelps) {
  run("whole");
  run("a", {}, {.max_steps = 10 + 8 + 2});
  damage(folder("a") / "prefer" / "reference.safetensors");
  damage(StageFolder(folder("a") / "instruct").of(8) / "connector.safetensors");
  std::string advice;
  try {
    run("a");
    FAIL() << "it was resumed";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("prefer"), std::string::npos) << error.text();
    advice = error.advice();
  }
  const std::string option = "--resume ";
  const size_t path = advice.find(option);
  ASSERT_NE(path, std::string::npos) << advice;
  const fs::path checkpoint =
      advice.substr(path + option.size(), advice.find(' ', path + option.size()) - path - option.size());
  EXPECT_EQ(checkpoint, StageFolder(folder("a") / "instruct").of(6));
  EXPECT_EQ(run("a", {}, {.resume = checkpoint}).steps, 2 + 6);
  expect_equal_runs("whole", "a");
}

TEST_F(Resume, KeepsTheReferenceThatItBeganWith) {
  run("start", {}, {.stage = "align"});
  const StageFolder checkpoints(folder("start") / "align");
  run("whole", {}, {.stage = "prefer", .from = checkpoints.of(9)});
  run("parts", {}, {.stage = "prefer", .from = checkpoints.of(9), .max_steps = 2});
  run("parts", {}, {.stage = "prefer", .from = checkpoints.of(10)});
  expect_equal_runs("whole", "parts");
}

TEST_F(Resume, TrainsTheRestOfAFinishedStageWithMoreSamples) {
  const std::vector<std::string> more = {"stages.align.samples=104"};
  const TrainRequest align = {.stage = "align"}, changed = {.stage = "align", .allow_plan_change = true};
  for (const char* name : {"once", "parts"}) run(name, {}, align);
  EXPECT_THROW(run("once", more, align), Error) << "the plan is another one";
  EXPECT_EQ(run("once", more, changed).steps, 3);
  run("parts", more, {.stage = "align", .allow_plan_change = true, .max_steps = 0});
  for (int part = 0; part < 3; ++part) EXPECT_EQ(run("parts", more, {.stage = "align", .max_steps = 1}).steps, 1);
  EXPECT_EQ(run("parts", more, align).steps, 0);
  expect_equal_runs("once", "parts");
  const RunState state = read_state(StageFolder(folder("once") / "align").of(13));
  EXPECT_EQ(state.samples, 104);
  EXPECT_TRUE(state.stage_done);
  EXPECT_EQ(state.plan_hash, resolved(more).hash);
  int changes = 0;
  for (const auto& line : metrics(folder("once")))
    if (line["kind"] == "event" && line["what"] == "plan_change") {
      ++changes;
      EXPECT_EQ(line["step"], 10);
      EXPECT_NE(line["text"].get<std::string>().find("stages.align.samples: 80 -> 104"), std::string::npos) << line;
    }
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(run("once", more).steps, 8 + 6) << "and the stages behind it";
}

TEST_F(Resume, APlanThatCannotBeTrainedChangesNothing) {
  run("a");
  const auto files = [&] {
    std::map<std::string, std::string> all = content(folder("a"));
    all.erase("log.txt");
    return all;
  };
  const auto before = files();
  const std::string varying = R"(stages.prefer.data.sources.1.weight=[1,2])";
  for (const std::vector<std::string>& sets :
       std::vector<std::vector<std::string>>{{"stages.align.samples=96"},            // others were trained behind it
                                             {"stages.prefer.samples=40"},           // fewer than it has
                                             {"stages.prefer.samples=56", "seed=7"}, // other data
                                             {"stages.prefer.samples=56", varying},  // another order
                                             {"stages.prefer.optimizer.clip=2"}}) {  // nothing to train with it
    try {
      run("a", sets, {.allow_plan_change = true});
      ADD_FAILURE() << sets[0] << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.text();
    }
    EXPECT_TRUE(files() == before) << sets[0];
  }
  EXPECT_EQ(run("a", {"stages.prefer.samples=56"}, {.allow_plan_change = true}).steps, 1);
}

TEST_F(Resume, ShowsAFewDifferencesOfAPlanBehindTheAdvice) {
  run("a", {}, {.max_steps = 1});
  std::vector<std::string> sets = {"seed=7"};
  for (const char* stage : {"align", "instruct", "prefer"})
    for (const char* set :
         {"optimizer.clip=2", "optimizer.eps=1e-7", "batch.samples=4", "data.max_frames=1", "data.max_text_tokens=40"})
      sets.push_back(fmt::format("stages.{}.{}", stage, set));
  try {
    run("a", sets);
    FAIL() << "it went on";
  } catch (const Error& error) {
    const auto lines = split(error.text(), '\n');
    EXPECT_LE(lines.size(), 16u) << error.text();
    EXPECT_NE(lines.at(1).find("--allow-plan-change"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("more: fvlm-engine plan RECIPE --diff"), std::string::npos) << error.text();
  }
}

TEST_F(Resume, LatestAndBestAreLinksThatNobodyTakesForCheckpoints) {
  run("whole");
  run("a", {}, {.max_steps = 10 + 8});
  const fs::path stage = folder("a") / "instruct";
  EXPECT_EQ(fs::read_symlink(stage / "latest"), "step-000008");
  ASSERT_TRUE(fs::is_symlink(stage / "best"));
  const auto score = [&](const fs::path& checkpoint) { return read_state(checkpoint).score.value_or(-1e9); };
  for (const int64_t step : StageFolder(stage).steps())
    EXPECT_LE(score(StageFolder(stage).of(step)), score(stage / "best"));
  EXPECT_FALSE(fs::is_symlink(folder("a") / "align" / "best")) << "nothing was evaluated";
  EXPECT_EQ(StageFolder(stage).steps().back(), 8);
  EXPECT_NO_THROW(verify_checkpoint(stage / "latest"));
  fs::create_directories(folder("a") / "prefer");
  fs::create_directory_symlink("step-000001", folder("a") / "prefer" / ".latest-1"); // a process that was killed
  EXPECT_EQ(run("a", {}, {.resume = folder("a") / "align" / "latest", .max_steps = 0}).steps, 0);
  EXPECT_EQ(fs::read_symlink(folder("a") / "align" / "latest"), "step-000010");
  EXPECT_EQ(fs::read_symlink(stage / "latest"), "step-000000") << "what it led to was put aside";
  EXPECT_EQ(run("a").steps, 8 + 6);
  EXPECT_FALSE(fs::is_symlink(folder("a") / "prefer" / ".latest-1"));
  EXPECT_EQ(fs::read_symlink(folder("a") / "prefer" / "latest"), "step-000006");
  expect_equal_runs("whole", "a");
}

} // namespace
} // namespace fvlm::train
