// Whatever ends a run beside its steps, the steps are kept: evaluations, `control`, data, memory, another rank.
#include "../dist/threads_as_ranks.h"
#include "base/error.h"
#include "fake_runtime.h"
#include "model/weights/safetensors.h"
#include "small_run.h"

#include <cmath>
#include <csignal>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::train {
namespace {

using testing::HasSubstr;

class KeptSteps : public SmallRun {
 protected:
  int64_t newest(const std::string& run, const std::string& stage) const {
    const auto steps = StageFolder(folder(run) / stage).steps();
    return steps.empty() ? 0 : steps.back();
  }

  std::vector<nlohmann::json> events(const std::string& run, const std::string& what) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : metrics(folder(run)))
      if (line["kind"] == "event" && line["what"] == what) found.push_back(line);
    return found;
  }

  std::string mistake(const std::vector<std::string>& sets, TrainRequest request) {
    try {
      run("a", sets, std::move(request));
    } catch (const Error& error) {
      return error.text();
    }
    return "nothing was thrown";
  }
};

TEST_F(KeptSteps, WhereTheLastEvaluationFails) {
  run("whole");
  Faults faults;
  faults.before_evaluation = [](const std::string& stage, int64_t) {
    if (stage == "prefer") throw Error(ErrorKind::data, "the disk with the held-out pairs is gone");
  };
  EXPECT_THAT(mistake({}, {.faults = faults}), HasSubstr("is gone"));
  EXPECT_EQ(newest("a", "prefer"), 6)
      << "all of its steps, of which the fourth and fifth have no checkpoint of their own";
  EXPECT_EQ(run("a").steps, 0) << "the evaluation alone is left";
  expect_equal_runs("whole", "a");
}

TEST_F(KeptSteps, WhereAnEvaluationBetweenStepsFails) {
  run("whole");
  Faults faults;
  faults.before_evaluation = [](const std::string& stage, int64_t step) {
    if (stage == "instruct" && step == 4) throw std::bad_alloc();
  };
  EXPECT_THROW(run("a", {}, {.faults = faults}), std::bad_alloc);
  EXPECT_EQ(newest("a", "instruct"), 4);
  run("a");
  expect_equal_runs("whole", "a");
}

TEST_F(KeptSteps, AStopIsHeardDuringAnEvaluation) {
  run("whole");
  Faults faults;
  faults.before_evaluation = [](const std::string& stage, int64_t) {
    if (stage == "instruct") raise(SIGTERM);
  };
  for (const int64_t step : {4, 8}) { // between steps, and behind the last
    const TrainReport report = run("a", {}, {.faults = faults});
    EXPECT_TRUE(report.stopped);
    EXPECT_EQ(newest("a", "instruct"), step);
    for (const auto& line : metrics(folder("a"))) {
      const bool is_evaluation = line["stage"] == "instruct" && line["kind"] == "evaluation";
      EXPECT_TRUE(!is_evaluation || line["step"] < step) << line;
    }
    Faults once; // the evaluation that was put off, and no other
    once.before_evaluation = [&, step](const std::string& stage, int64_t at) {
      if (stage == "instruct" && at != step) raise(SIGTERM);
    };
    faults = once;
  }
  EXPECT_FALSE(run("a").stopped);
  expect_equal_runs("whole", "a");
}

TEST_F(KeptSteps, WhereControlFails) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 5, run = function(m, memory)
    return m.nothing.there end },)");
  EXPECT_THAT(mistake({"checkpoint.every=100"}, {.stage = "align"}), HasSubstr("small.lua"));
  EXPECT_EQ(newest("a", "align"), 5);
}

// Early stopping, by a function that wants more than the stage can do.
class EarlyStop : public KeptSteps {
 protected:
  EarlyStop() {
    change_recipe("samples = 64,", R"(samples = 64, control = { every = 2, run = function(m, memory)
    local loss = m["evaluation.questions.loss"]
    if loss ~= m["evaluation.questions.coarse_fine.loss"] then error("one mode, two values") end
    memory.losses = memory.losses or {}
    memory.losses[#memory.losses + 1] = loss
    if memory.best and loss > memory.best - 2 then memory.waited = memory.waited + 1
    else memory.best, memory.waited = loss, 0 end
    if memory.waited == 2 then return fvlm.stop_stage() end
  end },)");
    change_recipe("evaluation = { every = 4,", "evaluation = { every = 2,");
  }

