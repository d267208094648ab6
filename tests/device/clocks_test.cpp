// Clocks and power: of a GPU by a fake NVML, of a CPU by files as Linux has them, and their means.
#include "base/scratch_folder.h"
#include "device/clocks.h"
#include "device/nvml.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <sched.h>

namespace fvlm::device {
namespace {

constexpr const char* bus = "0000:1B:00.0";

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// The fake library is found by its name once it is loaded. Whoever has it cannot see a machine without one.
class FakeNvml : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(dlopen(FVLM_DRIVERS "/driver/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
    unsetenv("FAKE_SM_MEGAHERTZ");
    unsetenv("FAKE_MILLIWATTS");
    unsetenv("FAKE_MANAGEMENT");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(FakeNvml, ReportsTheClockOfTheMultiprocessorsAndWatts) {
  setenv("FAKE_SM_MEGAHERTZ", "1410", 1);
  setenv("FAKE_MILLIWATTS", "698500", 1);
  const Clocks clocks = gpu_clocks(bus)();
  EXPECT_EQ(clocks.megahertz, 1410);
  EXPECT_DOUBLE_EQ(clocks.watts.value_or(0), 698.5);
}

TEST_F(FakeNvml, WhatItDoesNotReportIsNotKnown) {
  setenv("FAKE_SM_MEGAHERTZ", "1410", 1);
  EXPECT_EQ(gpu_clocks(bus)().watts, std::nullopt);
  const Clocks other = gpu_clocks("0000:FF:00.0")();
  EXPECT_EQ(other.megahertz, std::nullopt) << "of a GPU that is not there";
  setenv("FAKE_MANAGEMENT", "9", 1);
  EXPECT_EQ(Nvml::open(bus), nullptr) << "NVML that cannot be initialized";
}

TEST(Clocks, SamplerTakesMeansAndReadsAtLeastOnce) {
  std::atomic<int> reads = 0;
  ClockSampler sampler(
      [&] {
        const int now = ++reads;
        return Clocks{now * 100.0, now % 2 == 1 ? std::optional(now * 1.0) : std::nullopt};
      },
      std::chrono::milliseconds(1));
  while (reads < 4) std::this_thread::yield();
  const Clocks means = sampler.stop();
  const int n = reads, odd = (n + 1) / 2;
  EXPECT_DOUBLE_EQ(means.megahertz.value_or(0), 100.0 * (n + 1) / 2);
  EXPECT_DOUBLE_EQ(means.watts.value_or(0), odd) << "the mean of those that were reported: 1, 3, 5, ...";

  ClockSampler at_once([] { return Clocks{7, {}}; }, std::chrono::hours(1));
  const Clocks single = at_once.stop();
  EXPECT_EQ(single.megahertz, 7);
  EXPECT_EQ(single.watts, std::nullopt);
}

TEST(Clocks, CpuPrefersCpufreqToCpuinfo) {
  const ScratchFolder root;
  EXPECT_EQ(cpu_clocks(root.path())().megahertz, std::nullopt);
  write(root / "proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2800.500\nprocessor\t: 1\ncpu MHz\t\t: 3200.500\n");
  EXPECT_EQ(cpu_clocks(root.path())().megahertz, 3000.5);
  EXPECT_EQ(cpu_clocks(root.path())().watts, std::nullopt);
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int i = 0; i < CPU_SETSIZE; ++i)
    write(root / ("sys/devices/system/cpu/cpu" + std::to_string(i) + "/cpufreq/scaling_cur_freq"),
          CPU_ISSET(i, &allowed) ? "1900000\n" : "100000\n");
  EXPECT_EQ(cpu_clocks(root.path())().megahertz, 1900) << "of the processors that this thread may run on";
}

} // namespace
} // namespace fvlm::device
