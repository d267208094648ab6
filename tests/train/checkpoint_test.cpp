#include "base/error.h"
#include "base/random.h"
#include "failing_writes.h"
#include "model/weights/safetensors.h"
#include "small_run.h"
#include "train/checkpoint_writer.h"
#include "train/initial_model.h"

#include <fstream>
#include <gmock/gmock.h>
#include <sys/resource.h>

namespace fvlm::train {
namespace {

class Checkpoints : public SmallRun {
 protected:
  // Of the first stage as it begins.
  Snapshot made() {
    const auto recipe = resolved();
    const plan::Stage& stage = recipe.plan.stages[0];
    const auto description = describe(recipe.plan);
    const auto model = make_model(description, 42, {});
    const Optimization optimization(recipe.plan, stage, registry_, model->parameters(),
                                    groups_of(recipe.plan.model, stage, model->parameters()));
    RunState state;
    state.stage = "align";
    state.plan_hash = recipe.hash;
    state.step = 7;
    return snapshot(description, *model, optimization, state);
  }
};

TEST_F(Checkpoints, AnyFlippedBitIsFound) {
  const fs::path checkpoint = folder("run") / "align" / "step-000007";
  write_checkpoint(checkpoint, made());
  ASSERT_NO_THROW(verify_checkpoint(checkpoint));
  const auto files = content(checkpoint);
  // The same number of bits of each file, spread over its bytes.
  const RandomStream random(1, "bits");
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const auto& [name, bytes] : files) names.push_back(name);
  int64_t found = 0;
  for (uint64_t flip = 0; flip < 1000; ++flip) {
    const std::string& name = names[flip % names.size()];
    const std::string& bytes = files.at(name);
    if (bytes.empty()) {
      ++found;
      continue;
    }
    const auto place = static_cast<std::streamoff>(random.bits(2 * flip) % bytes.size());
    const auto bit = static_cast<char>(1 << (random.bits(2 * flip + 1) % 8));
    std::fstream file(checkpoint / name, std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](char byte) {
      file.seekp(place);
      file.put(byte);
      file.flush();
    };
    put(static_cast<char>(bytes[static_cast<size_t>(place)] ^ bit));
    try {
      verify_checkpoint(checkpoint);
      ADD_FAILURE() << name << ", byte " << place << " of " << bytes.size() << " was believed";
    } catch (const Error& error) {
      const bool names_it = name.ends_with("checksums.txt") || error.text().find(name) != std::string::npos;
      EXPECT_TRUE(names_it) << error.text() << "\n" << name;
      ++found;
    }
    put(bytes[static_cast<size_t>(place)]);
  }
  EXPECT_EQ(found, 1000);
  EXPECT_NO_THROW(verify_checkpoint(checkpoint)) << "all bits are back";
}

TEST_F(Checkpoints, MissingOrForeignFileIsFound) {
  const fs::path checkpoint = folder("run") / "step-000007";
  write_checkpoint(checkpoint, made());
  for (const auto& [name, bytes] : content(checkpoint)) {
    fs::rename(checkpoint / name, scratch_.path() / "away");
    EXPECT_THROW(verify_checkpoint(checkpoint), Error) << name;
    fs::rename(scratch_.path() / "away", checkpoint / name);
  }
  write_file_atomic(checkpoint / "vision" / "other.json", "{}");
  EXPECT_THROW(verify_checkpoint(checkpoint), Error);
}

// Fails each call of writing a checkpoint, one after the other.
class FailingDisk : public Checkpoints, public testing::WithParamInterface<DiskFault> {};

TEST_P(FailingDisk, AtAnyCallLeavesTheLastGoodCheckpointOnly) {
  const auto shot = made();
  const StageFolder stage(folder("run") / "align");
  write_checkpoint(stage.of(3), shot);
  int64_t calls = 0, failures = 0;
  for (;; ++calls) {
    bool written = true;
    {
      const FailingWrites disk(GetParam(), "/step-000007", calls + 1);
      try {
        write_checkpoint(stage.of(7), shot);
      } catch (const std::exception&) {
        written = false;
        ++failures;
      }
      if (FailingWrites::failed() == 0) break;
    }
    ASSERT_NO_THROW(verify_checkpoint(stage.of(3))) << "call " << calls;
    if (written) {
      ASSERT_NO_THROW(verify_checkpoint(stage.of(7))) << "call " << calls;
    }
    EXPECT_EQ(stage.newest(), written || fs::exists(stage.of(7)) ? 7 : 3) << "call " << calls;
    StageFolder::remove(stage.of(7));
    for (const auto& entry : fs::directory_iterator(stage.path()))
      EXPECT_EQ(entry.path().filename(), "step-000003") << "call " << calls;
  }
  EXPECT_GT(calls, GetParam() == DiskFault::short_write ? 8 : 40);
  EXPECT_EQ(failures, GetParam() == DiskFault::short_write ? 0 : calls);
}

INSTANTIATE_TEST_SUITE_P(All, FailingDisk,
                         testing::Values(DiskFault::full, DiskFault::failing, DiskFault::short_write));

TEST_F(Checkpoints, OneIsThereWhileAnotherTakesItsPlace) {
  const auto shot = made();
  const StageFolder stage(folder("run") / "align");
  write_checkpoint(stage.of(7), shot);
  StageFolder::make_room(stage.of(7)); // and here the process is killed
  EXPECT_THAT(stage.steps(), testing::IsEmpty());
  stage.tidy();
  EXPECT_EQ(stage.newest(), 7);
  StageFolder::make_room(stage.of(7));
  write_checkpoint(stage.of(7), shot); // or here
  stage.tidy();
  EXPECT_EQ(stage.newest(), 7);
  EXPECT_EQ(std::distance(fs::directory_iterator(stage.path()), fs::directory_iterator()), 1) << "the old one is gone";
}

TEST_F(Checkpoints, OneStaysWhereItsSuccessorCannotBeWritten) {
  const StageFolder stage(folder("run") / "align");
  const plan::Checkpoint plan;
  CheckpointWriter writer(plan);
  writer.write(stage, made());
  ASSERT_TRUE(writer.wait());
  const auto before = content(stage.of(7));
  {
    const FailingWrites disk(DiskFault::full, "/step-000007", 1, 1 << 30);
    writer.write(stage, made());
    EXPECT_FALSE(writer.wait());
  }
  EXPECT_EQ(stage.newest(), 7);
  EXPECT_EQ(content(stage.of(7)), before);
}

TEST_F(Checkpoints, RunContinuesWhereOneCannotBeWritten) {
  run("whole", {}, {.stage = "align"});
  {
    const FailingWrites disk(DiskFault::full, "/step-000006", 1, 1 << 30);
    run("full", {}, {.stage = "align"});
    EXPECT_GT(FailingWrites::failed(), 0);
  }
  EXPECT_EQ(StageFolder(folder("full") / "align").steps(), (std::vector<int64_t>{9, 10}));
  expect_equal_runs("whole", "full");
}

// The newest one and the best stay.
TEST_F(Checkpoints, OlderOnesMakeRoomOnAFullDisk) {
  const StageFolder stage(folder("run") / "align");
  plan::Checkpoint plan;
  plan.keep_last = 5;
  CheckpointWriter writer(plan);
  const auto write = [&](int64_t step) {
    auto shot = made();
    shot.state.step = step;
    writer.write(stage, shot);
    return writer.wait();
  };
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(write(step));
  {
    const FailingWrites disk(DiskFault::full, "/step-000004", 1);
    EXPECT_TRUE(write(4));
  }
  EXPECT_EQ(stage.steps(), (std::vector<int64_t>{3, 4}));
  for (const DiskFault fault : {DiskFault::full, DiskFault::failing}) {
    const FailingWrites disk(fault, "/step-000005", 1, fault == DiskFault::full ? 1 << 30 : 1);
    EXPECT_FALSE(write(5));
    EXPECT_EQ(stage.newest(), 4);
  }
  EXPECT_EQ(stage.steps(), (std::vector<int64_t>{4}));
}

TEST_F(Checkpoints, RunContinuesWhereTheJournalCannotBeWritten) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.calls = (memory.calls or 0) + 1
    if memory.calls == 2 then return fvlm.scale_lr(0.5) end
  end },)");
  run("whole", {}, {.stage = "align"});
  for (const auto fault : {DiskFault::full, DiskFault::short_write}) {
    {
      const FailingWrites disk(fault, "/journal.jsonl", 2, 2);
      run("full", {}, {.stage = "align"});
      EXPECT_EQ(FailingWrites::failed(), 2);
    }
    expect_equal_runs("whole", "full");
    EXPECT_EQ(read_file(folder("full") / "journal.jsonl"), read_file(folder("whole") / "journal.jsonl"));
    fs::remove_all(folder("full"));
  }
}

