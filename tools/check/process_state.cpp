#include "check/process_state.h"

#include "base/child_process.h"
#include "check/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <exception>
#include <fcntl.h>
#include <locale.h>
#include <new>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace fvlm::check {
namespace {

std::string numbers_in(const sigset_t& set) {
  std::string text;
  for (int number = 1; number < NSIG; ++number)
    if (sigismember(&set, number) == 1) text += fmt::format("{}{}", text.empty() ? "" : " ", number);
  return text;
}

// Armed or not: how much is left changes by itself.
std::string timers_armed() {
  std::string text;
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer{};
    getitimer(static_cast<__itimer_which_t>(which), &timer);
    const bool armed = timer.it_value.tv_sec || timer.it_value.tv_usec || timer.it_interval.tv_sec;
    text += armed ? 'x' : '-';
  }
  return text;
}

// Numbers of the entries of a folder of /proc.
std::set<int> numbers_of(const char* path) {
  std::set<int> found;
  DIR* folder = opendir(path);
  if (!folder) return found;
  const int own = std::strcmp(path, "/proc/self/fd") == 0 ? dirfd(folder) : -1;
  while (const dirent* entry = readdir(folder))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != own) found.insert(std::atoi(entry->d_name));
  closedir(folder);
  return found;
}

std::string target_of(int descriptor) {
  char target[512];
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  std::string text(target, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags & O_NONBLOCK) text += " (does not block)";
  if (flags & O_APPEND) text += " (appends)";
  if (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) text += " (closed by exec)";
  return text;
}

std::string limits_text() {
  std::string text;
  for (int resource = 0; resource < RLIM_NLIMITS; ++resource) {
    rlimit limit{};
    getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
    text += fmt::format("{}:{}/{} ", resource, limit.rlim_cur, limit.rlim_max);
  }
  return text;
}

std::string working_folder() {
  char path[4096];
  return getcwd(path, sizeof path) ? path : "(none)";
}

// What else the kernel keeps for a process or its threads.
std::string attributes() {
  std::string text =
      fmt::format("user {} group {} process group {} session {}", geteuid(), getegid(), getpgrp(), getsid(0));
  constexpr std::pair<const char*, int> options[] = {{"dumpable", PR_GET_DUMPABLE},
                                                     {"timer slack", PR_GET_TIMERSLACK},
                                                     {"no new privileges", PR_GET_NO_NEW_PRIVS},
                                                     {"keeps capabilities", PR_GET_KEEPCAPS}};
  for (const auto& [name, option] : options) text += fmt::format(" {} {}", name, prctl(option, 0, 0, 0, 0));
  int number = 0;
  if (prctl(PR_GET_PDEATHSIG, &number) == 0) text += fmt::format(" signal at the parent's death {}", number);
  if (prctl(PR_GET_CHILD_SUBREAPER, &number) == 0) text += fmt::format(" reaper {}", number);
  return text;
}

int64_t bytes_printed() {
  std::fflush(nullptr);
  struct stat status {};
  return fstat(STDOUT_FILENO, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<int64_t>(status.st_size) : 0;
}

template <class Value>
std::string changed(std::string_view what, const Value& was, const Value& is) {
  return was == is ? "" : fmt::format("{} was {} and is {}", what, was, is);
}

std::string first_of(std::initializer_list<std::string> all) {
  for (const std::string& text : all)
    if (!text.empty()) return text;
  return "";
}

} // namespace

ProcessState ProcessState::now() {
  ProcessState state;
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    Handler handler;
    if (sigaction(number, nullptr, &handler.action) != 0) continue; // the C library's own
    handler.function = reinterpret_cast<void*>(handler.action.sa_handler);
    handler.flags = handler.action.sa_flags & ~0x04000000; // SA_RESTORER
    handler.blocked = numbers_in(handler.action.sa_mask);
    state.handlers_[number] = handler;
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &state.blocked_);
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  state.signal_stack_ = stack.ss_flags & SS_DISABLE ? nullptr : stack.ss_sp;
  state.timers_ = timers_armed();
  state.new_handler_ = reinterpret_cast<void*>(std::get_new_handler());
  state.terminate_ = reinterpret_cast<void*>(std::get_terminate());

  for (int descriptor : numbers_of("/proc/self/fd"))
    if (std::string target = target_of(descriptor); !target.empty()) state.descriptors_[descriptor] = target;

  state.locale_ = setlocale(LC_ALL, nullptr);
  state.thread_locale_ = static_cast<void*>(uselocale(nullptr));
  state.folder_ = working_folder();
  state.umask_ = umask(0);
  umask(state.umask_);
  for (char** variable = environ; variable && *variable; ++variable) state.variables_.emplace_back(*variable);

  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &cpus)) state.affinity_ += fmt::format("{}{}", state.affinity_.empty() ? "" : " ", cpu);
  state.priority_ = getpriority(PRIO_PROCESS, 0);
  state.policy_ = sched_getscheduler(0);
  state.limits_ = limits_text();
  char name[32] = "";
  prctl(PR_GET_NAME, name);
  state.thread_name_ = name;
  state.attributes_ = attributes();

  state.threads_ = numbers_of("/proc/self/task");
  siginfo_t info{};
  state.has_children_ = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
  rusage children{};
  getrusage(RUSAGE_CHILDREN, &children);
  state.reaped_ = children.ru_minflt + children.ru_majflt;
  state.float_mode_ = check::float_mode();
  state.printed_ = bytes_printed();
  return state;
}

