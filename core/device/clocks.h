// The clock and the power of a device while work runs on it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace fvlm::device {

// Empty where the machine does not report it.
struct Clocks {
  std::optional<double> megahertz, watts;
};
using ReadClocks = std::function<Clocks()>; // as they are now

// Of the GPU at this PCI bus id, by NVML: the clock of its multiprocessors, the power of the board.
ReadClocks gpu_clocks(const std::string& bus);
// The mean clock of the processors that this thread may run on, from cpufreq or /proc/cpuinfo below `root`; no power.
ReadClocks cpu_clocks(const std::filesystem::path& root = "/");

// Reads them on a thread of its own from construction to stop().
class ClockSampler {
 public:
  explicit ClockSampler(ReadClocks read, std::chrono::milliseconds interval = std::chrono::milliseconds(100));
  ~ClockSampler() { end(); }
  ClockSampler(const ClockSampler&) = delete;
  ClockSampler& operator=(const ClockSampler&) = delete;

  // The means of what was read, and at least of what stop() itself reads.
  Clocks stop();

 private:
  struct Sum {
    double total = 0;
    int64_t count = 0;
    void add(const std::optional<double>& value);
    std::optional<double> mean() const;
  };
  void sample();
  void run(std::chrono::milliseconds interval);
  void end();

  ReadClocks read_;
  Sum megahertz_, watts_;
  std::mutex lock_; // of ended_
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

} // namespace fvlm::device
