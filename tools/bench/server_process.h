// A `fvlm-engine serve` in a process of its own, and what it takes of the machine.
#pragma once
#include "base/child_process.h"
#include "base/scratch_folder.h"
#include "bench/http_load.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::bench {

class ServerProcess {
 public:
  // Starts this program's `serve` on any free port, and waits until it answers. Throws Error(device) with what it
  // logged where it ends before.
  ServerProcess(const std::filesystem::path& model, const std::vector<std::string>& options);

  const HttpAddress& address() const { return address_; }
  double seconds_to_ready() const { return ready_; }
  int64_t resident_bytes() const; // 0: it has ended
  std::string log() const;
  // Ends it as SIGTERM does. Throws Error(device) where it ends otherwise than by itself, with exit code 0.
  void stop();

 private:
  std::string wait_for_port();

  ScratchFolder scratch_;
  std::unique_ptr<ChildProcess> process_;
  HttpAddress address_;
  double ready_ = 0;
};

} // namespace fvlm::bench