  const TrainRequest alone_{.stage = "instruct", .from = first()};
  fs::path first() {
    run("base", {}, {.stage = "align"});
    return StageFolder(folder("base") / "align").of(10);
  }
  TrainRequest with(const Faults& faults) const {
    TrainRequest request = alone_;
    request.faults = faults;
    return request;
  }
  fs::path last(const std::string& name) const { return StageFolder(folder(name) / "instruct").of(6); }

  void expect_as_whole(const std::string& name) {
    expect_equal_runs("whole", name);
    EXPECT_EQ(read_state(last(name)).memory, read_state(last("whole")).memory);
    EXPECT_EQ(read_file(folder(name) / "journal.jsonl"), read_file(folder("whole") / "journal.jsonl"));
  }
};

TEST_F(EarlyStop, ControlReadsTheEvaluationOfItsStep) {
  EXPECT_EQ(run("whole", {}, alone_).step, 6) << "of 8: two evaluations after the first without progress";
  std::vector<double> losses;
  for (const auto& line : metrics(folder("whole")))
    if (line["kind"] == "evaluation") losses.push_back(line["loss"]);
  ASSERT_EQ(losses.size(), 3u);
  const auto memory = nlohmann::json::parse(read_state(last("whole")).memory);
  EXPECT_EQ(memory["losses"], nlohmann::json(losses)) << memory;
}

TEST_F(EarlyStop, AfterKillsEndsInTheSameBits) {
  run("whole", {}, alone_);
  const auto killed = [&](const Faults& faults) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        run("a", {}, with(faults));
      } catch (const std::exception&) {
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  };
  const auto at_evaluation = [](int64_t wanted) {
    Faults faults;
    faults.before_evaluation = [wanted](const std::string&, int64_t step) {
      if (step == wanted) kill(getpid(), SIGKILL);
    };
    return faults;
  };
  EXPECT_TRUE(killed(at_evaluation(2)));
  EXPECT_TRUE(killed(at_evaluation(4)));
  Faults behind; // the answer to step 4 is in the journal, and in no checkpoint
  behind.before_step = [](const std::string&, int64_t step, model::Parameters&) {
    if (step == 4) kill(getpid(), SIGKILL);
  };
  EXPECT_TRUE(killed(behind));
  Faults end; // and so is the one that ends the stage
  end.before_checkpoint = [](const std::string&, int64_t step) {
    if (step == 6) kill(getpid(), SIGKILL);
  };
  EXPECT_TRUE(killed(end));
  EXPECT_FALSE(run("a", {}, alone_).stopped);
  expect_as_whole("a");
}

TEST_F(EarlyStop, AfterStopsDuringEvaluationsEndsInTheSameBits) {
  run("whole", {}, alone_);
  int64_t evaluated = 0;
  for (const int64_t step : {2, 4, 6}) {
    Faults faults;
    faults.before_evaluation = [&, step](const std::string&, int64_t at) {
      ++evaluated;
      if (at == step) raise(SIGTERM);
    };
    EXPECT_TRUE(run("a", {}, with(faults)).stopped);
    const RunState state = read_state(StageFolder(folder("a") / "instruct").of(step));
    EXPECT_EQ(nlohmann::json::parse(state.memory).value("losses", nlohmann::json::array()).size(), (step - 2) / 2u)
        << "`control` waits for the evaluation";
  }
  EXPECT_FALSE(run("a", {}, alone_).stopped);
  EXPECT_EQ(evaluated, 5) << "each of the first two evaluations once more";
  expect_as_whole("a");
}

// The same mistake is met again, and not passed over.
TEST_F(KeptSteps, ControlThatFailedIsAskedAgain) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 5, run = function(m, memory)
    return m.nothing.there end },)");
  for (int tries = 0; tries < 2; ++tries) {
    EXPECT_THAT(mistake({"checkpoint.every=100"}, {.stage = "align"}), HasSubstr("small.lua"));
    EXPECT_EQ(newest("a", "align"), 5);
  }
}

TEST_F(KeptSteps, AStageThatControlEndedStaysEndedWhereItsLastEvaluationFails) {
  change_recipe("samples = 64,", R"(samples = 64, control = { every = 2, run = function(m)
    if m.step == 6 then return fvlm.stop_stage() end end },)");
  run("whole");
  Faults faults;
  faults.before_evaluation = [](const std::string& stage, int64_t step) {
    if (stage == "instruct" && step == 6) throw Error(ErrorKind::data, "the disk with the held-out questions is gone");
  };
  EXPECT_THAT(mistake({}, {.faults = faults}), HasSubstr("is gone"));
  run("a");
  EXPECT_EQ(newest("a", "instruct"), 6);
  expect_equal_runs("whole", "a");
}