TEST_F(Checkpoints, AStageEndsOnlyWithItsLastOneOnDisk) {
  run("whole");
  std::string said;
  {
    const FailingWrites disk(DiskFault::failing, "/align/step-000010", 1, 2); // for a moment
    testing::internal::CaptureStderr();
    EXPECT_FALSE(run("full").stopped);
    said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(FailingWrites::failed(), 2);
  }
  EXPECT_NE(said.find("trying again in"), std::string::npos) << said;
  EXPECT_EQ(read_state(StageFolder(folder("full") / "align").of(10)).stage_done, true);
  expect_equal_runs("whole", "full");
}

TEST_F(Checkpoints, AStageWhoseLastOneStaysOffTheDiskStopsTheRun) {
  run("whole");
  {
    const FailingWrites disk(DiskFault::failing, "/align/step-000010", 1, 1 << 30);
    try {
      run("full", {}, {.write_patience = std::chrono::milliseconds(0)});
      FAIL() << "it went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped);
      EXPECT_NE(error.text().find("Input/output error"), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("resumes from " + StageFolder(folder("full") / "align").of(9).string()),
                std::string::npos)
          << error.text();
    }
  }
  EXPECT_FALSE(fs::exists(folder("full") / "instruct")) << "it went on into the next stage";
  EXPECT_EQ(run("full").steps, 1 + 8 + 6);
  expect_equal_runs("whole", "full");
}

