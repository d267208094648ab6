// beside_cpu.h: tests of the built optimizer-cuda library on a GPU beside a built library of the CPU.
#pragma once
#include "common/testing/arena.h"

namespace fvlm::testing {

class OnCpu {
 public:
  OnCpu() { place().device = {FVLM_CPU, 0}; }
  ~OnCpu() { place().device = {FVLM_CUDA, 0}; }
};

class BesideCpu : public ::testing::Test {
 protected:
  explicit BesideCpu(const char* kind) : kind_(kind) {}
  void SetUp() override {
    if (!place().missing.empty()) GTEST_SKIP() << place().missing;
    plugin = std::make_unique<Optimizer>(FVLM_TEST_LIBRARY, kind_, host);
    const OnCpu here;
    reference = std::make_unique<Optimizer>(FVLM_TEST_REFERENCE, kind_, host);
  }

  void step_on_cpu(Arena& arena) const {
    const OnCpu here;
    ASSERT_EQ(arena.run(*reference, host), FVLM_OK) << arena.error;
  }

  Host host{2};
  std::unique_ptr<Optimizer> plugin, reference;

 private:
  const char* kind_;
};

} // namespace fvlm::testing
