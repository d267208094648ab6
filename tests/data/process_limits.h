// What tests that read many damaged files may take, and how many they read.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <sys/resource.h>

namespace fvlm::test {

constexpr double slowest_allowed = 5;           // seconds of processor time for a file
constexpr int64_t max_memory_kib = 1024 * 1024; // of the whole program, sanitizers' own included

// Of the whole program: what else runs on the machine does not count.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline int64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

} // namespace fvlm::test
