#include "base/child_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm {
namespace {

// Above the descriptors that a child's own will be: posix_spawn's dup2 must not close one that is still needed, and low
// ones are free where the engine runs without a terminal.
constexpr int min_descriptor = 16;

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

} // namespace

Pipe::Pipe() : reader_(-1), writer_(-1) {
  int low[2] = {-1, -1};
  if (pipe2(low, O_CLOEXEC) == 0) {
    const Descriptor low_reader(low[0]), low_writer(low[1]);
    reader_ = Descriptor(fcntl(low[0], F_DUPFD_CLOEXEC, min_descriptor));
    writer_ = Descriptor(fcntl(low[1], F_DUPFD_CLOEXEC, min_descriptor));
  }
  if (!reader_ || !writer_) throw Error(ErrorKind::device, "cannot create a pipe: {}", std::strerror(errno));
}

void Pipe::drain(std::string& into) {
  constexpr int max_reads = 256; // 1 MiB, more than a pipe holds: a child may write without end
  std::array<char, 4096> buffer;
  for (int i = 0; i < max_reads && reader_; ++i) {
    pollfd ready{reader_.get(), POLLIN, 0};
    if (poll(&ready, 1, 0) <= 0) return;
    const ssize_t count = read(reader_.get(), buffer.data(), buffer.size());
    if (count > 0)
      into.append(buffer.data(), static_cast<size_t>(count));
    else if (count == 0 || errno != EINTR)
      close_reader();
  }
}

std::vector<std::string> current_environment() {
  std::vector<std::string> all;
  for (char** variable = environ; *variable; ++variable) all.emplace_back(*variable);
  return all;
}

ChildProcess::ChildProcess(const ChildOptions& options) {
  auto words = options.command, environment = options.environment;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  int last = STDIN_FILENO;
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const auto& [here, there] : options.descriptors) {
    if (here < 0)
      posix_spawn_file_actions_addopen(&actions, there, "/dev/null", O_RDWR, 0);
    else
      posix_spawn_file_actions_adddup2(&actions, here, there);
    last = std::max(last, there);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, last + 1);
  posix_spawn_file_actions_addchdir_np(&actions, options.folder.c_str());
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error =
      posix_spawn(&id_, words[0].c_str(), &actions, &attributes, pointers(words).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw Error(ErrorKind::device, "cannot start the process: {}", std::strerror(error)).at(words[0]);
}

ChildProcess::~ChildProcess() {
  kill();
  wait();
}

bool ChildProcess::has_ended() {
  if (!has_ended_) has_ended_ = waitpid(id_, &status_, WNOHANG) == id_;
  return has_ended_;
}

void ChildProcess::wait() {
  while (!has_ended_) {
    const pid_t ended = waitpid(id_, &status_, 0);
    has_ended_ = ended == id_ || (ended < 0 && errno != EINTR);
  }
}

void ChildProcess::kill() const {
  ::kill(-id_, SIGKILL);
}

void ChildProcess::terminate() const {
  ::kill(id_, SIGTERM);
}

void wait_for_output(const std::vector<const Pipe*>& pipes, std::chrono::steady_clock::time_point deadline) {
  std::vector<pollfd> ready;
  for (const Pipe* pipe : pipes) ready.push_back({pipe->reader().get(), POLLIN, 0});
  const bool all_closed = std::ranges::all_of(ready, [](const pollfd& one) { return one.fd < 0; });
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  poll(ready.data(), ready.size(), static_cast<int>(std::clamp<int64_t>(left, 0, all_closed ? 1 : 50)));
}

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

} // namespace fvlm
