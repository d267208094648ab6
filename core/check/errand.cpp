#include "check/errand.h"

#include "base/file.h"
#include "base/text.h"
#include "check/child.h"
#include "check/families.h"
#include "check/workbench.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace fvlm::check {
namespace {

struct Ended {
  std::string said; // on the descriptor for reports
  std::string how;  // "" for exit status 0
};

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

// This process's own command line with another job as its last word.
std::vector<std::string> command_with(const std::string& job) {
  std::vector<std::string> words = split(read_file("/proc/self/cmdline"), '\0');
  if (!words.empty() && words.back().empty()) words.pop_back();
  if (words.size() < 2) throw Refused{State::not_applicable, "the command line of this process cannot be read"};
  words.back() = job;
  words.front() = "/proc/self/exe";
  return words;
}

Ended send(Context& context, const std::string& errand, bool elsewhere) {
  Job job;
  job.library = context.subject.built_in() ? "" : context.subject.library().string();
  job.declared = context.subject.declared();
  job.device = context.device.is_cuda() ? "cuda" : "cpu";
  job.errand = errand;
  auto words = command_with(to_text(job));
  std::vector<std::string> variables;
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string_view text = *variable;
    const bool replaced = text.starts_with("TZ=") || text.starts_with("LANG=") || text.starts_with("LC_ALL=") ||
                          text.starts_with("USER=") || text.starts_with("HOSTNAME=") || text.starts_with("PWD=") ||
                          text.starts_with("LOGNAME=") || text.starts_with("SHLVL=") || text.starts_with("TERM=");
    if (!elsewhere || !replaced) variables.emplace_back(text);
  }
  if (elsewhere)
    for (const char* variable :
         {"TZ=Pacific/Chatham", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "USER=somebody-else", "LOGNAME=somebody-else",
          "HOSTNAME=elsewhere", "PWD=/", "SHLVL=7", "TERM=dumb", "FVLM_SOMETHING_NEW=1"})
      variables.emplace_back(variable);

  const int said = memfd_create("said", MFD_CLOEXEC), printed = memfd_create("printed", MFD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, printed, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, printed, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, said, report_descriptor);
  if (elsewhere) posix_spawn_file_actions_addchdir_np(&actions, "/");
  pid_t id = 0;
  const int trouble =
      posix_spawn(&id, words[0].c_str(), &actions, nullptr, pointers_to(words).data(), pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (trouble == 0)
    while (waitpid(id, &status, 0) < 0 && errno == EINTR) {
    }
  Ended ended;
  ended.said = read_file(fmt::format("/proc/self/fd/{}", said));
  const std::string words_printed = trimmed(read_file(fmt::format("/proc/self/fd/{}", printed)));
  close(said);
  close(printed);
  if (trouble != 0) throw Refused{State::failed, fmt::format("cannot start a process: {}", std::strerror(trouble))};
  if (WIFSIGNALED(status))
    ended.how = fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) != 0)
    ended.how = fmt::format("exit status {}", WEXITSTATUS(status));
  if (!ended.how.empty() && !words_printed.empty())
    ended.how += "; it said: " + words_printed.substr(words_printed.rfind('\n') + 1, 200);
  return ended;
}

void report(const std::string& text) {
  if (write(report_descriptor, text.data(), text.size()) < 0) _exit(9);
}

} // namespace

std::string digest(Context& context, bool backwards) {
  const auto trials = repeatable_trials(context);
  std::vector<std::string> lines(trials.size());
  for (size_t turn = 0; turn < trials.size(); ++turn) {
    const size_t i = backwards ? trials.size() - 1 - turn : turn;
    if (!refusal(context, trials[i]).empty()) continue;
    const Run run = trials[i].run(context, {});
    uint64_t sum = 14695981039346656037u; // FNV-1a
    for (const auto& [name, tensor] : run.outputs) {
      const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
      for (size_t k = 0; k < tensor.nbytes(); ++k) sum = (sum ^ bytes[k]) * 1099511628211u;
    }
    lines[i] = fmt::format("{}: {}{:x}", trials[i].label, run.trouble(), sum);
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string digest_elsewhere(Context& context) {
  const Ended ended = send(context, "digest " + context.kind, true);
  if (!ended.how.empty()) throw Refused{State::failed, "in another process: " + ended.how};
  return ended.said;
}

std::string trouble_at_exit(Context& context) {
  const Ended ended = send(context, "exit " + context.kind, false);
  if (ended.said == "used" || ended.said.starts_with("usedend")) {
    if (!ended.how.empty()) return "a process that calls exit(0) ends with " + ended.how;
    return ended.said == "used" ? "a process that calls exit(0) ends at once: other handlers of atexit() are not run"
                                : "";
  }
  throw Refused{State::failed, fmt::format("in another process: {}", ended.how.empty() ? "it ended" : ended.how)};
}

void do_errand(const std::string& errand, Subject& subject, const std::string& device) {
  const auto space = errand.find(' ');
  const std::string task = errand.substr(0, space), kind = errand.substr(space + 1);
  // Handlers run in the reverse order: this one after the plugin's.
  if (task == "exit") std::atexit([] { report("end"); });
  std::srand(4711);
  if (!subject.enter().empty()) _exit(8);
  const bool on_host = family_of(kind) == "packer" || family_of(kind) == "video";
  auto& context = *new Context(subject, kind, on_host ? at::Device(at::kCPU) : at::Device(device));
  try {
    if (task == "digest") {
      report(digest(context, true));
      _exit(0);
    }
    for (const Trial& trial : context.typical()) {
      Instance own(context, context.host());
      Variation variation;
      variation.instance = own.get();
      trial.run(context, variation);
    }
  } catch (const Refused&) {
  }
  report("used");
  std::exit(0);
}

} // namespace fvlm::check
