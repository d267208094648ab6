// What copy engines do for a group, with memcpy in their place: ranks are threads, and a stream is the thread itself.
#include "device/peer_access.h"
#include "dist/peer_group.h"
#include "dist/rank_watch.h"
#include "dist/shared_memory.h"
#include "memory_store.h"
#include "threads_as_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <gmock/gmock.h>

namespace fvlm::dist {
namespace {

using namespace std::chrono_literals;

class HostAccess : public device::PeerAccess {
 public:
  std::string export_memory(void* data) override {
    if (refuses) throw std::runtime_error("as the test wants it");
    return std::to_string(reinterpret_cast<uintptr_t>(data));
  }
  std::shared_ptr<std::byte> open_memory(const std::string& exported) override {
    ++opened;
    return {reinterpret_cast<std::byte*>(std::stoull(exported)), [this](std::byte*) { --opened; }};
  }
  std::shared_ptr<void> map_host(void* data, size_t) override {
    return {data, [](void*) {}};
  }
  void copy(void*, void* to, const void* from, size_t bytes) override {
    ++copies;
    if (!loses) std::memcpy(to, from, bytes);
  }
  void signal_and_wait(void*, std::span<uint32_t* const> signals, std::span<uint32_t* const> awaited) override {
    if (!is_silent)
      for (uint32_t* signal : signals) std::atomic_ref(*signal).store(1);
    for (uint32_t* signal : awaited)
      while (std::atomic_ref(*signal).load() == 0) std::this_thread::yield();
    for (uint32_t* signal : awaited) std::atomic_ref(*signal).store(0);
  }

  bool refuses = false, loses = false, is_silent = false; // goes wrong
  std::atomic<int64_t> opened = 0, copies = 0;
};

// What is left to the other group.
class CountingGroup : public Group {
 public:
  CountingGroup(Group& group, int64_t& calls) : group_(group), calls_(calls) {}
  const char* name() const override { return group_.name(); }
  bool is_capturable() const override { return false; }
  PendingPointer all_reduce(const at::Tensor& values, Reduction reduction) override {
    return ++calls_, group_.all_reduce(values, reduction);
  }
  PendingPointer broadcast(const at::Tensor& values, int64_t from) override {
    return ++calls_, group_.broadcast(values, from);
  }
  PendingPointer reduce_scatter(const at::Tensor& buffer, std::span<const Slice> slices) override {
    return ++calls_, group_.reduce_scatter(buffer, slices);
  }
  PendingPointer all_gather(const at::Tensor& buffer, std::span<const Slice> slices) override {
    return ++calls_, group_.all_gather(buffer, slices);
  }
  PendingPointer send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received, int64_t from) override {
    return ++calls_, group_.send_receive(sent, to, received, from);
  }

 private:
  Group& group_;
  int64_t& calls_;
};

// One rank's side of a test.
struct Side {
  explicit Side(const Ranks& ranks, const std::function<void(HostAccess& access)>& prepare = {})
      : watch(std::make_unique<test::MemoryStore>(store), std::make_unique<test::MemoryStore>(store),
              RankWatch::Options{ranks.rank(), ranks.count(), 60s}) {
    PeerOptions options;
    options.rank = ranks.rank();
    options.ranks = ranks.count();
    options.access = [this, prepare]() -> device::PeerAccess& {
      if (prepare) prepare(access);
      return access;
    };
    options.gather = [&ranks](const std::string& own) { return ranks.gather(own); };
    options.staging_bytes = 4096;
    options.trial_timeout = prepare ? 300ms : 60s;
    group = with_peer_copies(std::make_unique<CountingGroup>(*ranks.group(), others), options, watch);
    access.copies = 0; // of the trial
  }

  std::shared_ptr<test::MemoryStore::Shared> store = std::make_shared<test::MemoryStore::Shared>();
  RankWatch watch;
  HostAccess access;
  int64_t others = 0; // calls of the other group
  std::unique_ptr<Group> group;
};

at::Tensor values_of(int64_t rank, int64_t elements, at::ScalarType type) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 1);
  return at::randn({elements}, generator, at::dtype(at::kFloat)).to(type);
}

// The exact sum, rounded once.
at::Tensor sum_of(int64_t ranks, int64_t elements, at::ScalarType type) {
  at::Tensor sum = at::zeros({elements}, at::kDouble);
  for (int64_t rank = 0; rank < ranks; ++rank) sum += values_of(rank, elements, type).to(at::kDouble);
  return sum.to(type);
}

