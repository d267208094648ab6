#include "check/other_process.h"

#include "base/child_process.h"
#include "base/text.h"
#include "check/families.h"
#include "check/memory_file.h"
#include "check/probe.h"
#include "plugin/untrusted.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace fvlm::check {
namespace {

// An exit code that no other end of the process has.
constexpr int exit_code = 83;
// Number of processes that each compute the results. If a plugin's results depend on a random bit of its process, all
// of them agree by chance once in 2^8 runs.
constexpr int copies = 8;
// Between two answers on the descriptor for reports.
constexpr char separator = '\x1e';

struct ChildResult {
  std::string reported, printed;
  int status = 0; // as waitpid() gives it; -1: it did not end
};

// Waits without limit, as the supervisor watches over that, until the process has reported `last`; from then on as long
// as an idle process may take to exit on the busiest machine.
bool wait_for(ChildProcess& process, const MemoryFile& report, std::string_view last) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> deadline;
  size_t seen = 0;
  while (!process.has_ended()) {
    const std::string reported = report.text();
    if (reported.size() > seen) {
      seen = reported.size();
      keep_alive();
    }
    if (!deadline && !last.empty() && reported.ends_with(last)) deadline = Clock::now() + std::chrono::seconds(30);
    if (deadline && Clock::now() > *deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

ChildResult send(Context& context, const std::string& child_task, std::string_view last) {
  const Subject& subject = context.subject;
  if (subject.command.empty())
    throw RowAborted{State::not_applicable, "nothing says how another process of this kind is started"};
  Job job;
  job.library = subject.library().string();
  job.declared = subject.declared();
  job.device = context.device.is_cuda() ? "cuda" : "cpu";
  job.child_task = child_task;
  job.kind = context.kind;
  std::vector<std::string> words = subject.command;
  words.push_back(to_text(job));
  const MemoryFile report, printed;
  ChildProcess process({.command = words,
                        .descriptors = {{printed.descriptor(), STDOUT_FILENO},
                                        {printed.descriptor(), STDERR_FILENO},
                                        {report.descriptor(), report_descriptor}}});
  const bool has_ended = wait_for(process, report, last);
  return {report.text(), last_output(printed.text()), has_ended ? process.status() : -1};
}

std::string text_of(int status) {
  if (status == -1) return "did not end within 30 s";
  if (WIFSIGNALED(status)) return fmt::format("crashed: signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

std::string quoted(const std::string& printed) {
  return printed.empty() ? "" : "; it printed: " + printed;
}

void report(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(report_descriptor, text.data(), text.size());
    if (count <= 0) _exit(1);
    text.remove_prefix(static_cast<size_t>(count));
  }
}

void* reserve(size_t bytes) {
  return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// The next library and the next thread's stack lie so many pages lower: gaps that would have taken them are filled.
void move_addresses(size_t pages) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t bytes = 4096 * page; bytes >= page; bytes /= 4) {
    char* lowest = static_cast<char*>(reserve(bytes));
    for (int i = 0; i < 2000; ++i) {
      char* next = static_cast<char*>(reserve(bytes));
      if (next == MAP_FAILED || next + bytes == lowest) break;
      lowest = std::min(lowest, next);
    }
  }
  reserve(pages * page);
}

// Before the plugin is opened: whatever it may read of its process is another in each of them.
void vary_environment(int number) {
  for (const char* name : {"USER", "LOGNAME", "HOME", "PATH", "SHELL", "TMPDIR", "HOSTNAME", "TZ", "LANG", "LC_ALL",
                           "PWD", "OLDPWD", "TERM", "DISPLAY", "COLUMNS", "LINES"})
    setenv(name, std::string(static_cast<size_t>(number), static_cast<char>('a' + number)).c_str(), 1);
  for (int i = 0; i < number; ++i) setenv(fmt::format("FVLM_ANY_{}", i).c_str(), "1", 1);
  constexpr const char* folders[] = {"/", "/tmp", "/usr", "/proc", "/etc"};
  if (chdir(folders[static_cast<size_t>(number) % std::size(folders)]) != 0) _exit(1);
  std::srand(static_cast<unsigned>(number));
  if (number % 2) setlocale(LC_ALL, "C.UTF-8");
  move_addresses(977 * static_cast<size_t>(number) + 1);
  [[maybe_unused]] static void* volatile kept; // so that the heap begins elsewhere
  kept = std::malloc(4096 * static_cast<size_t>(number) + 48 * static_cast<size_t>(number % 5));
  // What the kernel gave this process to draw random numbers from, already used by the C library.
  if (auto* random = reinterpret_cast<unsigned char*>(getauxval(AT_RANDOM)))
    for (int i = 0; i < 16; ++i) random[i] = static_cast<unsigned char>(random[i] * 167 + 13 * number + i);
  cpu_set_t all;
  CPU_ZERO(&all);
  if (number % 2 && sched_getaffinity(0, sizeof all, &all) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &all)) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        break;
      }
  shift_system_values(number);
}

[[noreturn]] void report_results(const Job& job, Subject& subject) {
  if (!subject.enter().empty()) _exit(1);
  try {
    auto& context = *new Context(subject, job.kind, at::Device(at::kCPU));
    std::vector<std::string> hashes;
    std::string refused;
    // On another stack than the main thread's, too.
    std::thread([&] {
      try {
        hashes = result_hashes(context, true);
      } catch (const RowAborted& why) {
        refused = why.text;
      }
    }).join();
    if (!refused.empty()) throw RowAborted{State::failed, refused};
    report(fmt::format("{}{}", fmt::join(hashes, "\n"), separator));
  } catch (const RowAborted& refused) {
    std::fputs(refused.text.c_str(), stderr);
    _exit(1);
  }
  _exit(0);
}

// Each in a copy of this process, which has loaded everything but the plugin.
[[noreturn]] void report_results_of_copies(const Job& job, Subject& subject) {
  for (int number = 1; number <= copies; ++number) {
    const pid_t id = fork();
    if (id < 0) _exit(1);
    if (id == 0) {
      vary_environment(number);
      report_results(job, subject);
    }
    int status = 0;
    while (waitpid(id, &status, 0) < 0 && errno == EINTR) {
    }
    if (status == 0) continue;
    std::fputs(text_of(status).c_str(), stderr);
    _exit(1);
  }
  _exit(0);
}

constexpr std::string_view used = "\nused";

[[noreturn]] void use_and_exit(const Job& job, Subject& subject) {
  if (!subject.enter().empty()) _exit(1);
  ProcessWatch watch;
  try {
    auto& context = *new Context(subject, job.kind, at::Device(at::kCPU));
    context.host(); // its threads are not the plugin's
    for (const Trial& trial : typical_trials(context)) {
      bool refused = true;
      watch.around("the first supports()", [&] { refused = !refusal(context, trial).empty(); });
      if (refused) continue;
      std::optional<Instance> own;
      watch.around("the first create()", [&] { own.emplace(context, context.host()); });
      trial.run(context, {.watch = &watch, .instance = own->get()});
      watch.around("the first destroy()", [&] { own.reset(); });
    }
  } catch (const RowAborted&) { // other rows say so
  }
  // Earlier output is checked by another row.
  std::fflush(nullptr);
  if (ftruncate(STDOUT_FILENO, 0) == 0) lseek(STDOUT_FILENO, 0, SEEK_SET);
  nlohmann::json changes = nlohmann::json::array();
  for (const auto& [aspect, text] : watch.changes()) changes.push_back({static_cast<int>(aspect), text});
  report(changes.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  report(used);
  std::exit(exit_code);
}

} // namespace

std::vector<std::string> result_hashes(Context& context, bool backwards) {
  const auto trials = repeatable_trials(context);
  std::vector<std::string> lines(trials.size());
  for (size_t turn = 0; turn < trials.size(); ++turn) {
    const size_t i = backwards ? trials.size() - 1 - turn : turn;
    if (!refusal(context, trials[i]).empty()) continue;
    const Run run = trials[i].run(context, {});
    uint64_t hash = 14695981039346656037u; // FNV-1a
    for (const auto& [name, tensor] : run.outputs) {
      const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
      for (size_t k = 0; k < tensor.nbytes(); ++k) hash = (hash ^ bytes[k]) * 1099511628211u;
    }
    lines[i] = fmt::format("{}: {}{:016x}", trials[i].label, run.failure(), hash);
  }
  return lines;
}

std::vector<std::vector<std::string>> result_hashes_elsewhere(Context& context) {
  const ChildResult ended = send(context, "results", "");
  if (ended.status != 0)
    throw RowAborted{State::failed,
                     fmt::format("another process that used it {}{}", text_of(ended.status), quoted(ended.printed))};
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : split(ended.reported, separator))
    if (!one.empty()) all.push_back(split(one, '\n'));
  if (all.size() != copies)
    throw RowAborted{State::failed, fmt::format("{} of {} other processes came to results", all.size(), copies)};
  return all;
}

