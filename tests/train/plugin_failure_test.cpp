// A plugin that fails in the middle of a run: nothing is lost but the steps since the last checkpoint.
#include "base/error.h"
#include "small_run.h"

namespace fvlm::train {
namespace {

class PluginFailure : public SmallRun {
 protected:
  // The plugin as one build or another of it has it, where an installed one would lie.
  std::unique_ptr<Registry> registry_with(const std::string& library) const {
    const fs::path home = folder(library) / "kernels-gate";
    fs::create_directories(home);
    fs::copy_file(fs::path(FVLM_TEST_LIBRARIES) / (library + ".so"), home / "gate.so");
    write_file_atomic(home / "plugin.toml", R"(name = "kernels-gate"
version = "1.0"
description = "for a test"
license = "MIT"
library = "gate.so"
abi = "1.0"
kinds = ["fvlm.kernels/1"]
devices = ["cpu"]
)");
    RegistryOptions options;
    options.bundled = folder(library);
    auto registry = std::make_unique<Registry>(options);
    registry->add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    return registry;
  }

  TrainReport train_with(Registry& registry, const std::string& name) const {
    const auto recipe = resolved({R"(kernels.swiglu=["kernels-gate"])"});
    return train(recipe, {.folder = folder(name), .stage = "align"}, registry);
  }
};

TEST_F(PluginFailure, is_named_and_a_healthy_one_goes_on_to_the_same_weights) {
  const auto healthy = registry_with("gate_healthy"), failing = registry_with("gate_failing");
  EXPECT_EQ(train_with(*healthy, "whole").steps, 10);
  try {
    train_with(*failing, "broken");
    FAIL() << "it did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    const std::string text = error.text();
    for (const char* told : {"kernels-gate", "swiglu backward", "call 18 of width 32 went wrong", "gate:", ", 32]"})
      EXPECT_NE(text.find(told), std::string::npos) << told << " is not in\n" << text;
  }
  const StageFolder checkpoints(folder("broken") / "align");
  ASSERT_EQ(checkpoints.steps(), (std::vector<int64_t>{3}));
  EXPECT_NO_THROW(verify_checkpoint(checkpoints.of(3)));
  EXPECT_EQ(train_with(*healthy, "broken").steps, 7);
  expect_equal_runs("whole", "broken");
}

} // namespace
} // namespace fvlm::train
