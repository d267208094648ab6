// Ctrl-C while a file or folder is being written: what is unfinished is taken away before the process ends.
#pragma once
#include <exception>

namespace fvlm {

// Thrown by throw_if_interrupted(). No Error, so that nobody takes it for one that training survives; whoever catches
// it last, once everything is tidy, ends the process by the same signal.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  const char* what() const noexcept override { return "interrupted"; }
  int signal() const { return signal_; }

 private:
  int signal_;
};

// While it lives, the first SIGINT, SIGTERM or SIGHUP is only noted, and AtomicFile and AtomicFolder throw Interrupted
// at their next write; a second one ends the process at once. One at a time.
class InterruptibleWrites {
 public:
  InterruptibleWrites();
  ~InterruptibleWrites();
  InterruptibleWrites(const InterruptibleWrites&) = delete;
  InterruptibleWrites& operator=(const InterruptibleWrites&) = delete;
};

void throw_if_interrupted();

// Says so, and ends the process by that signal. Returns an exit code where the signal is blocked.
int end_by(const Interrupted& interrupted);

} // namespace fvlm
