#include "check/supervisor.h"

#include "base/error.h"
#include "plugin/untrusted.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace fvlm::check {
namespace {

using Clock = std::chrono::steady_clock;

Error failure(const std::string& what) {
  return Error(ErrorKind::internal, fmt::format("plugin check: {}: {}", what, std::strerror(errno)));
}

// One child process: its lines, what it printed, how it ended.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw failure("pipe");
    lines_ = pipe_ends[0];
    printed_ = memfd_create("printed", MFD_CLOEXEC);
    if (printed_ < 0) throw failure("memfd_create");

    std::vector<char*> words;
    words.reserve(command.size());
    for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, printed_, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, printed_, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], report_descriptor);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP); // killed together with whatever the plugin starts
    const int trouble = posix_spawn(&id_, words[0], &actions, &attributes, words.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[1]);
    if (trouble != 0) {
      errno = trouble;
      throw failure("cannot start " + command[0]);
    }
  }

  ~Process() {
    if (id_ > 0) {
      kill();
      end();
    }
    close(lines_);
    close(printed_);
  }

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  enum class Next { line, closed, late };

  Next next(std::string& line, Clock::time_point deadline) {
    for (;;) {
      if (auto end = pending_.find('\n'); end != std::string::npos) {
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return Next::line;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return Next::late;
      pollfd waiting{lines_, POLLIN, 0};
      const int ready = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
      if (ready <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(lines_, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return Next::closed;
      pending_.append(bytes, static_cast<size_t>(count));
    }
  }

  void kill() { ::kill(-id_, SIGKILL); }

  // Waits for the end; "" for a good one, else "signal 11 (Segmentation fault)".
  std::string end() {
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    ::kill(-id_, SIGKILL); // what the plugin may have left running
    id_ = 0;
    if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WEXITSTATUS(status) ? fmt::format("exit status {}", WEXITSTATUS(status)) : "";
  }

  // Of its end, what the process printed.
  std::string printed() const {
    constexpr off_t most = 8192;
    const off_t size = lseek(printed_, 0, SEEK_END);
    std::string text(static_cast<size_t>(std::min(size, most)), 0);
    const ssize_t count = pread(printed_, text.data(), text.size(), size - static_cast<off_t>(text.size()));
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  pid_t id_ = 0;
  int lines_ = -1, printed_ = -1;
  std::string pending_;
};

class Supervisor {
 public:
  Supervisor(Job job, const Supervision& supervision) : job_(std::move(job)), supervision_(supervision) {
    job_.command = supervision.command;
  }

  Report run() {
    report_.library = job_.library;
    report_.device = job_.device;
    while (!round()) {
    }
    return std::move(report_);
  }

 private:
  // One child, as far as it gets. True when no other is needed.
  bool round() {
    auto command = job_.command;
    command.push_back(to_text(job_));
    Process process(command);
    current_.reset();
    const auto patience = std::max<std::chrono::seconds>(supervision_.limit, std::chrono::seconds(60));
    auto deadline = Clock::now() + patience; // LibTorch takes a while to load
    std::string line;
    for (;;) {
      switch (process.next(line, deadline)) {
      case Process::Next::line:
        if (take(line)) return true;
        deadline = Clock::now() + (current_ ? limit() : patience);
        break;
      case Process::Next::closed: {
        const std::string how = process.end();
        return died(how.empty() ? "ended the process" : "crashed: " + how, last_output(process.printed()));
      }
      case Process::Next::late:
        process.kill();
        process.end();
        return hung((current_ ? limit() : patience).count());
      }
    }
  }

  std::chrono::seconds limit() const {
    return current_->name.find(".bench.") == std::string::npos ? supervision_.limit : 10 * supervision_.limit;
  }

  // True for the last line.
  bool take(const std::string& line) {
    auto said = nlohmann::json::parse(line, nullptr, false);
    if (said.is_discarded()) return false; // a plugin wrote to our descriptor
    if (said.contains("done")) return true;
    if (said.contains("figure")) {
      report_.figures.push_back(
          {said["figure"], said["unit"], said["plugin"], said["reference"], said["plugin_cpu"], said["reference_cpu"]});
    } else if (said.contains("kinds")) {
      report_.plugin = said["plugin"];
      report_.version = said["version"];
      report_.kinds = said["kinds"];
    } else if (said.contains("begin")) {
      current_ = Entry{said["begin"], said["proves"], {}, 0};
    } else if (said.contains("end") && current_) {
      current_->outcome = {static_cast<State>(said["state"].get<int>()), said["text"]};
      current_->seconds = said["seconds"];
      if (said.value("blocked", false)) job_.failed.push_back(current_->name);
      record();
    }
    return false;
  }

  void record() {
    job_.after = current_->name;
    if (current_->outcome.state == State::failed) job_.failed.push_back(current_->name);
    report_.entries.push_back(*current_);
    if (supervision_.on_entry) supervision_.on_entry(*current_);
    current_.reset();
  }

  // A plugin that hangs once may do so in this row alone; one that does so twice would take the whole limit each time.
  bool hung(int64_t seconds) {
    const bool ends = died(fmt::format("did not end within {} s", seconds), "");
    if (ends || ++hangs_ < most_hangs) return ends;
    current_ = Entry{"library.returns", "the plugin's functions return", {}, 0};
    current_->outcome =
        failed("{} checks did not end within their {} s: those after them were left out", hangs_, seconds);
    record();
    return true;
  }

  bool died(const std::string& how, const std::string& said) {
    const bool between = !current_;
    if (between) {
      // Between two rows the plugin only sits there, or is opened once more.
      current_ = Entry{"library.survives", "the process lives between two checks", {}, 0};
      if (report_.entries.empty() && !said.empty())
        throw Error(ErrorKind::internal, fmt::format("the checking process {} before its first check", how))
            .advise(said);
    }
    current_->outcome = failed("the plugin {}{}{}", how, said.empty() ? "" : "; it said: ", said);
    const std::string resume = between ? job_.after : current_->name;
    record();
    job_.after = resume;
    return between || ++deaths_ > 200;
  }

  Job job_;
  const Supervision& supervision_;
  Report report_;
  std::optional<Entry> current_;
  int deaths_ = 0, hangs_ = 0;
  static constexpr int most_hangs = 2;
};

} // namespace

Report check_plugin(Job job, const Supervision& supervision) {
  return Supervisor(std::move(job), supervision).run();
}

} // namespace fvlm::check
