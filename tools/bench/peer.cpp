#include "bench/peer.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::bench {
namespace {

std::string ending(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

} // namespace

Peer::Peer(std::string command, const std::vector<std::string>& arguments) : command_(std::move(command)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::device, "cannot talk to a process: {}", std::strerror(errno));
  const std::string script = command_ + " \"$@\"";
  std::vector<const char*> words{"/bin/sh", "-c", script.c_str(), "peer"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  words.push_back(nullptr);
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(ends[1], STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    execv(words[0], const_cast<char* const*>(words.data()));
    _exit(127);
  }
  socket_ = ends[0];
  close(ends[1]);
  if (process_ < 0) {
    close(socket_);
    throw Error(ErrorKind::device, "cannot start a process: {}", std::strerror(errno));
  }
}

Peer::~Peer() {
  close(socket_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

void Peer::fail(const std::string& what) {
  throw Error(ErrorKind::device, "the peer " + what)
      .at(command_)
      .advise("see what it says above; --peer names another program, --peer none measures without one");
}

nlohmann::json Peer::ask(const std::string& what) {
  const std::string line = what + "\n";
  // If the peer has exited, the missing answer reports it.
  (void)!send(socket_, line.data(), line.size(), MSG_NOSIGNAL);
  answer_ = read_line();
  try {
    return parse_json(answer_, command_);
  } catch (const Error&) {
    fail_with_answer("JSON");
  }
}

void Peer::fail_with_answer(const std::string& missing) {
  fail(fmt::format("answered without {}: {}", missing, answer_.substr(0, 200)));
}

Peer::Answer Peer::run(int64_t steps) {
  return steps_in(ask(steps), steps);
}

Peer::Answer Peer::run_for(double seconds) {
  return steps_in(ask(fmt::format("for {}", seconds)), std::nullopt);
}

Peer::Answer Peer::steps_in(const nlohmann::json& answer, std::optional<int64_t> steps) {
  try {
    const auto wall = answer.at("times_ms").get<std::vector<double>>(),
               cpu = answer.at("cpu_ms").get<std::vector<double>>();
    peak_bytes_ = answer.value("peak_bytes", int64_t{0});
    Answer result{{}, wall.empty() ? 0 : answer.at("loss").get<double>()};
    const bool complete = steps ? wall.size() == static_cast<size_t>(*steps) : !wall.empty();
    if (complete && cpu.size() == wall.size()) {
      for (size_t i = 0; i < wall.size(); ++i) result.turns.push_back({wall[i], cpu[i]});
      return result;
    }
  } catch (const nlohmann::json::exception&) {
    // reported below
  }
  fail_with_answer(steps ? fmt::format("the times of {} steps and a loss", *steps) : "the times of steps and a loss");
}

std::string Peer::read_line() {
  while (true) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      int status = 0;
      waitpid(std::exchange(process_, -1), &status, 0);
      fail(ending(status));
    }
    received_.append(buffer, static_cast<size_t>(count));
  }
}

void require_same_loss(double engine, double peer, double tolerance, const std::string& where) {
  if (std::abs(engine - peer) <= tolerance * std::abs(peer)) return;
  throw Error(ErrorKind::data,
              "the losses differ: the engine's is {:.8g}, the peer's {:.8g}; so their times compare nothing", engine,
              peer)
      .at(where)
      .advise("hold their numbers against each other with `fvlm-engine trace` and tools/oracle/trace");
}

} // namespace fvlm::bench
