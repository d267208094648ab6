// Plugins that were built before this engine still load and pass: ABI 1.0 only ever gets additions.
#include "sdk/plugin_builder.h"

using namespace fvlm::plugin_builder;

namespace {

class Prebuilt : public PluginBuilder, public testing::WithParamInterface<const char*> {};

TEST_P(Prebuilt, PassesPluginCheck) {
#ifndef __x86_64__
  GTEST_SKIP() << "the libraries were built for x86-64";
#endif
  const fs::path plugin = folder / GetParam();
  fs::copy(fs::path(FVLM_SOURCE_FOLDER) / "tests/sdk/prebuilt" / GetParam(), plugin);
  const Result checked = run("env NO_COLOR=1 '" + (build / "bin/fvlm-engine").string() + "' plugin check --quick '" +
                                 plugin.string() + "'",
                             folder);
  EXPECT_EQ(checked.status, 0) << checked.output;
  EXPECT_NE(checked.output.find(std::string(GetParam()) + " 0.1.0: passed"), std::string::npos) << checked.output;
}

INSTANTIATE_TEST_SUITE_P(Plugins, Prebuilt, testing::Values("attention-prebuilt", "optimizer-prebuilt"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('-'));
                         });

} // namespace
