// An encoder that the engine does not know is imported from its folder, trains and is saved like its own.
#include "../train/small_run.h"
#include "../weights/tiny_model.h"
#include "base/error.h"
#include "mean_pool.h"
#include "model/weights/model_directory.h"
#include "patch_encoder.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::HasSubstr;

// What a line in encoders.inc does for an encoder of the engine.
const bool encoder_registered = [] {
  model::register_encoder(patches_family(), model::patches_encoder);
  return true;
}();

class ComposeEncoder : public SmallRun {
 protected:
  ComposeEncoder() {
    tiny::write_folder(folder("patches"), encoder_config(), 7);
    change_recipe("fvlm.dinov2 { width = 16, layers = 2, heads = 2, patch_size = 8 }",
                  "\"" + folder("patches").string() + "\"");
  }

  // The second model_type of the family.
  static VisionConfig encoder_config() {
    VisionConfig config;
    config.model_type = "toy_patches_2";
    config.hidden_size = 16, config.patch_size = 8, config.num_channels = 3;
    return config;
  }
};

TEST_F(ComposeEncoder, TrainsTwoSteps) {
  change_recipe("connector = { query_dim = 12 }", "connector = fvlm.mean_pool { scale = 0.5 }");
  change_recipe(
      R"({ fvlm.next_token { on = "answer" }, fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } })",
      R"(fvlm.next_token { on = "answer" })");
  run("run", {}, {.max_steps = 2});
  const fs::path checkpoint = StageFolder(folder("run") / "align").of(2);
  const auto files = content(checkpoint);
  EXPECT_NE(files.at("vision/model.safetensors"), read_file(folder("patches") / "model.safetensors"))
      << "the encoder does not train";
  const auto config = nlohmann::json::parse(files.at("vision/config.json"));
  EXPECT_EQ(config["model_type"], "toy_patches_2");
  EXPECT_EQ(config["architectures"], nlohmann::json({"ToyPatches2"}));
  EXPECT_EQ(ModelDirectory::open(checkpoint).description().encoder(), encoder_config());
}

TEST_F(ComposeEncoder, AConnectorThatNeedsLayersRefusesIt) {
  try {
    run("run");
    FAIL() << "the foveated connector reads keys and values that this encoder does not have";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("keys and values"));
  }
}

TEST_F(ComposeEncoder, IsNamedAmongThoseThatAreSupported) {
  try {
    (void)read_vision_config({{"model_type", "convnext"}}, "config.json");
    FAIL() << "an encoder that nobody knows was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::AllOf(HasSubstr("supported: clip_vision_model, dinov2, dinov2_with_registers, "
                                                       "siglip_vision_model"),
                                             HasSubstr("toy_patches, toy_patches_2")));
  }
}

} // namespace
} // namespace fvlm::train
