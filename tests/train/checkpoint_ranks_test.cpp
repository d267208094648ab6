// Checkpoints that several ranks write, each a part.
#include "../dist/memory_store.h"
#include "../dist/threads_as_ranks.h"
#include "failing_writes.h"
#include "small_run.h"
#include "train/checkpoint_writer.h"
#include "train/initial_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class CheckpointsOfRanks : public SmallRun {
 protected:
  // The first stage on one rank, as it begins.
  struct Stage {
    explicit Stage(const CheckpointsOfRanks& test, const dist::Ranks* ranks, bool zero)
        : recipe(test.resolved()), description(describe(recipe.plan)), model(make_model(description, 42, {})) {
      registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
      const plan::Stage& stage = recipe.plan.stages[0];
      optimization.emplace(recipe.plan, stage, registry, model->parameters(),
                           groups_of(recipe.plan.model, stage, model->parameters()),
                           ranks ? Sharing::among(*ranks, zero ? 1 : 0, false) : Sharing());
      state.stage = stage.name;
      state.plan_hash = recipe.hash;
      state.step = 7;
    }

    // Numbers of their own at each place of the whole.
    std::map<std::string, at::Tensor> numbered() const {
      const dist::Slice& own = optimization->own_slice();
      std::map<std::string, at::Tensor> numbers;
      for (const auto& [name, values] : optimization->state())
        numbers[name] = at::arange(own.begin, own.end(), values.options()).add_(numbers.empty() ? 0.25 : 0.5);
      return numbers;
    }
    void number() const {
      for (const auto& [name, values] : numbered()) optimization->state().at(name).copy_(values);
    }
    void expect_numbered(const std::string& where) const {
      const auto expected = numbered();
      ASSERT_GE(expected.size(), 2U);
      for (const auto& [name, values] : optimization->state())
        EXPECT_TRUE(at::equal(values, expected.at(name))) << where << ": " << name;
    }
    Snapshot shot(bool is_first = true) const { return snapshot(description, *model, *optimization, state, is_first); }

    recipe::Resolved recipe;
    ModelDescription description;
    std::unique_ptr<model::Model> model;
    Registry registry{RegistryOptions{}};
    std::optional<Optimization> optimization;
    RunState state;
  };

  StageFolder stage_folder() const { return StageFolder(folder("run") / "align"); }
  std::vector<std::string> names_in(const fs::path& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // By `count` ranks with ZeRO or without.
  void write(int64_t count, bool zero, const std::function<void(int64_t rank)>& before_part = {}) {
    test::as_ranks(count, [&](const dist::Ranks& ranks) {
      const Stage stage(*this, &ranks, zero);
      stage.number();
      CheckpointExchange exchange(ranks);
      write_checkpoint(stage_folder().of(7), stage.shot(ranks.is_first()), exchange, [&](int64_t) {
        if (before_part) before_part(ranks.rank());
      });
    });
  }
};

TEST_F(CheckpointsOfRanks, LoadIntoAnyNumberOfRanks) {
  for (const bool zero : {false, true}) {
    write(3, zero);
    const fs::path checkpoint = stage_folder().of(7);
    EXPECT_NO_THROW(verify_checkpoint(checkpoint));
    EXPECT_EQ(names_in(checkpoint / "training_state"),
              (std::vector<std::string>{"checksums.txt", "optimizer-00001-of-00003.safetensors",
                                        "optimizer-00002-of-00003.safetensors", "optimizer-00003-of-00003.safetensors",
                                        "state.json"}));
    const auto load = [&](const dist::Ranks* ranks, bool sharded, const std::string& where) {
      Stage stage(*this, ranks, sharded);
      load_checkpoint(checkpoint, *stage.model, *stage.optimization);
      stage.expect_numbered(where);
    };
    load(nullptr, false, "alone");
    for (const int64_t count : {2, 4})
      test::as_ranks(count, [&](const dist::Ranks& ranks) {
        load(&ranks, true, fmt::format("rank {} of {}", ranks.rank(), count));
        load(&ranks, false, fmt::format("rank {} of {}, whole", ranks.rank(), count));
      });
    StageFolder::remove(checkpoint);
  }
}

TEST_F(CheckpointsOfRanks, OneWithoutASliceIsDamaged) {
  write(3, true);
  const fs::path checkpoint = stage_folder().of(7);
  fs::remove(checkpoint / "training_state" / "optimizer-00002-of-00003.safetensors");
  try {
    verify_checkpoint(checkpoint);
    ADD_FAILURE() << "it is believed";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("optimizer-00002-of-00003.safetensors"));
  }
  Stage stage(*this, nullptr, false);
  EXPECT_THROW(load_checkpoint(checkpoint, *stage.model, *stage.optimization), Error);
}

