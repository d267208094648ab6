// RankWatch over a store in memory: several of them in one process, one for each rank.
#include "dist/rank_watch.h"
#include "memory_store.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

namespace fvlm::dist {
namespace {

using namespace std::chrono_literals;
using test::MemoryStore;
using testing::HasSubstr;

class RankWatchTest : public testing::Test {
 protected:
  std::unique_ptr<RankWatch> watch(int64_t rank, std::chrono::milliseconds timeout = 60s,
                                   const std::function<void(const Error&)>& end_process = {}) {
    RankWatch::Options options{rank, 3, timeout, 20ms, end_process};
    return std::make_unique<RankWatch>(std::make_unique<MemoryStore>(shared_), std::make_unique<MemoryStore>(shared_),
                                       options);
  }
  // Until so many ranks have said in a heartbeat what they do.
  void wait_for_heartbeats(const std::string& phase, size_t ranks) const {
    for (size_t found = 0; found < ranks; std::this_thread::sleep_for(1ms)) {
      const std::lock_guard hold(shared_->lock);
      found = 0;
      for (const auto& [key, value] : shared_->values) found += value.find(phase) != std::string::npos;
    }
  }
  std::shared_ptr<MemoryStore::Shared> shared_ = std::make_shared<MemoryStore::Shared>();
};

TEST_F(RankWatchTest, TellsWhatARankSaidOfItsFailure) {
  const auto first = watch(0), second = watch(1), third = watch(2);
  second->enter("optimizer", "align", 7);
  second->report("the disk is full");
  third->report("because of rank 1");
  EXPECT_THAT(first->explain("closed").text(),
              HasSubstr("rank 1 failed (optimizer, stage align, step 7): the disk is full"));
}

TEST_F(RankWatchTest, NamesTheRankThatIsSilent) {
  const auto first = watch(0), second = watch(1);
  auto third = watch(2);
  third->enter("loading data", "align", 3);
  wait_for_heartbeats("loading data", 1);
  wait_for_heartbeats("start", 2);
  third.reset();
  const std::string text = first->explain("closed").text();
  EXPECT_THAT(text, HasSubstr("rank 2 gives no sign of life"));
  EXPECT_THAT(text, HasSubstr("loading data, stage align, step 3"));
  EXPECT_EQ(second->explain("closed").what(), std::string(first->explain("closed").what())) << "all say the same";
}

TEST_F(RankWatchTest, NamesTheRankThatTheOthersWaitFor) {
  const auto first = watch(0), second = watch(1), third = watch(2);
  second->enter("evaluation", "align", 3);
  for (RankWatch* one : {first.get(), third.get()}) one->count_collectives();
  wait_for_heartbeats("|1|", 2);
  wait_for_heartbeats("evaluation", 1);
  EXPECT_THAT(first->explain("timed out").text(), HasSubstr("rank 1 hangs (evaluation, stage align, step 3)"));
}

TEST_F(RankWatchTest, FindsASilentRankWithoutACollective) {
  const auto first = watch(0, 200ms), second = watch(1, 200ms);
  shared_->values["heartbeat/2"] = "5|0|forward and backward, stage align, step 1";
  while (!MemoryStore(shared_).get("failure")) std::this_thread::sleep_for(5ms);
  EXPECT_THAT(*MemoryStore(shared_).get("failure"), HasSubstr("rank 2 gives no sign of life"));
}

TEST_F(RankWatchTest, EndsAProcessThatDoesNotLeave) {
  std::atomic<int> ended = 0;
  RankWatch::Options options{0, 1, 60s, 20ms, [&](const Error& error) {
                               EXPECT_THAT(error.text(), HasSubstr("rank 0 failed (start): the disk is full"));
                               ++ended;
                             }};
  options.grace = 50ms;
  bool aborted = false;
  RankWatch watch(std::make_unique<MemoryStore>(shared_), std::make_unique<MemoryStore>(shared_), options);
  watch.set_abort([&] { aborted = true; });
  watch.report("the disk is full");
  EXPECT_EQ(ended, 0);
  EXPECT_THAT(watch.explain("closed").text(), HasSubstr("the disk is full"));
  EXPECT_TRUE(aborted);
  while (ended == 0) std::this_thread::sleep_for(1ms);
}

TEST_F(RankWatchTest, EndsAProcessWhoseDeviceWaitsForALostRank) {
  std::atomic<int> ended = 0;
  RankWatch::Options options{0, 1, 60s, 20ms, [&](const Error&) { ++ended; }};
  options.grace = 50ms;
  RankWatch watch(std::make_unique<MemoryStore>(shared_), std::make_unique<MemoryStore>(shared_), options);
  watch.wait_for_device(true);
  MemoryStore(shared_).set("failure", "rank 3 failed (optimizer): the disk is full");
  while (ended == 0) std::this_thread::sleep_for(1ms);
}

} // namespace
} // namespace fvlm::dist