std::string ProcessState::difference(const ProcessState& later, Aspect aspect) const {
  switch (aspect) {
  case Aspect::signals:
    for (const auto& [number, handler] : handlers_) {
      const auto found = later.handlers_.find(number);
      if (found == later.handlers_.end()) continue;
      if (found->second.function != handler.function)
        return fmt::format("the handler of {} is another one", signal_name(number));
      if (found->second.flags != handler.flags || found->second.blocked != handler.blocked)
        return fmt::format("{} is handled with other flags or another mask", signal_name(number));
    }
    return first_of({changed("the thread's mask of blocked signals", "'" + numbers_in(blocked_) + "'",
                             "'" + numbers_in(later.blocked_) + "'"),
                     signal_stack_ == later.signal_stack_ ? "" : "the thread's alternate signal stack is another one",
                     changed("the interval timers (real, virtual, profiling)", timers_, later.timers_),
                     new_handler_ == later.new_handler_ ? "" : "std::get_new_handler() is another one",
                     terminate_ == later.terminate_ ? "" : "std::get_terminate() is another one"});
  case Aspect::descriptors:
    for (const auto& [descriptor, target] : later.descriptors_) {
      const auto before = descriptors_.find(descriptor);
      if (before == descriptors_.end()) return fmt::format("left open: {} -> {}", descriptor, target);
      if (before->second != target)
        return fmt::format("descriptor {} was {} and is {}", descriptor, before->second, target);
    }
    for (const auto& [descriptor, target] : descriptors_)
      if (!later.descriptors_.contains(descriptor)) return fmt::format("closed: {} -> {}", descriptor, target);
    return "";
  case Aspect::environment:
    for (const auto& variable : later.variables_)
      if (std::ranges::find(variables_, variable) == variables_.end())
        return fmt::format("the environment variable {} is new or has another value",
                           variable.substr(0, variable.find('=')));
    for (const auto& variable : variables_)
      if (std::ranges::find(later.variables_, variable) == later.variables_.end())
        return fmt::format("the environment variable {} is gone", variable.substr(0, variable.find('=')));
    return first_of({changed("the locale", locale_, later.locale_),
                     thread_locale_ == later.thread_locale_ ? "" : "the thread's locale is another one",
                     changed("the working folder", folder_, later.folder_),
                     changed("the umask", fmt::format("{:03o}", umask_), fmt::format("{:03o}", later.umask_))});
  case Aspect::scheduling:
    return first_of({changed("the set of CPUs on which the thread runs", affinity_, later.affinity_),
                     changed("the priority", priority_, later.priority_),
                     changed("the scheduling policy", policy_, later.policy_),
                     changed("the thread's name", thread_name_, later.thread_name_),
                     changed("the process", attributes_, later.attributes_),
                     limits_ == later.limits_ ? "" : "a resource limit (setrlimit) is another one"});
  case Aspect::threads:
    for (int thread : later.threads_)
      if (!threads_.contains(thread)) return fmt::format("thread {} is new and runs on", thread);
    return "";
  case Aspect::processes:
    if (later.has_children_ && !has_children_) return "a child process was left behind";
    return later.reaped_ == reaped_ ? "" : "a child process was started and waited for";
  case Aspect::float_mode:
    return changed("the floating-point control", fmt::format("{:#x}", float_mode_),
                   fmt::format("{:#x}", later.float_mode_));
  case Aspect::output:
    return later.printed_ == printed_ ? ""
                                      : fmt::format("{} bytes were printed to standard output or error: log() of the "
                                                    "host is for that",
                                                    later.printed_ - printed_);
  }
  return "";
}

void ProcessWatch::compare(const ProcessState& before, const std::string& since, const std::vector<Aspect>& which) {
  const ProcessState after = ProcessState::now();
  bool any = false;
  for (Aspect aspect : which)
    if (auto text = before.difference(after, aspect); !text.empty()) {
      changes_.emplace(aspect, since + ": " + text);
      any = true;
    }
  if (any) before.restore();
}

void ProcessState::restore() const {
  for (const auto& [number, handler] : handlers_) sigaction(number, &handler.action, nullptr);
  pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
  const itimerval never{};
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF})
    setitimer(static_cast<__itimer_which_t>(which), &never, nullptr);
  std::set_new_handler(reinterpret_cast<std::new_handler>(new_handler_));
  std::set_terminate(reinterpret_cast<std::terminate_handler>(terminate_));
  setlocale(LC_ALL, locale_.c_str());
  uselocale(static_cast<locale_t>(thread_locale_));
  if (chdir(folder_.c_str()) != 0) return;
  umask(umask_);
  set_float_mode(float_mode_);
}

} // namespace fvlm::check
