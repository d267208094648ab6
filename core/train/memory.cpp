#include "train/memory.h"

#include "base/text.h"
#include "device/probe.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

// Of a file that the kernel makes, which has no size before it is read; none where it is not there.
std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The first number in a line; none in "max".
std::optional<uint64_t> number_in(const std::string& line) {
  const size_t begin = line.find_first_of("0123456789");
  if (begin == std::string::npos) return std::nullopt;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

struct ControlGroup {
  const char *folder, *limit, *used, *reclaimable;
};
constexpr ControlGroup first_version{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file "};
constexpr ControlGroup second_version{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

// Under the limit of the group in this folder. What it has cached of files goes where memory is short.
uint64_t left_in(const fs::path& folder, const ControlGroup& group) {
  const auto limits = lines_of(folder / group.limit), used = lines_of(folder / group.used);
  const auto limit = limits.empty() ? std::nullopt : number_in(limits[0]);
  if (!limit || used.empty()) return std::numeric_limits<uint64_t>::max();
  uint64_t taken = number_in(used[0]).value_or(0);
  for (const std::string& line : lines_of(folder / "memory.stat"))
    if (line.starts_with(group.reclaimable))
      taken -= std::min(taken, number_in(line.substr(line.find(' '))).value_or(0));
  return *limit - std::min(taken, *limit);
}

} // namespace

uint64_t memory_in_use() {
  unsigned long long all = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%llu %llu", &all, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int64_t free_memory(bool of_gpu) {
  if (!of_gpu) return static_cast<int64_t>(available_memory());
  const auto devices = device::probe_cuda().devices;
  if (devices.empty()) return 0;
  return static_cast<int64_t>(device::probe_use(devices.front()).free_bytes.value_or(devices.front().memory_bytes));
}

uint64_t available_memory(const fs::path& root) {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  for (const std::string& line : lines_of(root / "proc/meminfo"))
    if (line.starts_with("MemAvailable:")) available = number_in(line).value_or(0) << 10;
  // "4:memory:/path", or "0::/path" of the second version. A container may not see the path, but its own group's files.
  for (const std::string& line : lines_of(root / "proc/self/cgroup")) {
    const auto words = split(line, ':');
    if (words.size() < 3 || (words[1] != "memory" && !words[1].empty())) continue;
    const ControlGroup& group = words[1].empty() ? second_version : first_version;
    const fs::path top = root / group.folder;
    for (fs::path path = fs::path(words[2]).relative_path();; path = path.parent_path()) {
      available = std::min(available, left_in(top / path, group));
      if (path.empty()) break;
    }
  }
  return available;
}

} // namespace fvlm::train
