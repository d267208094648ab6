#include "base/error.h"
#include "base/parallel.h"
#include "base/task_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fvlm {
namespace {

TEST(Parallel, RunsEachItemOnce) {
  for (int threads : {1, 2, 8}) {
    std::vector<std::atomic<int>> done(1000);
    in_parallel(std::ssize(done), threads, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (size_t i = 0; i < done.size(); ++i) ASSERT_EQ(done[i], 1) << i << " on " << threads << " threads";
  }
  in_parallel(0, 4, [](int64_t i) { FAIL() << i; });
}

TEST(Parallel, ThrowsErrorOfSmallestIndex) {
  for (int repeat = 0; repeat < 200; ++repeat) try {
      in_parallel(1000, 4, [](int64_t i) {
        if (i >= 37) throw Error(ErrorKind::data, "number " + std::to_string(i));
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "number 37");
    }
}

TEST(Parallel, GivesEachThreadACopyOfTheWork) {
  std::vector<int64_t> at(1000); // how many items its thread had done before it
  in_parallel(std::ssize(at), 4,
              [&, before = int64_t{0}](int64_t i) mutable { at[static_cast<size_t>(i)] = before++; });
  int64_t first = 0;
  for (int64_t done : at) first += done == 0;
  EXPECT_GE(first, 1);
  EXPECT_LE(first, 4);
}

TEST(TaskThread, RunsTasksOnOneThreadAndRethrows) {
  std::vector<std::thread::id> observed;
  TaskThread thread;
  for (int i = 0; i < 3; ++i) {
    thread.start([&] { observed.push_back(std::this_thread::get_id()); });
    thread.wait();
  }
  ASSERT_EQ(observed.size(), 3u);
  EXPECT_EQ(observed[0], observed[2]);
  EXPECT_NE(observed[0], std::this_thread::get_id());
  thread.start([] { throw std::runtime_error("no"); });
  EXPECT_THROW(thread.wait(), std::runtime_error);
  EXPECT_NO_THROW(thread.wait()) << "it is told once";
  thread.start([&] { observed.clear(); }); // its destructor waits for this task
}

} // namespace
} // namespace fvlm
