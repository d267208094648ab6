// Runs whose data are broken, too few or too long.
#include "base/error.h"
#include "budget/described_model.h"
#include "data/shards/shard.h"
#include "data/shards/shard_writer.h"
#include "data/stream/data_sizes.h"
#include "report/page.h"
#include "small_run.h"
#include "train/stage_data.h"
#include "train/stage_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <set>

namespace fvlm::train {
namespace {

using testing::HasSubstr;

class BrokenData : public SmallRun {
 protected:
  BrokenData() { change_recipe("stage(\"instruct\", {", "stage(\"instruct\", {\n    from = \"model\","); }

  // Writes each shard of a set anew; `change` may change a member's name and bytes.
  using Change = std::function<void(int64_t number, std::string& name, std::string& bytes)>;
  void rewrite(const std::string& set, const Change& change) const {
    int64_t number = 0;
    std::vector<fs::path> tars;
    for (const auto& entry : fs::directory_iterator(data() / set))
      if (entry.path().extension() == ".tar") tars.push_back(entry.path());
    std::sort(tars.begin(), tars.end());
    for (const fs::path& tar : tars) {
      const fs::path made = tar.string() + ".new";
      {
        const auto shard = Shard::open(tar, {.cache = folder("cache"), .index_beside = false});
        ShardWriter writer(made);
        for (int64_t i = 0; i < shard->size(); ++i, ++number) {
          const ShardSample sample = shard->sample(i);
          for (const Member& member : sample.members) {
            const auto read = shard->read(member);
            std::string name = member.name, bytes(reinterpret_cast<const char*>(read.data()), read.size());
            change(number, name, bytes);
            writer.add(sample.key + "." + name, bytes);
          }
        }
        writer.commit();
      }
      fs::rename(made, tar);
    }
  }
  void break_images(const std::string& set, const std::function<bool(int64_t)>& which) const {
    rewrite(set, [&](int64_t number, std::string& name, std::string& bytes) {
      if (which(number) && name != "json") bytes.resize(bytes.size() / 2);
    });
  }

  std::string refused(const std::function<void()>& work) const {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 4) << error.text();
      return error.text();
    }
    ADD_FAILURE() << "not refused";
    return "";
  }

  nlohmann::json last_line(const std::string& run, const std::string& kind) const {
    nlohmann::json found;
    for (const auto& line : metrics(folder(run)))
      if (line["kind"] == kind) found = line;
    return found;
  }
};

TEST_F(BrokenData, SetOfBrokenImagesTrainsNothing) {
  break_images("questions", [](int64_t) { return true; });
  const std::string text = refused([&] { run("a", {}, {.stage = "instruct"}); });
  EXPECT_THAT(text, HasSubstr("samples read are broken"));
  EXPECT_THAT(text, HasSubstr("data check"));
  // Where the recipe allows any number.
  const std::string none = refused([&] { run("b", {"loader.quarantine.share=1"}, {.stage = "instruct"}); });
  EXPECT_THAT(none,
              HasSubstr("there is no sample to learn from: 64 samples read, 0 used, 64 skipped (64 image or video)"));
  EXPECT_FALSE(fs::exists(folder("b") / "instruct" / "step-000001"));
}

TEST_F(BrokenData, HalfBrokenSetEndsTheRun) {
  break_images("questions", [](int64_t number) { return number % 2 == 0; });
  EXPECT_THAT(refused([&] { run("a", {}, {.stage = "instruct"}); }), HasSubstr("samples read are broken"));
}

