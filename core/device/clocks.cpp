#include "device/clocks.h"

#include "device/nvml.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <memory>
#include <sched.h>
#include <utility>
#include <vector>

namespace fvlm::device {
namespace {

namespace fs = std::filesystem;

// Of a processor, in the file of cpufreq, which has kHz.
std::optional<double> cpufreq_megahertz(const fs::path& root, int processor) {
  std::ifstream file(root / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", processor));
  double kilohertz = 0;
  if (!(file >> kilohertz)) return {};
  return kilohertz * 1e-3;
}

// The mean over the processors that have a line "cpu MHz : 2800.000".
std::optional<double> cpuinfo_megahertz(const fs::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  double total = 0;
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (!line.starts_with("cpu MHz") || colon == std::string::npos) continue;
    double megahertz = 0;
    const char* const end = line.data() + line.size();
    if (std::from_chars(line.data() + colon + 2, end, megahertz).ec != std::errc()) continue;
    total += megahertz;
    ++count;
  }
  if (count == 0) return {};
  return total / static_cast<double>(count);
}

std::vector<int> processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> all;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return all;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) all.push_back(i);
  return all;
}

} // namespace

ReadClocks gpu_clocks(const std::string& bus) {
  return [nvml = std::shared_ptr<const Nvml>(Nvml::open(bus))] {
    return nvml ? Clocks{nvml->sm_megahertz(), nvml->watts()} : Clocks();
  };
}

ReadClocks cpu_clocks(const fs::path& root) {
  return [root, allowed = processors()] {
    double total = 0;
    int64_t count = 0;
    for (const int processor : allowed)
      if (const auto megahertz = cpufreq_megahertz(root, processor)) {
        total += *megahertz;
        ++count;
      }
    if (count > 0) return Clocks{total / static_cast<double>(count), {}};
    return Clocks{cpuinfo_megahertz(root), {}};
  };
}

void ClockSampler::Sum::add(const std::optional<double>& value) {
  if (!value) return;
  total += *value;
  ++count;
}

std::optional<double> ClockSampler::Sum::mean() const {
  if (count == 0) return {};
  return total / static_cast<double>(count);
}

ClockSampler::ClockSampler(ReadClocks read, std::chrono::milliseconds interval)
    : read_(std::move(read)), thread_([this, interval] { run(interval); }) {}

Clocks ClockSampler::stop() {
  end();
  if (megahertz_.count == 0 && watts_.count == 0) sample();
  return {megahertz_.mean(), watts_.mean()};
}

void ClockSampler::sample() {
  const Clocks now = read_();
  megahertz_.add(now.megahertz);
  watts_.add(now.watts);
}

void ClockSampler::run(std::chrono::milliseconds interval) {
  std::unique_lock lock(lock_);
  while (!changed_.wait_for(lock, interval, [this] { return ended_; })) {
    lock.unlock();
    sample();
    lock.lock();
  }
}

void ClockSampler::end() {
  {
    const std::scoped_lock lock(lock_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

} // namespace fvlm::device