TEST_F(Checkpoints, AreWrittenWhereShownSamplesCannotBe) {
  const std::vector<std::string> shows = {"stages.instruct.evaluation.sets.questions.show=2"};
  run("whole", shows);
  ASSERT_TRUE(fs::exists(folder("whole") / "instruct/show/questions/000.json"));
  std::string said;
  {
    const FailingWrites disk(DiskFault::full, "/show/", 1, 1 << 30);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(run("full", shows).stopped);
    said = testing::internal::GetCapturedStderr();
    EXPECT_GT(FailingWrites::failed(), 0);
  }
  EXPECT_NE(said.find("no samples are shown: "), std::string::npos) << said;
  expect_equal_runs("whole", "full");
}

TEST_F(Checkpoints, AFullDiskThatNeverTookOneIsToldSo) {
  const FailingWrites disk(DiskFault::full, "/align/step-", 1, 1 << 30);
  testing::internal::CaptureStderr();
  try {
    run("full", {}, {.write_patience = std::chrono::milliseconds(0)});
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("begins the stage 'align' anew, which has no checkpoint yet"), std::string::npos)
        << error.text();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no checkpoint of the stage is on disk yet"), std::string::npos) << said;
  EXPECT_EQ(said.find("the newest on disk"), std::string::npos) << said;
}

// With the usual patience: no other try is made.
TEST_F(Checkpoints, BeyondTheLimitOfFilesAreNotTriedAgain) {
  run("whole");
  {
    const FailingWrites disk(DiskFault::limited, "/align/step-000010", 1, 1 << 30);
    testing::internal::CaptureStderr();
    try {
      run("full");
      ADD_FAILURE() << "it went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped);
      EXPECT_NE(error.text().find("ulimit -f"), std::string::npos) << error.text();
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("trying again in"), std::string::npos) << said;
  }
  EXPECT_EQ(run("full").steps, 1 + 8 + 6);
  expect_equal_runs("whole", "full");
}

TEST_F(Checkpoints, AreWithinTheLimitOfFilesBeforeTheFirstStep) {
  rlimit whole{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  const rlimit small{64 << 10, whole.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  try {
    run("a", {}, {.stage = "align"});
    ADD_FAILURE() << "it began";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::output);
    EXPECT_NE(error.text().find("this process may write files of 64.0 KiB at most"), std::string::npos) << error.text();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0);
  EXPECT_FALSE(fs::exists(folder("a"))) << "nothing has begun";
}

TEST_F(Checkpoints, NeedRoomOnTheDiskBeforeTheFirstStep) {
  run("start", {}, {.stage = "align", .max_steps = 1});
  uint64_t bytes = 0; // of all tensors in the files of one, of which a few are no part of the model
  const fs::path checkpoint = StageFolder(folder("start") / "align").of(1);
  for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors",
                           "training_state/optimizer.safetensors"})
    for (const auto file_of = Safetensors::open(checkpoint / file); const TensorView& view : file_of.tensors())
      bytes += view.data.size();
  {
    const FreeSpace disk(bytes / 2);
    try {
      run("a", {}, {.stage = "align"});
      FAIL() << "it began";
    } catch (const Error& error) {
      EXPECT_NE(error.text().find("a checkpoint takes"), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("align"), std::string::npos) << error.text();
    }
    EXPECT_FALSE(fs::exists(folder("a"))) << "nothing has begun";
  }
  const auto warned = [&](uint64_t room) {
    const FreeSpace disk(room);
    testing::internal::CaptureStderr();
    run(std::to_string(room), {}, {.stage = "align", .max_steps = 1});
    return testing::internal::GetCapturedStderr().find("are free on this disk") != std::string::npos;
  };
  EXPECT_TRUE(warned(2 * bytes)) << "two are kept, and a third is written before one goes";
  EXPECT_FALSE(warned(3 * bytes));
}

