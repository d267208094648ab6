// The reference and the plugins that come with the engine pass their own conformance test.
#include "workshop.h"

#include <gtest/gtest.h>

namespace fvlm::check {
namespace {

// One kind per test.
class Reference : public testing::TestWithParam<const char*> {};

TEST_P(Reference, PassesEveryCheck) {
  Job job;
  job.only = GetParam();
  Report report = check_plugin(job, supervision(no_hang));
  EXPECT_TRUE(report.passed()) << failures(report);
  EXPECT_GT(report.count(State::ok), 10u) << report.json().dump(1);
}

INSTANTIATE_TEST_SUITE_P(kinds, Reference,
                         testing::Values("library.", "attention.", "loss.", "optimizer:adamw.", "optimizer:muon.",
                                         "packer.", "quantizer:int8.", "quantizer:int4.", "kernels."),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.pop_back();
                           for (char& letter : name)
                             if (letter == ':') letter = '_';
                           return name;
                         });

} // namespace
} // namespace fvlm::check
