// The verb: what it prints, where it writes.
#include "../shell.h"
#include "report/figures.h"
#include "report/run_summary.h"
#include "synthetic_run.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

using namespace fvlm;
using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

namespace {

class ReportCommand : public testing::Test {
 protected:
  test::Ran run(const std::string& arguments) {
    return test::shell(fmt::format("cd '{}' && '{}' report {}", folder.path().string(), FVLM_ENGINE, arguments));
  }
  ScratchFolder folder;
};

} // namespace

TEST_F(ReportCommand, PrintsFiguresAndThePagesPath) {
  std::filesystem::create_directories(folder / "a run");
  test::make_run(folder / "a run");
  auto ran = run("'a run'");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, testing::ContainsRegex("instruct +1,500 +48,000 +1,027,200 +1 min [0-9]+ s"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("questions +coarse_only +instruct 1,500 +2,000 +90.3 %"));
  EXPECT_THAT(ran.out, HasSubstr("a run/report.html ("));
  EXPECT_THAT(ran.err, IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(folder / "a run/report.html"));
}

TEST_F(ReportCommand, ReportsMissingFilesAndWritesElsewhere) {
  std::filesystem::create_directories(folder / "r");
  test::make_run(folder / "r", {.stages = 1, .last_progress = 0.5, .samples = false, .parameters = false});
  auto ran = run("r --out page.html");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, testing::ContainsRegex("align +1,000 of 2,000 "));
  EXPECT_THAT(ran.out, HasSubstr("Not in the report\n  parameters.json is not there"));
  EXPECT_TRUE(std::filesystem::exists(folder / "page.html"));
  EXPECT_FALSE(std::filesystem::exists(folder / "r/report.html"));
}

TEST_F(ReportCommand, HasFiguresAsJson) {
  std::filesystem::create_directories(folder / "r");
  test::make_run(folder / "r");
  auto ran = run("r --json");
  EXPECT_EQ(ran.code, 0) << ran.err;
  auto document = json::parse(ran.out);
  EXPECT_EQ(document["stages"][1]["samples"], 48000);
  EXPECT_DOUBLE_EQ(document["stages"][1]["text_tokens"], 1027200);
  EXPECT_DOUBLE_EQ(document["stages"][1]["decoder_tokens"], 1209600);
  EXPECT_EQ(document["stages"][1]["first_loss_steps"], json({1, 10}));
  EXPECT_EQ(document["stages"][2]["done"], true);
  EXPECT_EQ(document["evaluations"][0]["accuracy"], 0.958);
  EXPECT_EQ(document["evaluations"][3]["measure"], "preference");
  EXPECT_THAT(document["missing"], IsEmpty());
}

TEST_F(ReportCommand, MissingRunFailsWithAdvice) {
  auto ran = run("nowhere");
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("nowhere: this is no folder of a run"));
  EXPECT_EQ(run("").code, 2);
  EXPECT_THAT(run("--help").out, testing::StartsWith("Example\n\n  fvlm-engine report runs/quickstart\n"));
}

TEST_F(ReportCommand, HasARowPerStageAndPreferenceResults) {
  std::filesystem::create_directories(folder / "r");
  test::make_run(folder / "r");
  const auto ran = run("r");
  EXPECT_THAT(ran.out, testing::ContainsRegex(
                           "stage +steps +samples +text tokens +time +samples/s +loss, steps 1-10 +final loss"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("\nall +3,800 +121,600 +2,602,240 "));
  EXPECT_THAT(ran.out, testing::ContainsRegex("\npairs +coarse_fine +prefer 300 "));
}

TEST(Figures, ALossOfASingleLineStandsInTheTableOnce) {
  using namespace fvlm::report;
  RecordedRun run;
  run.stages.emplace_back();
  run.stages[0].name = "sft";
  run.stages[0].log_every = 10;
  run.stages[0].lines.steps = {4};
  run.stages[0].lines.columns = {{"loss", {6.874}}};
  const auto table = [&] { return summary_text(run, {figures_of(run.stages[0])}); };
  EXPECT_THAT(table(), testing::ContainsRegex("loss, steps 1-4 +final loss\nsft +4 +6.874 +the same: one line"))
      << table();
  run.stages[0].lines.steps = {10, 14};
  run.stages[0].lines.columns = {{"loss", {6.874, 6.5}}};
  EXPECT_THAT(table(), testing::ContainsRegex("sft +14 +6.874 +6.5 \\(steps 11-14\\)\n")) << table();
}

TEST(Figures, OfAStoppedStageAreAdvancedToItsState) {
  using namespace fvlm::report;
  RecordedRun run;
  for (const char* name : {"align", "instruct"}) {
    run.stages.emplace_back();
    run.stages.back().name = name;
  }
  run.stages[0].lines.steps = {10};
  run.stages[0].lines.columns = {{"samples", {80}}, {"loss", {4}}};
  std::vector<StageFigures> figures = {figures_of(run.stages[0]), figures_of(run.stages[1])};
  EXPECT_EQ(figures[0].last_loss_steps, (StepRange{1, 10}));
  advance(figures, run, {"align", 14, 112, 900});
  EXPECT_EQ(figures[0].step, 14);
  EXPECT_EQ(figures[0].samples, 112);
  advance(figures, run, {"align", 10, 80, 640});
  EXPECT_EQ(figures[0].step, 14);
  EXPECT_FALSE(figures[1].begun);
  advance(figures, run, {"instruct", 4, 32, 300});
  EXPECT_TRUE(figures[1].begun) << "before its first line";
  EXPECT_EQ(figures[1].text_tokens, 300);
}
