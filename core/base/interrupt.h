// Ctrl-C while a file or folder is being written: unfinished files are removed before the process ends.
#pragma once
#include <exception>

namespace fvlm {

// Thrown by throw_if_interrupted(). Not an Error, so that no handler continues after it. The outermost handler ends the
// process by the same signal.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  const char* what() const noexcept override { return "interrupted"; }
  int signal() const { return signal_; }

 private:
  int signal_;
};

// For the lifetime of the object, the first SIGINT, SIGTERM or SIGHUP makes the next write of AtomicFile and
// AtomicFolder throw Interrupted; a second one ends the process immediately. One object at a time.
class InterruptibleWrites {
 public:
  InterruptibleWrites();
  ~InterruptibleWrites();
  InterruptibleWrites(const InterruptibleWrites&) = delete;
  InterruptibleWrites& operator=(const InterruptibleWrites&) = delete;
};

void throw_if_interrupted();

// Logs a warning and ends the process by that signal. Returns an exit code where the signal is blocked.
int end_process_by_signal(const Interrupted& interrupted);

} // namespace fvlm