// Which checkpoint is best depends on it.
TEST_F(KeptSteps, AnEvaluationThatFollowsIsInTheCheckpointOfItsStep) {
  Faults faults;
  faults.before_evaluation = [](const std::string& stage, int64_t) {
    if (stage == "instruct") raise(SIGTERM);
  };
  EXPECT_TRUE(run("a", {}, {.faults = faults}).stopped);
  ASSERT_EQ(newest("a", "instruct"), 4);
  const auto state = [&] {
    const auto file = folder("a") / "instruct" / "step-000004" / "training_state" / "state.json";
    return nlohmann::json::parse(read_file(file));
  };
  EXPECT_TRUE(state()["score"].is_null());
  EXPECT_TRUE(run("a", {}, {.max_steps = 1}).stopped);
  EXPECT_FALSE(state()["score"].is_null());
  EXPECT_EQ(state()["evaluated_at"], 4);
}

TEST_F(KeptSteps, WhereTheMemoryDoesNotHoldASample) {
  Faults faults;
  faults.before_pack = [](const std::string&, int64_t step, HostPack&) {
    if (step == 5) throw std::bad_alloc();
  };
  EXPECT_THAT(mistake({"checkpoint.every=100"}, {.stage = "align", .faults = faults}),
              HasSubstr("does not hold a single sample"));
  EXPECT_EQ(newest("a", "align"), 5);
}

TEST_F(KeptSteps, WhereDataCannotBeRead) {
  Faults faults;
  int calls = 0;
  faults.before_data = [&calls] {
    if (++calls == 6) throw Error(ErrorKind::data, "too many samples are broken");
  };
  EXPECT_THAT(mistake({"checkpoint.every=100"}, {.stage = "align", .faults = faults}), HasSubstr("are broken"));
  EXPECT_EQ(newest("a", "align"), 5);
}

TEST_F(KeptSteps, ALeapOfTheLossEndsNoRunThatCannotGoBack) {
  const auto report =
      run("a", {"guard.rollback=true", "guard.spike_factor=0.5", "checkpoint.every=100", "stages.align.samples=200"},
          {.stage = "align"});
  EXPECT_EQ(report.step, 25);
  EXPECT_FALSE(events("a", "spike").empty());
  EXPECT_TRUE(events("a", "rollback").empty());
}

TEST_F(KeptSteps, ControlRemembersNumbersThatAreNotFinite) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.best = memory.best or math.huge
    memory.list = memory.list or { 0 / 0, 1 }
    if memory.best ~= math.huge or memory.list[1] == memory.list[1] or memory.list[2] ~= 1 then error("forgotten") end
  end },)");
  EXPECT_EQ(run("a", {}, {.stage = "align", .max_steps = 5}).step, 5);
  EXPECT_EQ(run("a", {}, {.stage = "align"}).step, 10);
}

TEST_F(KeptSteps, TwoTermsOfAKindHaveFiguresOfTheirOwn) {
  change_recipe("objective = fvlm.dpo { beta = 0.1 }",
                "objective = { fvlm.dpo { beta = 0.1 }, fvlm.dpo { loss = \"hinge\" } }");
  run("a", {"log_every=1"}, {.stage = "prefer", .from = [&] {
                               run("base", {}, {.stage = "align"});
                               return StageFolder(folder("base") / "align").of(10);
                             }()});
  int64_t lines = 0;
  for (const auto& line : metrics(folder("a"))) {
    if (line["kind"] != "step") continue;
    ++lines;
    for (const char* name : {"reward_accuracy", "reward_accuracy_2"}) {
      ASSERT_TRUE(line.contains(name)) << line;
      EXPECT_LE(line[name], 1) << line;
    }
  }
  EXPECT_EQ(lines, 6);
}

TEST_F(KeptSteps, RatesAreThoseOfTheAlgorithmThatUpdatesAGroup) {
  change_recipe("fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }",
                "fvlm.muon { lr = 0.02, groups = \"decoder\", others = { lr = 0.001 } }");
  run("a", {"log_every=1"}, {.stage = "align"});
  for (const auto& line : metrics(folder("a"))) {
    if (line["kind"] != "step") continue;
    EXPECT_GT(line["lr.decoder"], 0) << line;
    EXPECT_NEAR(line["lr.decoder"].get<double>(), 20 * line["lr.connector"].get<double>(), 1e-9) << line;
  }
}