std::string bytes_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.data_ptr()), values.nbytes()};
}

class PeerGroupOf : public testing::TestWithParam<int64_t> {};

TEST_P(PeerGroupOf, SumsTheSameBitsOnAllRanksInPartsOfItsStaging) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    test::as_ranks(GetParam(), [type](const Ranks& ranks) {
      Side side(ranks);
      ASSERT_STREQ(side.group->name(), "copy engines and gloo");
      constexpr int64_t elements = 20011, begin = 192, length = 17003;
      const at::Tensor own = values_of(ranks.rank(), elements, type);
      const auto shared = side.group->share(own);
      ASSERT_TRUE(shared);
      const at::Tensor outside = at::cat({own.narrow(0, 0, begin), own.narrow(0, begin + length, 2816)}).clone();
      side.group->all_reduce(own.narrow(0, begin, length), Reduction::sum)->wait();
      const at::Tensor sum = own.narrow(0, begin, length),
                       exact = sum_of(ranks.count(), elements, type).narrow(0, begin, length);
      const double rounding = type == at::kFloat ? 1e-6 : ranks.count() == 2 ? 0 : 0.0079; // bf16: rounded once
      const double most = ((sum - exact).abs() / exact.abs().clamp_min(1)).max().item<double>();
      EXPECT_LE(most, rounding) << "rank " << ranks.rank() << " of " << ranks.count();
      for (const std::string& other : ranks.gather(bytes_of(sum)))
        EXPECT_EQ(other == bytes_of(sum), true) << "rank " << ranks.rank();
      EXPECT_TRUE(at::equal(outside, at::cat({own.narrow(0, 0, begin), own.narrow(0, begin + length, 2816)})));
      EXPECT_EQ(side.others, 0);
      EXPECT_GT(side.access.copies, 2 * ranks.count()) << "a slice is larger than the staging";
    });
}

TEST_P(PeerGroupOf, ScattersAndGathersSlicesOfAnyLength) {
  test::as_ranks(GetParam(), [](const Ranks& ranks) {
    Side side(ranks);
    constexpr int64_t elements = 9000;
    std::vector<Slice> slices{{0, 0}, {0, 7001}}; // rank 0 has nothing
    for (int64_t rank = 2; rank < ranks.count(); ++rank) slices.push_back({slices.back().end(), 1000});
    slices.back().length = elements - slices.back().begin;
    const auto [begin, length] = slices[static_cast<size_t>(ranks.rank())];
    const at::Tensor own = values_of(ranks.rank(), elements, at::kFloat);
    const auto shared = side.group->share(own);
    const at::Tensor exact = sum_of(ranks.count(), elements, at::kFloat);
    for (int turn = 0; turn < 3; ++turn) { // signals are used again
      own.copy_(values_of(ranks.rank(), elements, at::kFloat));
      side.group->reduce_scatter(own, slices)->wait();
      EXPECT_TRUE(at::allclose(own.narrow(0, begin, length), exact.narrow(0, begin, length), 1e-5, 1e-5));
      side.group->all_gather(own, slices)->wait();
      EXPECT_TRUE(at::allclose(own, exact, 1e-5, 1e-5)) << "rank " << ranks.rank() << ", turn " << turn;
    }
    EXPECT_EQ(side.others, 0);
  });
}

