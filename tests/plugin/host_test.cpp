#include "plugin/host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace fvlm::test {
namespace {

using Pieces = std::vector<std::pair<int64_t, int64_t>>;

Pieces pieces_of(int64_t count, int64_t grain) {
  Pieces pieces;
  std::mutex mutex;
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    pieces.emplace_back(begin, end);
  });
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

// A backend of seven "threads" that runs the pieces in reverse order on the calling thread.
class SevenBackwards {
 public:
  SevenBackwards() {
    set_parallel_backend(
        [](int64_t pieces, const std::function<void(int64_t)>& piece) {
          for (int64_t i = pieces; i-- > 0;) piece(i);
        },
        7);
  }
  ~SevenBackwards() { set_parallel_backend({}, 0); }
};

TEST(HostParallelFor, CoversEveryIndexOnce) {
  for (int64_t count : {1, 2, 3, 63, 64, 1000})
    for (int64_t grain : {0, 1, 7, 64, 5000}) {
      std::vector<std::atomic<int>> observed(static_cast<size_t>(count));
      parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++observed[static_cast<size_t>(i)];
      });
      for (size_t i = 0; i < observed.size(); ++i)
        ASSERT_EQ(observed[i], 1) << "index " << i << " of " << count << ", grain " << grain;
    }
}

TEST(HostParallelFor, RunsNothingForNoItems) {
  EXPECT_TRUE(pieces_of(0, 1).empty());
  EXPECT_TRUE(pieces_of(-3, 1).empty());
}

TEST(HostParallelFor, CutsTheSamePiecesOnAnyThread) {
  SevenBackwards backend;
  EXPECT_EQ(parallel_threads(), 7);
  EXPECT_EQ(pieces_of(10, 1), (Pieces{{0, 1}, {1, 2}, {2, 4}, {4, 5}, {5, 7}, {7, 8}, {8, 10}}));
  EXPECT_EQ(pieces_of(10, 3), (Pieces{{0, 3}, {3, 6}, {6, 10}}));
  EXPECT_EQ(pieces_of(10, 11), (Pieces{{0, 10}}));
  for (auto [begin, end] : pieces_of(1000, 100)) EXPECT_GE(end - begin, 100);
  constexpr int64_t huge = INT64_MAX;
  auto pieces = pieces_of(huge, 1);
  EXPECT_EQ(pieces.front().first, 0);
  EXPECT_EQ(pieces.back().second, huge);
}

TEST(HostParallelFor, NestedCallsRunInOrderOnTheSameThread) {
  std::atomic<int> total{0}, strangers{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    auto self = std::this_thread::get_id();
    for (int64_t i = begin; i < end; ++i)
      parallel_for(100, 1, [&](int64_t b, int64_t e) {
        total += static_cast<int>(e - b);
        if (std::this_thread::get_id() != self) ++strangers;
      });
  });
  EXPECT_EQ(total, 800);
  EXPECT_EQ(strangers, 0);
}

TEST(HostParallelFor, ServesSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int64_t> total{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat)
        parallel_for(64, 1, [&](int64_t begin, int64_t end) { total += end - begin; });
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(total, 4 * 200 * 64);
}

TEST(HostParallelFor, RethrowsATasksException) {
  auto boom = [](int64_t, int64_t end) {
    if (end == 100) throw std::runtime_error("boom");
  };
  EXPECT_THROW(parallel_for(100, 1, boom), std::runtime_error);
  EXPECT_EQ(pieces_of(5, 5).size(), 1u) << "works afterwards";
}

// fork() does not copy threads.
TEST(HostParallelFor, WorksInAForkedChild) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not allow threads after a fork";
#endif
  EXPECT_FALSE(pieces_of(64, 1).empty());
  pid_t child = fork();
  if (child == 0) {
    std::atomic<int64_t> total{0};
    parallel_for(64, 1, [&](int64_t begin, int64_t end) { total += end - begin; });
    _exit(total == 64 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(HostTable, IsOnePerNameAndComplete) {
  const fvlm_host* host = host_for("sample");
  EXPECT_EQ(host, host_for("sample"));
  EXPECT_NE(host, host_for("other"));
  EXPECT_EQ(host->struct_size, sizeof(fvlm_caching_host));
  EXPECT_EQ(host->abi_major, uint32_t{FVLM_ABI_MAJOR});
  EXPECT_GT(std::strlen(host->engine_version), 0u);
  EXPECT_EQ(host->parallel_threads(host), parallel_threads());
}

TEST(HostTable, LogsUnderThePluginsName) {
  testing::internal::CaptureStderr();
  const fvlm_host* host = host_for("sample");
  host->log(host, FVLM_LOG_WARNING, "tuned\nfor \xff this");
  host->log(host, 99, nullptr);
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("warning: [sample] tuned for \xef\xbf\xbd this\n"), std::string::npos) << text;
  EXPECT_NE(text.find("error: [sample] (null)\n"), std::string::npos) << text;
}

TEST(HostTable, RunsTasksWithTheirContext) {
  const fvlm_host* host = host_for("sample");
  std::atomic<int64_t> sum{0};
  auto task = [](void* context, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) *static_cast<std::atomic<int64_t>*>(context) += i;
  };
  host->parallel_for(host, 101, 1, task, &sum);
  EXPECT_EQ(sum, 5050);
}

} // namespace
} // namespace fvlm::test
