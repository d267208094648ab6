// Threads that the system refuses to start.
#include "base/error.h"
#include "data/stream/thread_pool.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace fvlm {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool has_shadow_memory = true; // for which any limit of the address space is too small
#else
constexpr bool has_shadow_memory = false;
#endif

// Limits the address space to so many more bytes, of which each thread's stack takes some.
void leave(uint64_t bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * static_cast<uint64_t>(getpagesize()) + bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(WorkersDeathTest, AreFewerWhereTheSystemHasNoMoreThreads) {
  if (has_shadow_memory) GTEST_SKIP() << "a sanitizer's shadow memory exceeds any limit of address space";
  const auto work = [] {
    leave(uint64_t{400} << 20);
    const ThreadPool workers(1000);
    std::fprintf(stderr, "there are %s\n", workers.threads() > 0 && workers.threads() < 1000 ? "fewer" : "all");
    std::_Exit(0);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "of 1000 threads read data.*\n.*there are fewer");
}

TEST(WorkersDeathTest, AreAnErrorWhereTheSystemHasNoThread) {
  if (has_shadow_memory) GTEST_SKIP() << "a sanitizer's shadow memory exceeds any limit of address space";
  const auto work = [] {
    leave(uint64_t{1} << 20);
    try {
      const ThreadPool workers(4);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.text().c_str());
      std::_Exit(error.exit_code());
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(6), "cannot start a thread");
}

} // namespace
} // namespace fvlm
