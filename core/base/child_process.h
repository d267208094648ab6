// Child processes, by posix_spawn: pipes to them, their end within a time limit, and their removal with everything that
// they started.
#pragma once
#include "base/descriptor.h"
#include "base/error.h"

#include <chrono>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace fvlm {

// Both ends of a pipe. They are not inherited by child processes, unless ChildOptions::descriptors says so.
class Pipe {
 public:
  Pipe(); // throws Error(device)
  const Descriptor& reader() const { return reader_; }
  const Descriptor& writer() const { return writer_; }
  void close_reader() { reader_ = Descriptor(-1); }
  void close_writer() { writer_ = Descriptor(-1); }

  // Appends what can be read without blocking, at most 1 MiB. Closes the reader at the end of the file.
  void drain(std::string& into);

 private:
  Descriptor reader_, writer_;
};

// The variables of this process as NAME=VALUE.
std::vector<std::string> current_environment();

struct ChildOptions {
  std::vector<std::string> command; // the program's path, then its arguments
  // {descriptor here, descriptor in the child}; -1 here stands for /dev/null. The child gets no others, and its
  // standard input is /dev/null unless 0 is among them.
  std::vector<std::pair<int, int>> descriptors;
  std::string folder = "."; // in which the child runs
  std::vector<std::string> environment = current_environment();
};

class ChildProcess {
 public:
  // Throws Error(device) "cannot start the process: ..." at the program's path.
  explicit ChildProcess(const ChildOptions& options);
  // Kills the child's process group, that is the child and everything it started, and reaps the child.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool has_ended(); // without blocking
  void wait();
  void kill() const;      // the process group
  void terminate() const; // SIGTERM to the child alone
  pid_t id() const { return id_; }
  int status() const { return status_; } // as of waitpid(), once the child has ended

 private:
  pid_t id_ = -1;
  int status_ = 0;
  bool has_ended_ = false;
};

// Blocks until one of the pipes can be read, the child may have ended, or the time is over. At most 50 ms, because a
// grandchild may keep the pipes open after the child has ended.
void wait_for_output(const std::vector<const Pipe*>& pipes, std::chrono::steady_clock::time_point deadline);

std::string signal_name(int number); // "SIGSEGV"

} // namespace fvlm