TEST_F(Checkpoints, OfAdaptersNeedNoRoomForTheirBase) {
  run("base", {}, {.stage = "align", .max_steps = 1});
  std::string text = read_file(recipe());
  const size_t begin = text.find("  model = fvlm.model {"), end = text.find("  checkpoint = ");
  text.replace(begin, end - begin,
               "  model = fvlm.model { directory = \"" + StageFolder(folder("base") / "align").of(1).string() +
                   "\", image_size = 16, adapters = fvlm.lora { rank = 2 } },\n");
  write_file_atomic(recipe(), text);
  run("start", {}, {.stage = "align", .max_steps = 1});
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(StageFolder(folder("start") / "align").of(1)))
    if (entry.path().extension() == ".safetensors")
      for (const auto file = Safetensors::open(entry.path()); const TensorView& view : file.tensors())
        bytes += view.data.size();
  const FreeSpace disk(bytes);
  EXPECT_EQ(run("a", {}, {.stage = "align", .max_steps = 1}).steps, 1);
}

TEST_F(Checkpoints, DamagedNewestOneFallsBackToThePrevious) {
  run("whole", {}, {.stage = "align"});
  run("hurt", {}, {.stage = "align", .max_steps = 7});
  const StageFolder stage(folder("hurt") / "align");
  ASSERT_EQ(stage.steps(), (std::vector<int64_t>{6, 7}));
  fs::resize_file(stage.of(7) / "connector.safetensors", 100);
  EXPECT_EQ(run("hurt", {}, {.stage = "align"}).steps, 4) << "from step 6";
  EXPECT_TRUE(fs::exists(stage.path() / "step-000007.damaged"));
  expect_equal_runs("whole", "hurt");
}

TEST_F(Checkpoints, BestAreKeptBesidesTheLast) {
  const StageFolder stage(folder("run") / "align");
  auto shot = made();
  for (const auto& [step, score] : std::map<int64_t, double>{{1, 0.1}, {2, 0.9}, {3, 0.3}, {4, 0.2}}) {
    shot.state.score = score;
    write_checkpoint(stage.of(step), shot);
  }
  stage.prune(1, 1);
  EXPECT_EQ(stage.steps(), (std::vector<int64_t>{2, 4}));
}

TEST_F(Checkpoints, AScoreThatIsNoNumberIsNoneOfTheBest) {
  const StageFolder stage(folder("run") / "align");
  auto shot = made();
  for (const auto& [step, score] : std::map<int64_t, double>{{1, 0.1}, {2, std::nan("")}, {3, 0.05}}) {
    shot.state.score = score;
    write_checkpoint(stage.of(step), shot);
  }
  stage.prune(1, 1);
  EXPECT_EQ(stage.steps(), (std::vector<int64_t>{1, 3}));
}

TEST_F(Checkpoints, StateRoundTrips) {
  RunState state = made().state;
  state.interval = {{"loss", 1.0 / 3}, {"steps", 2}, {"gradient_norm", std::numeric_limits<double>::infinity()}};
  state.rates = {{"lr.decoder", 1.0 / 7}};
  state.memory = R"({"calls":3})";
  state.score = 0.7;
  state.guard = {1.5, 20, 1, 2, 100};
  const RunState back = RunState::parse(state.text(), "here");
  EXPECT_EQ(back.text(), state.text());
  EXPECT_THROW(RunState::parse("{}", "here"), Error);
  EXPECT_THROW(RunState::parse("[1", "here"), Error);
}

// Earlier versions called them "tokens", of the stage and in the sums since the last line.
TEST_F(Checkpoints, AStateOfAnEarlierVersionHasItsTextTokens) {
  RunState state = made().state;
  state.samples = 16;
  state.text_tokens = 321;
  state.frames = 64;
  state.interval = {{"frames", 8}, {"text_tokens", 40}, {"term.next_token", 2}};
  std::string earlier = state.text();
  int renamed = 0;
  for (size_t at = 0; (at = earlier.find("\"text_tokens\"", at)) != earlier.npos; ++renamed)
    earlier.replace(at, 13, "\"tokens\"");
  EXPECT_EQ(renamed, 2);
  const RunState back = RunState::parse(earlier, "here");
  EXPECT_EQ(back.text(), state.text());
  EXPECT_EQ(back.decoder_tokens(2), 321 + 2 * 64);
}

} // namespace
} // namespace fvlm::train