TEST_F(KeptSteps, WithAnotherPrecision) {
  run("rounded", {"precision=bf16"}, {.stage = "align", .max_steps = 5});
  fs::copy(folder("rounded"), folder("a"), fs::copy_options::recursive);
  const std::vector<std::string> still = {"stages.align.optimizer.lr=1e-12"};
  EXPECT_EQ(run("a", still, {.stage = "align", .allow_plan_change = true, .max_steps = 1}).step, 6);
  const auto weights = Safetensors::open(StageFolder(folder("a") / "align").of(6) / "connector.safetensors");
  const auto bits = weights.at("q_static").data;
  int64_t rounded = 0, all = 0;
  for (size_t at = 0; at < bits.size(); at += 4, ++all)
    rounded += bits[at] == std::byte{0} && bits[at + 1] == std::byte{0} ? 1 : 0;
  EXPECT_LT(rounded, all / 2) << "it goes on from the float32 weights, not from what bf16 made of them";
  run("plain", {}, {.stage = "align", .max_steps = 5});
  fs::copy(folder("plain"), folder("b"), fs::copy_options::recursive);
  try {
    run("b", {"precision=bf16"}, {.stage = "align", .allow_plan_change = true});
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("keeps 'master', which the checkpoint does not have"));
    EXPECT_THAT(error.text(), HasSubstr("--from"));
  }
}

// Work of two threads, which it does not watch.
class EagerRuntime : public device::Runtime {
 public:
  EagerRuntime() { device::use_runtime(this); }
  ~EagerRuntime() override { device::use_runtime(nullptr); }
  std::unique_ptr<device::CapturedGraph> capture(const std::function<void()>&) override {
    throw std::runtime_error("nothing is captured");
  }
  bool is_capturing() const override { return false; }
  bool drop_graphs() override { return false; }
  void run_on_side_stream(std::function<void()> work, int64_t) override { work(); }
  void join_side_stream() noexcept override {}
  std::shared_ptr<device::Event> record_event() override { return std::make_shared<Done>(); }
  std::shared_ptr<device::Event> copy_on_prefetch_stream(const device::Event&,
                                                         const std::function<void()>& copies) override {
    copies();
    return record_event();
  }
  std::shared_ptr<device::Event> run_on_communication_stream(const std::function<void(void*)>& work) override {
    work(nullptr);
    return record_event();
  }
  void wait_event(const device::Event&) override {}
  void synchronize() override {}
  void enter_thread() override {}
  std::vector<device::Activity> profile(const std::function<void()>& work) override {
    return work(), std::vector<device::Activity>();
  }
  uint64_t now() const override { return 0; }

 private:
  class Done : public device::Event {
   public:
    void wait() const override {}
    double seconds_since(const Event&) const override { return 0; }
  };
};

// Steps are observed late, as on GPUs: the rank that has to begin a step anew must not be one step ahead of the other.
TEST_F(KeptSteps, AStepThatARankTakesAnewIsTakenAnewByAll) {
  const EagerRuntime runtime;
  const auto go = [&](const std::string& name, int64_t failing) {
    const recipe::Resolved small = resolved({"speed.graphs=false"});
    test::as_ranks(2, [&](const dist::Ranks& ranks) {
      Registry registry{RegistryOptions{}};
      registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
      TrainRequest request{
          .folder = folder(name), .stage = "align", .replicas = ThreadReplicas::Size{1, 1}, .ranks = &ranks};
      const int64_t own = ranks.is_first() ? 0 : 1;
      request.faults.before_pack = [failing, own](const std::string&, int64_t step, HostPack& pack) {
        if (own == failing && step >= 4 && pack.samples.size() > 2) throw std::bad_alloc();
      };
      EXPECT_EQ(train(small, request, registry).step, 10);
    });
  };
  go("whole", -1);
  const auto loss_of = [&](const std::string& name) {
    double loss = 0;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") loss = line["loss"];
    return loss;
  };
  for (const int64_t rank : {0, 1}) {
    const std::string name = "cut" + std::to_string(rank);
    go(name, rank);
    EXPECT_EQ(events(name, "out_of_memory").size(), 1u) << rank;
    EXPECT_NEAR(loss_of(name), loss_of("whole"), 1e-5) << rank;
  }
}

} // namespace
} // namespace fvlm::train
