// A plugin that fails during a run: the error names it, and no completed step is lost.
#include "base/error.h"
#include "small_run.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char* const gate_alone = R"(kernels.swiglu=["kernels-gate"])";
const char* const gate_first = R"(kernels.swiglu=["kernels-gate", "reference"])";

class PluginFailure : public SmallRun {
 protected:
  PluginFailure() {
    const fs::path home = folder("plugins") / "kernels-gate";
    fs::create_directories(home);
    fs::copy_file(FVLM_TEST_GATE, home / "gate.so");
    write_file_atomic(home / "plugin.toml", R"(name = "kernels-gate"
version = "1.0"
description = "for a test"
license = "MIT"
library = "gate.so"
abi = "1.0"
kinds = ["fvlm.kernels/1"]
devices = ["cpu"]
)");
    for (const fs::path& path : {folder("plugins"), home, home / "gate.so", home / "plugin.toml"})
      fs::permissions(path, fs::perms::group_write | fs::perms::others_write, fs::perm_options::remove);
  }
  ~PluginFailure() override { unsetenv("GATE_FAULT"); }

  // In a registry of its own, as a process of its own would have it.
  TrainReport train_with(const char* fault, const std::string& name, const char* kernels = gate_alone,
                         int64_t max_steps = -1) const {
    setenv("GATE_FAULT", fault, 1);
    RegistryOptions options;
    options.directories = {folder("plugins")};
    options.load.probe.when = ProbeOptions::When::never;
    Registry registry(options);
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    return train(resolved({kernels}), {.folder = folder(name), .stage = "align", .max_steps = max_steps}, registry);
  }

  // The text of the error that it ends with.
  std::string failure_of(const char* fault, const std::string& name) const {
    try {
      train_with(fault, name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin);
      return error.text();
    }
    return "it did not fail";
  }

  // Trains in a process that the plugin ends: returns wait()'s status and its standard error.
  static constexpr int ended_by_error = 98;
  struct Ended {
    int status;
    std::string output;
  };
  Ended end_of(const char* fault, const std::string& name) const {
    const fs::path file = folder(name + ".stderr");
    const pid_t child = fork();
    if (child == 0) {
      if (!std::freopen(file.c_str(), "w", stderr)) _exit(99);
      try {
        train_with(fault, name);
      } catch (const std::exception&) {
        _exit(ended_by_error);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {status, read_file(file)};
  }

  std::vector<int64_t> saved_steps(const std::string& name) const {
    return StageFolder(folder(name) / "align").steps();
  }
};

TEST_F(PluginFailure, IsNamedAndLosesNoStep) {
  EXPECT_EQ(train_with("", "whole").steps, 10);
  const std::string text = failure_of("backward fail 18", "broken");
  for (const char* reported : {"kernels-gate", "swiglu backward", "call 18 of width 32 went wrong", "gate:", ", 32]"})
    EXPECT_THAT(text, HasSubstr(reported));
  const auto saved = saved_steps("broken");
  ASSERT_FALSE(saved.empty());
  EXPECT_GT(saved.back() % 3, 0) << "only every third step is saved otherwise";
  EXPECT_NO_THROW(verify_checkpoint(StageFolder(folder("broken") / "align").of(saved.back())));
  EXPECT_THAT(read_file(folder("broken") / "log.txt"), HasSubstr("call 18 of width 32 went wrong"));
  EXPECT_EQ(train_with("", "broken").steps, 10 - saved.back());
  expect_equal_runs("whole", "broken");
}

// The reference computes swiglu with other roundings, so who did which step shows in the weights.
TEST_F(PluginFailure, UnsupportedCallGoesToTheNextPreference) {
  for (const char* fault : {"forward unsupported 1", "backward unsupported 1"}) {
    SCOPED_TRACE(fault);
    const std::string name = std::string("fallen-") + fault[0];
    testing::internal::CaptureStderr();
    EXPECT_EQ(train_with(fault, name, gate_first).steps, 10);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("'kernels-gate' refused a call: call 1 is not for it"),
                      HasSubstr("falling back to 'reference'")));
  }
  EXPECT_THAT(failure_of("backward unsupported 18", "alone"),
              AllOf(HasSubstr("none of the preferred plugins (kernels-gate) supports it"),
                    HasSubstr("refused a call: call 18 is not for it")));
  EXPECT_FALSE(saved_steps("alone").empty());
}

class PluginEnds : public PluginFailure, public testing::WithParamInterface<const char*> {};

TEST_P(PluginEnds, TheProcessWithAMessage) {
  const std::string what = GetParam();
  train_with("", "broken", gate_alone, 4); // a checkpoint, whenever the other process ends
  const Ended ended = end_of(("backward " + what + " 7").c_str(), "broken");
  const bool is_exit = what.ends_with("exit");
  const int code = WIFEXITED(ended.status) ? WEXITSTATUS(ended.status) : 128 + WTERMSIG(ended.status);
  if (is_exit)
    EXPECT_EQ(code, 5);
  else // of the signal, or of a sanitizer that took it
    EXPECT_THAT(code, testing::AllOf(testing::Ne(0), testing::Ne(ended_by_error)));
  const std::string did = is_exit           ? "ended the process by exit()"
                          : what == "abort" ? "crashed with SIGABRT"
                                            : "crashed with SIGSEGV";
  const auto reported = AllOf(HasSubstr("the plugin 'kernels-gate' " + did + " in swiglu backward\n"),
                              HasSubstr("\n  gate: float32 ["), HasSubstr(", 32]\n"));
  EXPECT_THAT(ended.output, reported);
  EXPECT_THAT(read_file(folder("broken") / "log.txt"), reported);
  const auto saved = saved_steps("broken");
  ASSERT_FALSE(saved.empty());
  EXPECT_EQ(train_with("", "broken").steps, 10 - saved.back());
}
INSTANTIATE_TEST_SUITE_P(by, PluginEnds, testing::Values("exit", "quick_exit", "crash", "abort", "overflow"));

TEST_F(PluginFailure, IsBlamedForItsRequests) {
  EXPECT_THAT(failure_of("forward saved 0", "saved"),
              AllOf(HasSubstr("plugin kernels-gate: "),
                    HasSubstr("saved tensor 0 has the shape [1099511627776, 1099511627776]")));
  EXPECT_THAT(failure_of("forward workspace 0", "workspace"),
              AllOf(HasSubstr("plugin kernels-gate: "), HasSubstr("out of memory for its workspace of 32.0 TiB")));
}

} // namespace
} // namespace fvlm::train