TEST_F(CheckpointsOfRanks, APartThatADiskDoesNotTakeLeavesNothing) {
  for (const char* part : {"optimizer-00002-of-00002", "optimizer-00001-of-00002", "model.safetensors"}) {
    const FailingWrites disk(DiskFault::full, part, 1, 1 << 30);
    try {
      write(2, false);
      ADD_FAILURE() << part << " was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::output) << error.text();
      EXPECT_THAT(error.text(), HasSubstr("No space left"));
      const bool of_other = std::string(part).find("00002-of") != std::string::npos;
      EXPECT_EQ(error.text().find("rank 1: ") != std::string::npos, of_other) << error.text();
    }
    EXPECT_THAT(names_in(stage_folder().path()), testing::IsEmpty()) << part;
  }
  write(2, false);
  EXPECT_NO_THROW(verify_checkpoint(stage_folder().of(7)));
}

// A writer of each rank, as in training: what one does not write is warned of, and the next one is a new try.
TEST_F(CheckpointsOfRanks, WritersGoOnAfterOneThatFailed) {
  testing::internal::CaptureStderr();
  test::as_ranks(2, [&](const dist::Ranks& ranks) {
    Stage stage(*this, &ranks, true);
    const plan::Checkpoint plan;
    CheckpointWriter writer(plan, &ranks, [&](int64_t step) {
      if (step == 7 && ranks.rank() == 1) throw Error(ErrorKind::output, "the disk is gone");
    });
    writer.write(stage_folder(), stage.shot(ranks.is_first()));
    EXPECT_EQ(writer.wait(), !ranks.is_first()) << "the first one knows";
    stage.state.step = 8;
    writer.write(stage_folder(), stage.shot(ranks.is_first()));
    EXPECT_TRUE(writer.wait());
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("could not be written: rank 1: the disk is gone"));
  EXPECT_EQ(stage_folder().steps(), std::vector<int64_t>{8});
}

// As of adapters whose names on disk are no parameters'.
TEST_F(CheckpointsOfRanks, ADefectOfTheFirstOneEndsTheRun) {
  const Stage stage(*this, nullptr, false);
  const plan::Checkpoint plan;
  CheckpointWriter writer(plan);
  Snapshot shot = stage.shot();
  shot.parameters.erase(shot.parameters.begin());
  testing::internal::CaptureStderr();
  writer.write(stage_folder(), std::move(shot));
  for (const bool again : {false, true}) {
    try {
      if (again)
        writer.write(stage_folder(), stage.shot());
      else
        writer.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::internal);
      EXPECT_THAT(error.text(), HasSubstr("step-000007: the checkpoint cannot be written: map::at"));
    }
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no checkpoint of the stage is on disk yet"));
}

class Exchange : public testing::Test {
 protected:
  CheckpointExchange of(int64_t rank, std::chrono::milliseconds timeout = 60s) {
    CheckpointExchange exchange(std::make_unique<test::MemoryStore>(shared_), rank, 3, timeout,
                                [this] { return failure_; });
    exchange.begin("stage align, step 3");
    return exchange;
  }
  template <class Wait>
  static std::string lost(Wait&& wait) {
    try {
      wait();
    } catch (const LostRank& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped);
      return error.text();
    }
    ADD_FAILURE() << "it waits for nobody";
    return "";
  }
  std::shared_ptr<test::MemoryStore::Shared> shared_ = std::make_shared<test::MemoryStore::Shared>();
  std::optional<std::string> failure_;
};

TEST_F(Exchange, WaitsForTheFolderAndAllParts) {
  CheckpointExchange first = of(0), second = of(1), third = of(2);
  first.announce("/disk/step-000007.partial");
  EXPECT_EQ(second.folder(), "/disk/step-000007.partial");
  second.report("training_state/b", {11, 5});
  third.report("training_state/c", {~uint64_t{0}, 6});
  const WrittenFiles files = first.wait_for_parts();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files.at("training_state/c").hash, ~uint64_t{0});
  EXPECT_EQ(files.at("training_state/b").bytes, 5U);
}

TEST_F(Exchange, NamesWhoeverIsLostOrTakesTooLong) {
  CheckpointExchange first = of(0, 50ms), second = of(1, 50ms);
  EXPECT_THAT(lost([&] { second.folder(); }),
              HasSubstr("rank 0 has not begun the checkpoint of stage align, step 3 within"));
  second.report("training_state/b", {11, 5});
  EXPECT_THAT(lost([&] { first.wait_for_parts(); }),
              HasSubstr("rank 2 has not written its part of the checkpoint of stage align, step 3 within"));
  failure_ = "rank 2 gives no sign of life";
  CheckpointExchange patient = of(0);
  EXPECT_THAT(lost([&] { patient.wait_for_parts(); }), HasSubstr("rank 2 gives no sign of life"));
}

} // namespace
} // namespace fvlm::train