TEST_F(BrokenData, EvaluationSetOfBrokenImagesEndsTheRun) {
  break_images("heldout/questions", [](int64_t number) { return number < 4; });
  const std::vector<std::string> every{"stages.instruct.evaluation.every=8"};
  testing::internal::CaptureStderr();
  run("some", every, {.stage = "instruct"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("; 8 samples, 4 not used in "));
  break_images("heldout/questions", [](int64_t) { return true; });
  EXPECT_THAT(refused([&] { run("none", every, {.stage = "instruct"}); }),
              HasSubstr("evaluation set questions: none of its 12 samples can be used"));
}

TEST_F(BrokenData, SkippedSamplesAreInTheMetricsAndSurviveAStop) {
  break_images("questions", [](int64_t number) { return number % 12 == 5; });
  run("whole", {},
      {.stage = "instruct", .write_report = [](const std::filesystem::path& run) { report::write_report(run); }});
  for (int part = 0; part < 8; ++part) run("parts", {}, {.stage = "instruct", .max_steps = 1});
  run("parts", {}, {.stage = "instruct"});
  expect_equal_runs("whole", "parts");
  for (const auto& line : {last_line("whole", "step"), last_line("whole", "event")}) {
    EXPECT_EQ(line["samples_read"], 64) << line.dump();
    const int64_t broken = line["skipped.media"];
    EXPECT_GT(broken, 0);
    EXPECT_EQ(line["samples_used"], 64 - broken);
  }
  EXPECT_THAT(last_line("whole", "event")["text"].get<std::string>(), HasSubstr("image or video"));
  EXPECT_THAT(read_file(folder("whole") / "report.html"), HasSubstr("image or video"));
}

TEST_F(BrokenData, StepsWithoutUsableSamplesAreSkippedButScheduled) {
  run("good", {"log_every=1"}, {.stage = "instruct"});
  // The samples of the second and third step, as the stage reads them.
  const auto plan = resolved().plan;
  const StageData whole(plan, plan.stages[1], registry_, {});
  auto state = whole.order().begin();
  std::set<std::string> keys;
  for (int64_t i = 0; i < 24; ++i) {
    const auto drawn = whole.order().next(state);
    if (i >= 8) keys.insert(whole.samples().key(*drawn));
  }
  std::set<int64_t> broken;
  for (int64_t i = 0; i < whole.samples().sizes()[0]; ++i)
    if (keys.contains(whole.samples().key({0, 0, 0, i}))) broken.insert(i);
  break_images("questions", [&](int64_t number) { return broken.contains(number); });
  EXPECT_EQ(run("gaps", {"loader.quarantine.share=1", "log_every=1"}, {.stage = "instruct"}).steps, 6);
  const auto rates = [&](const char* name) {
    std::vector<double> all;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step") {
        EXPECT_GT(line["loss"], 0) << name;
        all.push_back(line["lr.connector"]);
      }
    return all;
  };
  auto planned = rates("good");
  ASSERT_EQ(planned.size(), 8u);
  planned.erase(planned.begin() + 1, planned.begin() + 3);
  EXPECT_EQ(rates("gaps"), planned);
}

TEST_F(BrokenData, RehearsalDecodesAFewSamplesOfEachSet) {
  EXPECT_NO_THROW(rehearse(resolved(), {}, registry_));
  break_images("heldout/questions", [](int64_t) { return true; });
  EXPECT_THAT(refused([&] { rehearse(resolved(), {}, registry_); }), HasSubstr("instruct, evaluation set questions"));
  break_images("captions", [](int64_t) { return true; });
  EXPECT_THAT(refused([&] { rehearse(resolved(), {}, registry_); }), HasSubstr("stage align"));
}

TEST_F(BrokenData, CountsTruncatedTextsAndAnswers) {
  run("a", {"stages.align.data.max_text_tokens=12"}, {.stage = "align"});
  const auto line = last_line("a", "event");
  EXPECT_GT(line["samples_truncated"].get<int64_t>() + line.value("skipped.no_answer", int64_t{0}), 0) << line.dump();
  EXPECT_THAT(line["text"].get<std::string>(), HasSubstr("max_text_tokens"));
}

