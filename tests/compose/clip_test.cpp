// CLIP and SigLIP under connectors that read hidden states, and under one that does not.
#include "../train/small_run.h"
#include "../weights/tiny_model.h"
#include "base/error.h"
#include "model/weights/model_directory.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ComposeClip : public SmallRun {
 protected:
  void use(const VisionConfig& config) {
    tiny::write_folder(folder("encoder"), config, 7);
    change_recipe("fvlm.dinov2 { width = 16, layers = 2, heads = 2, patch_size = 8 }",
                  "\"" + folder("encoder").string() + "\"");
  }
  void use_mean_pool() {
    change_recipe("connector = { query_dim = 12 }", "connector = fvlm.mean_pool { scale = 0.5 }");
    change_recipe(
        R"({ fvlm.next_token { on = "answer" }, fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } })",
        R"(fvlm.next_token { on = "answer" })");
  }

  static VisionConfig config(const std::string& model_type, const std::string& hidden_act) {
    VisionConfig config;
    config.model_type = model_type;
    config.hidden_size = 16, config.intermediate_size = 40;
    config.num_hidden_layers = 3, config.num_attention_heads = 2;
    config.image_size = 16, config.patch_size = 8, config.num_channels = 3;
    config.layer_norm_eps = 1e-5, config.initializer_range = 0.3;
    config.hidden_act = hidden_act;
    return config;
  }

  // Trains two steps, and returns the encoder's weights before and after them.
  std::pair<Safetensors, Safetensors> train() {
    run("run", {}, {.max_steps = 2});
    return {Safetensors::open(folder("encoder")),
            Safetensors::open(StageFolder(folder("run") / "align").of(2) / "vision")};
  }
};

bool equal(const TensorView& a, const TensorView& b) {
  return std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
}

TEST_F(ComposeClip, TrainsAndKeepsWhatItsOutputDoesNotDependOn) {
  VisionConfig clip = config("clip_vision_model", "quick_gelu");
  clip.vision_feature_layers = {-2};
  clip.vision_feature_select_strategy = "default";
  use(clip);
  use_mean_pool();
  const auto [before, after] = train();
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const char* trained : {"embeddings.class_embedding", "pre_layrnorm.bias", "encoder.layers.1.mlp.fc1.weight"})
    EXPECT_FALSE(equal(before.at(trained), after.at(trained))) << trained;
  for (const char* unused : {"encoder.layers.2.mlp.fc1.weight", "post_layernorm.weight"})
    EXPECT_TRUE(equal(before.at(unused), after.at(unused))) << unused;
  EXPECT_EQ(ModelDirectory::open(StageFolder(folder("run") / "align").of(2)).description().encoder(), clip);
}

TEST_F(ComposeClip, SiglipTrains) {
  use(config("siglip_vision_model", "gelu_pytorch_tanh"));
  use_mean_pool();
  const auto [before, after] = train();
  for (const char* trained :
       {"embeddings.patch_embedding.bias", "encoder.layers.2.self_attn.v_proj.weight", "post_layernorm.weight"})
    EXPECT_FALSE(equal(before.at(trained), after.at(trained))) << trained;
}

TEST_F(ComposeClip, TheFoveatedConnectorSaysWhatItLacks) {
  use(config("clip_vision_model", "quick_gelu"));
  try {
    run("run");
    FAIL() << "the foveated connector reads keys and values that this encoder does not offer";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("foveated"), HasSubstr("keys and values")));
  }
}

} // namespace
} // namespace fvlm::train
