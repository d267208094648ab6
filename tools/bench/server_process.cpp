#include "bench/server_process.h"

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/file.h"

#include <fmt/format.h>

#include <chrono>
#include <fcntl.h>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace fvlm::bench {

ServerProcess::ServerProcess(const std::filesystem::path& model, const std::vector<std::string>& options) {
  const double start = steady_seconds();
  ChildOptions child;
  child.command = {(program_folder() / "fvlm-engine").string(), "serve", model.string(), "--port", "0"};
  child.command.insert(child.command.end(), options.begin(), options.end());
  const Descriptor log(open((scratch_ / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (!log) fail_to_write(scratch_ / "log", "create the log");
  child.descriptors = {{log.get(), STDOUT_FILENO}, {log.get(), STDERR_FILENO}};
  process_ = std::make_unique<ChildProcess>(child);
  address_ = address_of(wait_for_port());
  (void)http_get(address_, "/health");
  ready_ = steady_seconds() - start;
}

// The server's address, as its log has it once it listens.
std::string ServerProcess::wait_for_port() {
  for (;;) {
    const bool has_ended = process_->has_ended();
    const std::string text = log();
    const size_t begin = text.find("http://");
    if (const size_t end = text.find("/v1", begin); begin != std::string::npos && end != std::string::npos)
      return text.substr(begin, end - begin);
    if (has_ended)
      throw Error(ErrorKind::device, "the server did not start: " + text).advise("start it with `fvlm-engine serve`");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string ServerProcess::log() const {
  return read_file(scratch_ / "log");
}

int64_t ServerProcess::resident_bytes() const {
  std::ifstream file(fmt::format("/proc/{}/statm", process_->id()));
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void ServerProcess::stop() {
  process_->terminate();
  process_->wait();
  if (process_->status() != 0)
    throw Error(ErrorKind::device, "the server ended with status {}: {}", process_->status(), log());
}

} // namespace fvlm::bench