TEST_F(BrokenData, EpochsOfAStageDefineItsLength) {
  change_recipe("samples = 64,", "epochs = 2,");
  const auto plan = resolved().plan;
  const plan::Stage counted = with_length(plan, plan.stages[1]);
  EXPECT_EQ(counted.samples, 320);
  EXPECT_EQ(counted.steps, 40);
  EXPECT_EQ(counted.warmup_steps, 4);
  const auto report =
      run("a", {"stages.instruct.batch=64", "stages.instruct.evaluation.every=0"}, {.stage = "instruct"});
  EXPECT_EQ(report.steps, 5);
  EXPECT_EQ(last_line("a", "step")["samples"], 320);
  // Each sample twice.
  std::map<int64_t, int> observed;
  const StageData data(plan, counted, registry_, {});
  auto state = data.order().begin();
  for (int64_t i = 0; i < 320; ++i) ++observed[data.order().next(state)->sample];
  EXPECT_EQ(observed.size(), 160u);
  for (const auto& [sample, times] : observed) EXPECT_EQ(times, 2) << sample;
  change_recipe("epochs = 2,", "epochs = 2, samples = 100,");
  EXPECT_EQ(with_length(plan, resolved().plan.stages[1]).samples, 100);
}

TEST_F(BrokenData, ScheduleSpansTheSamplesOfASourcesEpochs) {
  change_recipe("mix { { data .. \"/questions/*.tar\" } }", "mix { { data .. \"/questions/*.tar\", epochs = 1 } }");
  change_recipe("samples = 64,", "samples = 6400,");
  testing::internal::CaptureStderr();
  const auto report =
      run("a", {"stages.instruct.batch=16", "stages.instruct.schedule=linear", "log_every=1"}, {.stage = "instruct"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("are over after 160 samples, and 6,400 were expected"));
  EXPECT_EQ(report.steps, 10);
  std::vector<double> rates;
  for (const auto& line : metrics(folder("a")))
    if (line["kind"] == "step") rates.push_back(line["lr.connector"]);
  EXPECT_LT(rates.back(), 0.15 * rates.front()) << "linear, down to nothing";
}

TEST_F(BrokenData, MoreEpochsExtendAFinishedStage) {
  change_recipe("samples = 64,", "epochs = 1,");
  const TrainRequest instruct = {.stage = "instruct"}, changed = {.stage = "instruct", .allow_plan_change = true};
  const std::vector<std::string> small = {"stages.instruct.batch=16", "stages.instruct.evaluation.every=0"};
  const auto with = [&](const std::string& change) { return std::vector<std::string>{small[0], small[1], change}; };
  EXPECT_EQ(run("a", small, instruct).steps, 10);
  EXPECT_EQ(run("a", with("stages.instruct.epochs=2"), changed).steps, 10);
  EXPECT_EQ(last_line("a", "step")["samples"], 320);
  // The smaller of both is what it has.
  EXPECT_THROW(run("a", {small[0], small[1], "stages.instruct.epochs=2", "stages.instruct.samples=1000"}, changed),
               Error);
}

TEST_F(BrokenData, TellsOfASourceThatIsUsedUpBeforeTheOthers) {
  change_recipe("mix { { data .. \"/questions/*.tar\" } }",
                "mix { { data .. \"/questions/*.tar\", epochs = 1 }, { data .. \"/captions/*.tar\" } }");
  change_recipe("samples = 64,", "samples = 6000,");
  const auto said_of = [&](const std::vector<std::string>& changes) {
    const auto plan = resolved(changes).plan;
    testing::internal::CaptureStderr();
    EXPECT_GT(with_length(plan, plan.stages[1]).samples, 0);
    return testing::internal::GetCapturedStderr();
  };
  // 160 questions, drawn in every second sample.
  EXPECT_THAT(said_of({}),
              HasSubstr("/questions/*.tar' is used up after about 324 of 6,000 samples, since it has epochs = 1"));
  EXPECT_EQ(said_of({"stages.instruct.samples=320"}), "");
}

TEST_F(BrokenData, TellsWhyAStageEndsEarly) {
  plan::Stage stage;
  stage.name = "a";
  stage.samples = 400;
  Cursor end;
  end.samples = 200;
  const auto said = [&] {
    testing::internal::CaptureStderr();
    warn_of_early_end(stage, end);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said(),
              HasSubstr("after 200 of 400 samples, since every source with a weight above 0 there was used up"));
  end.skipped[static_cast<size_t>(SkipReason::media)] = 3;
  EXPECT_THAT(said(), HasSubstr("after 200 of 400 samples, since 3 were skipped"));
}

TEST_F(BrokenData, OneRankListsWhatAllReadBeforeTraining) {
  break_images("pairs", [](int64_t number) { return number % 16 == 3; });
  const auto plan = resolved({"loader.quarantine.share=1"}).plan;
  for (const int64_t rank : {0, 1}) {
    const fs::path log = folder(fmt::format("quarantine-{}.log", rank));
    const StageData data(plan, plan.stages[2], registry_, {.rank = rank, .quarantine_log = log}, 2);
    int64_t samples = 0;
    for (const auto loader = data.loader_of_all_ranks(); const auto loaded = loader->next();)
      samples += std::ssize(loaded->pack.samples);
    EXPECT_GT(samples, 24) << "more than a rank's own";
    EXPECT_EQ(fs::exists(log), rank == 0) << log;
  }
}

TEST_F(BrokenData, StatisticsPredictThePaddingOfTheRun) {
  const auto plan = resolved({"log_every=1000"}).plan;
  for (const int64_t parts : {1, 3}) {
    const std::string name = fmt::format("a{}", parts);
    run(name, {"log_every=1000"}, {.stage = "align", .replicas = ThreadReplicas::Size{parts, 1}});
    const StageData data(plan, plan.stages[0], registry_, {});
    const auto found = data.statistics(plan.stages[0].samples, {.parts = parts});
    EXPECT_NEAR(found.packing_waste(), last_line(name, "step")["padding_share"], 1e-9) << parts << " parts";
  }
}

TEST_F(BrokenData, PackSizesFollowTheDataWhereReadable) {
  const std::vector<std::string> wide = {"stages.align.data.max_frames=64", "stages.align.data.max_text_tokens=192",
                                         "stages.align.packing.frames=auto", "stages.align.packing.tokens=auto"};
  const auto plan = resolved(wide).plan;
  const DataSizes found = measure_data_sizes(plan, plan.stages[0], nullptr, {});
  EXPECT_TRUE(found.seen) << found.said;
  EXPECT_EQ(found.stage.data.max_frames, 2);
  EXPECT_LE(found.stage.data.max_text_tokens, 64);
  EXPECT_THAT(found.said, HasSubstr("as the data have them, at most 2 frames and"));
  fs::remove_all(data() / "captions");
  const DataSizes none = measure_data_sizes(plan, plan.stages[0], nullptr, {});
  EXPECT_FALSE(none.seen);
  EXPECT_EQ(none.stage.data.max_frames, 64);
  EXPECT_THAT(none.said, HasSubstr("as large as the recipe allows, 64 frames and 192 tokens"));
}

TEST_F(BrokenData, RefusesSequencesBeyondTheDecodersPositions) {
  run("a", {}, {.stage = "align"});
  const StageFolder checkpoints(folder("a") / "align");
  const fs::path decoder = checkpoints.of(checkpoints.steps().back()) / "decoder";
  change_recipe("decoder = fvlm.llama { width = 16, layers = 2, heads = 2, mlp = 32, max_positions = 256, tokenizer = "
                "data .. \"/tokenizer\" }",
                "decoder = \"" + decoder.string() + "\"");
  EXPECT_NO_THROW(rehearse(resolved(), {.stage = "align"}, registry_));
  const std::vector<std::string> longer = {"stages.align.data.max_text_tokens=255"};
  for (const auto& work :
       std::vector<std::function<void()>>{[&] { rehearse(resolved(longer), {.stage = "align"}, registry_); },
                                          [&] { run("b", longer, {.stage = "align"}); }})
    try {
      work();
      ADD_FAILURE() << "257 positions of 256";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3);
      EXPECT_THAT(error.text(), HasSubstr("2 frames and 255 text tokens exceed the decoder's 256 positions"));
    }
  EXPECT_EQ(budget::decoder_positions(resolved().plan.model), 256);
}

} // namespace
} // namespace fvlm::train
