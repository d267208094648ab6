#include "check/supervisor.h"

#include "base/child_process.h"
#include "base/error.h"
#include "check/memory_file.h"
#include "plugin/untrusted.h"

#include <csignal>
#include <cstring>
#include <unistd.h>

namespace fvlm::check {
namespace {

using Clock = std::chrono::steady_clock;

// One child process: the lines that it reports, what it prints, how it ends.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command)
      : child_({.command = command,
                .descriptors = {{printed_.descriptor(), STDOUT_FILENO},
                                {printed_.descriptor(), STDERR_FILENO},
                                {lines_.writer().get(), report_descriptor}}}) {
    lines_.close_writer();
  }

  enum class Next { line, closed, late };

  Next next(std::string& line, Clock::time_point deadline) {
    for (;;) {
      if (auto end = pending_.find('\n'); end != std::string::npos) {
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return Next::line;
      }
      if (!lines_.reader()) return Next::closed;
      if (Clock::now() >= deadline) return Next::late;
      wait_for_output({&lines_}, deadline);
      lines_.drain(pending_);
    }
  }

  // Waits for the end; "" for a good one, else "signal 11 (Segmentation fault)".
  std::string end() {
    child_.wait();
    const int status = child_.status();
    if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WEXITSTATUS(status) ? fmt::format("exit status {}", WEXITSTATUS(status)) : "";
  }

  std::string end_of_output() const { return printed_.text(8192); }

 private:
  Pipe lines_;
  const MemoryFile printed_;
  std::string pending_;
  ChildProcess child_;
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
    const auto startup_limit = std::max<std::chrono::seconds>(supervision_.limit, std::chrono::seconds(60));
    auto deadline = Clock::now() + startup_limit; // LibTorch takes a while to load
    std::string line;
    for (;;) {
      switch (process.next(line, deadline)) {
      case Process::Next::line:
        if (take(line)) return true;
        deadline = Clock::now() + (current_ ? limit() : startup_limit);
        break;
      case Process::Next::closed: {
        const std::string how = process.end();
        return died(how.empty() ? "ended the process" : "crashed: " + how, last_output(process.end_of_output()));
      }
      case Process::Next::late:
        return hung((current_ ? limit() : startup_limit).count());
      }
    }
  }

  std::chrono::seconds limit() const {
    return current_->name.find(".bench.") == std::string::npos ? supervision_.limit : 10 * supervision_.limit;
  }

  // True for the last line.
  bool take(const std::string& line) {
    auto message = nlohmann::json::parse(line, nullptr, false);
    if (message.is_discarded()) return false; // a plugin wrote to our descriptor
    if (message.contains("done")) return true;
    if (message.contains("figure")) {
      report_.figures.push_back({message["figure"], message["unit"], message["plugin"], message["reference"],
                                 message["plugin_cpu"], message["reference_cpu"]});
    } else if (message.contains("kinds")) {
      report_.plugin = message["plugin"];
      report_.version = message["version"];
      report_.kinds = message["kinds"];
    } else if (message.contains("begin")) {
      current_ = Entry{message["begin"], message["proves"], {}, 0};
    } else if (message.contains("end") && current_) {
      current_->outcome = {static_cast<State>(message["state"].get<int>()), message["text"]};
      current_->seconds = message["seconds"];
      if (message.value("blocked", false)) job_.failed.push_back(current_->name);
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
    if (ends || ++hangs_ < max_hangs) return ends;
    current_ = Entry{"library.returns", "the plugin's functions return", {}, 0};
    current_->outcome =
        failed("{} checks did not end within their {} s: those after them were left out", hangs_, seconds);
    record();
    return true;
  }

  bool died(const std::string& how, const std::string& message) {
    const bool between = !current_;
    if (between) {
      // Between two rows the plugin only sits there, or is opened once more.
      current_ = Entry{"library.survives", "the process lives between two checks", {}, 0};
      if (report_.entries.empty() && !message.empty())
        throw Error(ErrorKind::internal, "the checking process {} before its first check", how).advise(message);
    }
    current_->outcome = failed("the plugin {}{}{}", how, message.empty() ? "" : "; it said: ", message);
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
  static constexpr int max_hangs = 2;
};

} // namespace

Report check_plugin(Job job, const Supervision& supervision) {
  return Supervisor(std::move(job), supervision).run();
}

} // namespace fvlm::check