TEST_P(PeerGroupOf, AllSumWhatOneRankGets) {
  test::as_ranks(GetParam(), [](const Ranks& ranks) {
    Side side(ranks);
    constexpr int64_t elements = 64 * 12; // of which each sums what fits into the staging
    std::vector<Slice> slices(static_cast<size_t>(ranks.count()), Slice{0, 0});
    slices.back() = {0, elements};
    const at::Tensor own = values_of(ranks.rank(), elements, at::kFloat);
    const auto shared = side.group->share(own);
    side.group->reduce_scatter(own, slices)->wait();
    const bool gets_it = ranks.rank() + 1 == ranks.count();
    if (gets_it) {
      EXPECT_TRUE(at::allclose(own, sum_of(ranks.count(), elements, at::kFloat), 1e-5, 1e-5));
    }
    const int64_t read = ranks.count() == 2 ? 1 : ranks.count(); // of more than two, its own as well
    EXPECT_EQ(side.access.copies, read + (gets_it ? 0 : 1)) << "rank " << ranks.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerGroupOf, testing::Values(2, 3, 4), testing::PrintToStringParamName());

TEST(PeerGroup, LeavesToTheOtherGroupWhatItDoesNotDo) {
  test::as_ranks(2, [](const Ranks& ranks) {
    Side side(ranks);
    at::Tensor own = at::full({100}, static_cast<double>(ranks.rank() + 1)),
               number = at::full({1}, ranks.rank() + 1, at::kLong);
    auto shared = side.group->share(own);
    side.group->all_reduce(own, Reduction::max)->wait();
    EXPECT_EQ(own[0].item<double>(), 2);
    side.group->all_reduce(number, Reduction::sum)->wait(); // in no buffer that is shared
    EXPECT_EQ(number.item<int64_t>(), 3);
    EXPECT_EQ(side.others, 2);
    EXPECT_EQ(side.access.opened, 1);
    shared.reset();
    EXPECT_EQ(side.access.opened, 0);
    side.group->all_reduce(own, Reduction::sum)->wait();
    EXPECT_EQ(own[0].item<double>(), 4);
    EXPECT_EQ(side.others, 3);
    EXPECT_EQ(side.access.copies, 0);
  });
}

TEST(PeerGroup, IsTheOtherGroupWhereOneRankHasNoAccessOrItsTrialFails) {
  const std::vector<std::function<void(HostAccess&)>> faults = {
      [](HostAccess&) { throw std::runtime_error("no access"); },
      [](HostAccess& access) { access.refuses = true; },
      [](HostAccess& access) { access.loses = true; },
      [](HostAccess& access) { access.is_silent = true; },
  };
  for (size_t fault = 0; fault < faults.size(); ++fault)
    test::as_ranks(3, [&](const Ranks& ranks) {
      const auto none = [](HostAccess&) {};
      const Side side(ranks, ranks.rank() == 1 ? faults[fault] : none);
      EXPECT_STREQ(side.group->name(), "gloo") << "rank " << ranks.rank() << ", fault " << fault;
      at::Tensor own = at::ones({3});
      side.group->all_reduce(own, Reduction::sum)->wait();
      EXPECT_EQ(own[2].item<double>(), 3);
      EXPECT_EQ(side.access.opened, 0);
    });
}

TEST(PeerGroup, SharesNothingThatOneRankCannotExport) {
  test::as_ranks(3, [](const Ranks& ranks) {
    Side side(ranks);
    side.access.refuses = ranks.rank() == 2;
    const at::Tensor own = at::ones({100});
    EXPECT_FALSE(side.group->share(own));
    EXPECT_EQ(side.access.opened, 0);
    side.group->all_reduce(own, Reduction::sum)->wait();
    EXPECT_EQ(own[99].item<double>(), 3);
    EXPECT_EQ(side.others, 1);
  });
}

TEST(PeerGroup, WaitsForNobodyOnceItIsAborted) {
  test::as_ranks(2, [](const Ranks& ranks) {
    Side side(ranks);
    const at::Tensor own = at::ones({1000});
    const auto shared = side.group->share(own);
    if (ranks.rank() == 0) { // rank 1 never reduces
      std::thread watch([&] {
        while (side.access.copies == 0) side.group->abort();
      });
      side.group->all_reduce(own, Reduction::sum)->wait();
      watch.join();
    }
    ranks.gather(""); // rank 1's memory lives until then
  });
}

TEST(SharedMemory, IsTheSameForTwoProcessesAndKnowsAForeignOne) {
  const SharedMemory first = SharedMemory::create(100);
  const SharedMemory second = SharedMemory::open(first.name());
  ASSERT_GE(second.bytes(), 100U);
  first.data()[99] = std::byte{7};
  EXPECT_EQ(second.data()[99], std::byte{7});
  const std::string foreign = std::string(32, '0') + first.name().substr(32);
  try {
    (void)SharedMemory::open(foreign);
    FAIL() << "another process has the number of the one that is meant";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("the ranks see other processes"));
  }
  EXPECT_THROW((void)SharedMemory::open(std::string(32, '0') + " /proc/self/fd/99999"), Error);
}

} // namespace
} // namespace fvlm::dist
