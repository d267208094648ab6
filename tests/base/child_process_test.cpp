// Child processes: their descriptors, their end, and what they leave behind.
#include "base/child_process.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace fvlm;

namespace {

using Clock = std::chrono::steady_clock;

ChildOptions shell(const std::string& script) {
  return {.command = {"/bin/sh", "-c", script}, .descriptors = {}};
}

// All that the script prints, and its status as of waitpid().
std::pair<std::string, int> run(const std::string& script) {
  Pipe output;
  ChildOptions options = shell(script);
  options.descriptors = {{output.writer().get(), STDOUT_FILENO}};
  ChildProcess child(options);
  output.close_writer();
  std::string text;
  const auto deadline = Clock::now() + std::chrono::minutes(30);
  while (output.reader() && Clock::now() < deadline) {
    wait_for_output({&output}, deadline);
    output.drain(text);
  }
  child.wait();
  return {text, child.status()};
}

} // namespace

TEST(ChildProcess, ReturnsItsOutputAndItsStatus) {
  const auto [text, status] = run("echo one; cat; exit 3");
  EXPECT_EQ(text, "one\n") << "standard input is /dev/null";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(ChildProcess, InheritsOnlyTheGivenDescriptors) {
  const Pipe kept_open;
  const int plain = dup(kept_open.writer().get()); // without O_CLOEXEC
  EXPECT_EQ(run("echo $(ls /proc/self/fd | wc -l)").first, run("exec 9>&-; echo $(ls /proc/self/fd | wc -l)").first);
  close(plain);
}

TEST(ChildProcess, RunsInAFolderAndDiscardsOutput) {
  Pipe output;
  ChildOptions options = shell("pwd; echo lost >&2");
  options.descriptors = {{output.writer().get(), STDOUT_FILENO}, {-1, STDERR_FILENO}};
  options.folder = "/usr";
  ChildProcess child(options);
  output.close_writer();
  child.wait();
  std::string text;
  output.drain(text);
  EXPECT_EQ(text, "/usr\n");
}

TEST(ChildProcess, OutputWithoutEndIsReadInPieces) {
  Pipe output;
  ChildOptions options = shell("exec cat /dev/zero");
  options.descriptors = {{output.writer().get(), STDOUT_FILENO}};
  ChildProcess child(options);
  output.close_writer();
  std::string text;
  for (const auto deadline = Clock::now() + std::chrono::minutes(30); text.size() < 4096 && Clock::now() < deadline;)
    output.drain(text);
  EXPECT_GE(text.size(), 4096u);
  EXPECT_TRUE(output.reader());
}

TEST(ChildProcess, NamesTheSignalThatEndedIt) {
  const int status = run("kill -SEGV $$").second;
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(signal_name(WTERMSIG(status)), "SIGSEGV");
}

TEST(ChildProcess, IsKilledWithEverythingThatItStarted) {
  Pipe output;
  std::string text;
  {
    ChildOptions options = shell("sleep 100 & echo $!; wait");
    options.descriptors = {{output.writer().get(), STDOUT_FILENO}};
    ChildProcess child(options);
    output.close_writer();
    const auto deadline = Clock::now() + std::chrono::minutes(30);
    while (text.find('\n') == std::string::npos && Clock::now() < deadline) {
      wait_for_output({&output}, deadline);
      output.drain(text);
    }
    EXPECT_FALSE(child.has_ended());
  }
  // The pipe closes when the last process that holds its writer is gone.
  const auto deadline = Clock::now() + std::chrono::minutes(30);
  while (output.reader() && Clock::now() < deadline) {
    wait_for_output({&output}, deadline);
    output.drain(text);
  }
  EXPECT_FALSE(output.reader()) << "process " << text << " is still running";
}

TEST(ChildProcess, ThatCannotBeStartedIsAnErrorAtItsPath) {
  try {
    ChildProcess child({.command = {"/nowhere/program"}, .descriptors = {}});
    FAIL() << "it was started";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("/nowhere/program: cannot start the process: No such file"));
  }
}
