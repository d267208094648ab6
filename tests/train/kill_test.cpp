// kill -9 at random instants of three stages: the resumed run ends with the same bits. FVLM_KILLS: number of kills, by
// default 100.
#include "base/random.h"
#include "small_run.h"

#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace fvlm::train {
namespace {

using namespace std::chrono_literals;

class Kill : public SmallRun {
 protected:
  const std::vector<std::string> sets_ = {"checkpoint.every=1"};

  // A process of its own, which runs the stages and ends.
  pid_t start(const std::string& name) {
    const pid_t child = fork();
    if (child != 0) return child;
    if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
    int code = 1;
    try {
      run(name, sets_);
      code = 0;
    } catch (const std::exception&) {
    }
    _exit(code);
  }

  bool writes_a_checkpoint(const std::string& name) const {
    std::error_code ignored;
    for (const char* stage : {"align", "instruct", "prefer"})
      for (const auto& entry : fs::directory_iterator(folder(name) / stage, ignored))
        if (entry.path().filename().string().find(".partial-") != std::string::npos) return true;
    return false;
  }
};

TEST_F(Kill, AtRandomInstantsLosesNothing) {
  const char* wanted = std::getenv("FVLM_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 100;
  const RandomStream random(9, "instants");
  const pid_t undisturbed = start("whole");
  int status = 0;
  waitpid(undisturbed, &status, 0);
  ASSERT_EQ(status, 0);

  int killed = 0, in_checkpoints = 0, runs = 0;
  std::string name = "killed-0";
  for (uint64_t i = 0; killed < kills; ++i) {
    ASSERT_LT(i, static_cast<uint64_t>(20 * kills)) << "processes end before they are killed";
    const pid_t child = start(name);
    const bool aims = i % 3 != 0; // at the writing of a checkpoint
    if (aims) {
      const auto later = std::chrono::steady_clock::now() + std::chrono::milliseconds(random.bits(3 * i) % 300);
      while (std::chrono::steady_clock::now() < later || !writes_a_checkpoint(name)) {
        if (waitpid(child, &status, WNOHANG) != 0) break;
        std::this_thread::sleep_for(100us);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random.bits(3 * i + 1) % 3000));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(random.bits(3 * i + 2) % 700));
    }
    const bool inside = writes_a_checkpoint(name);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      ++killed;
      in_checkpoints += inside;
      continue;
    }
    ASSERT_EQ(status, 0) << "it did not go on";
    expect_equal_runs("whole", name);
    if (HasFailure()) return;
    fs::remove_all(folder(name));
    name = "killed-" + std::to_string(++runs);
  }
  waitpid(start(name), &status, 0);
  ASSERT_EQ(status, 0);
  expect_equal_runs("whole", name);
  EXPECT_GE(in_checkpoints, kills / 2);
  std::printf("%d kills, %d of them inside checkpoints, %d runs\n", killed, in_checkpoints, runs + 1);
}

} // namespace
} // namespace fvlm::train