namespace {

FreshProcess use_in_fresh_process(Context& context) {
  const ChildResult ended = send(context, "exit", used);
  const bool exited = ended.status != -1 && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == exit_code;
  if (!ended.reported.ends_with(used))
    throw RowAborted{State::failed,
                     fmt::format("another process that used it {}{}", text_of(ended.status), quoted(ended.printed))};
  FreshProcess fresh;
  for (const auto& [aspect, text] : nlohmann::json::parse(ended.reported.substr(0, ended.reported.size() - used.size()))
                                        .get<std::vector<std::pair<int, std::string>>>())
    fresh.changes.emplace(static_cast<Aspect>(aspect), text);
  if (!exited)
    fresh.exit = fmt::format("a process that used it called exit({}) and {}{}", exit_code, text_of(ended.status),
                             quoted(ended.printed));
  else if (!ended.printed.empty())
    fresh.exit = "a process that used it printed by its exit: " + ended.printed;
  return fresh;
}

} // namespace

const FreshProcess& fresh_process(Context& context) {
  static std::map<std::string, FreshProcess> known;
  auto found = known.find(context.kind);
  if (found == known.end()) found = known.emplace(context.kind, use_in_fresh_process(context)).first;
  return found->second;
}

void run_child_task(const Job& job, Subject& subject) {
  if (job.child_task == "results") report_results_of_copies(job, subject);
  use_and_exit(job, subject);
}

} // namespace fvlm::check
