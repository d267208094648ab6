// What a run resumes from, and what must not keep it from resuming.
#include "base/error.h"
#include "small_run.h"

#include <fmt/format.h>

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
    const std::string said = stderr_of([&] { EXPECT_EQ(run(name, {}, {.stage = "align"}).steps, 5); });
    EXPECT_NE(said.find("metrics.jsonl"), std::string::npos) << said;
    EXPECT_NE(said.find("TensorBoard"), std::string::npos) << said;
    EXPECT_EQ(logged(name), removed ? (std::vector<int64_t>{6, 8, 10}) : (std::vector<int64_t>{2, 6, 8, 10}));
    const fs::path last = StageFolder(folder(name) / "align").of(10);
    EXPECT_TRUE(read_file(last / "connector.safetensors") ==
                read_file(StageFolder(folder("whole") / "align").of(10) / "connector.safetensors"));
  }
}

} // namespace
} // namespace fvlm::train
