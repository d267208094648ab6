// The report that a run writes at its end.
#include "base/error.h"
#include "small_run.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::HasSubstr;

class RunReport : public SmallRun {};

TEST_F(RunReport, IsWrittenAtTheEndOfEachStage) {
  std::vector<fs::path> folders;
  const auto write = [&](const fs::path& run) { folders.push_back(run); };
  run("a", {}, {.max_steps = 1, .write_report = write});
  EXPECT_THAT(folders, testing::IsEmpty()) << "no stage has ended";
  run("a", {}, {.write_report = write});
  EXPECT_THAT(folders, testing::ElementsAre(folder("a"), folder("a"), folder("a")));
}

TEST_F(RunReport, FailureEndsInAWarning) {
  testing::internal::CaptureStderr();
  const auto report = run("a", {}, {.stage = "align", .write_report = [](const fs::path&) {
                                      throw Error(ErrorKind::output, "the disk is full");
                                    }});
  EXPECT_FALSE(report.stopped);
  EXPECT_EQ(report.steps, 10);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("no report: "));
  EXPECT_THAT(said, HasSubstr("the disk is full"));
}

} // namespace
} // namespace fvlm::train
