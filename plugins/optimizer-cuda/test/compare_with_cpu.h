// compare_with_cpu.h: the fixture of tests that compare optimizer-cuda on a GPU with a CPU optimizer plugin.
#pragma once
#include "common/testing/arena.h"

namespace fvlm::testing {

class RunOnCpu {
 public:
  RunOnCpu() { test_device().device = {FVLM_CPU, 0}; }
  ~RunOnCpu() { test_device().device = {FVLM_CUDA, 0}; }
};

class ComparedWithCpu : public ::testing::Test {
 protected:
  explicit ComparedWithCpu(const char* kind) : kind_(kind) {}
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
    plugin = std::make_unique<Optimizer>(FVLM_TEST_LIBRARY, kind_, host);
    const RunOnCpu here;
    reference = std::make_unique<Optimizer>(FVLM_TEST_REFERENCE, kind_, host);
  }

  void step_on_cpu(Arena& arena) const {
    const RunOnCpu here;
    ASSERT_EQ(arena.run(*reference, host), FVLM_OK) << arena.error;
  }

  Host host{2};
  std::unique_ptr<Optimizer> plugin, reference;

 private:
  const char* kind_;
};

} // namespace fvlm::testing
