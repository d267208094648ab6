// The state that a plugin shares with the rest of the process and has to leave as it found it.
#pragma once
#include <array>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fvlm::check {

// One row of a report each.
enum class Aspect { signals, descriptors, environment, scheduling, threads, processes, float_mode, output };
constexpr std::array aspects{Aspect::signals, Aspect::descriptors, Aspect::environment, Aspect::scheduling,
                             Aspect::threads, Aspect::processes,   Aspect::float_mode,  Aspect::output};

class ProcessState {
 public:
  static ProcessState now();

  // Describes how this aspect differs in `later`: "the umask was 022 and is 0"; "" if it does not.
  std::string difference(const ProcessState& later, Aspect aspect) const;

  // Restores the calling thread's and the process's settings, so that one change is reported once. Does not touch
  // threads, processes and open files.
  void restore() const;

 private:
  struct Handler {
    void* function = nullptr;
    int flags = 0;
    std::string blocked; // while it runs
    struct sigaction action {};
  };
  std::map<int, Handler> handlers_;
  sigset_t blocked_{};
  void* signal_stack_ = nullptr;
  std::string timers_;
  void *new_handler_ = nullptr, *terminate_ = nullptr;

  std::map<int, std::string> descriptors_;

  std::string locale_, folder_;
  void* thread_locale_ = nullptr;
  unsigned umask_ = 0;
  std::vector<std::string> variables_;

  std::string affinity_, limits_, thread_name_, attributes_;
  int priority_ = 0, policy_ = 0;

  std::set<int> threads_;
  bool has_children_ = false;
  long reaped_ = 0; // page faults of children that were waited for

  uint32_t float_mode_ = 0;
  int64_t printed_ = 0; // bytes, where standard output is a file
};

// What calls leave changed in the process, the first change of each aspect.
class ProcessWatch {
 public:
  template <class Function>
  void around(const std::string& call, const Function& function) {
    const ProcessState before = ProcessState::now();
    function();
    compare(before, call);
  }
  // Records which of these aspects differ now from `before`.
  void compare(const ProcessState& before, const std::string& since,
               const std::vector<Aspect>& which = {aspects.begin(), aspects.end()});
  const std::map<Aspect, std::string>& changes() const { return changes_; }

 private:
  std::map<Aspect, std::string> changes_;
};

} // namespace fvlm::check
