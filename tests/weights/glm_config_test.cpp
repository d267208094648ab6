// Configs of GLM-4, GLM-OCR's and GLM-4.1V's parts and Ernie 4.5, and the order of rows whose rotated pairs are
// adjacent in files.
#include "base/error.h"
#include "model/weights/towers.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

using Json = nlohmann::json;

DecoderConfig read_glm(const Json& config) {
  return read_decoder_config(config, "config.json");
}

const TensorSpec* spec_named(const WeightLayout& layout, const std::string& name) {
  const auto found = std::ranges::find(layout.tensors, name, &TensorSpec::name);
  return found == layout.tensors.end() ? nullptr : &*found;
}

TEST(GlmConfig, ReadsWhatItWrites) {
  for (const Json& config :
       {Json{{"model_type", "glm4"}}, Json{{"model_type", "glm4"}, {"partial_rotary_factor", 1.0}},
        Json{{"model_type", "ernie4_5"}, {"use_bias", true}}, Json{{"model_type", "glm_ocr_text"}},
        Json{{"model_type", "glm4v_text"}, {"partial_rotary_factor", 0.5}},
        Json{{"model_type", "glm_ocr_text"},
             {"head_dim", 128},
             {"rope_parameters", {{"mrope_section", {16, 8, 8}}, {"partial_rotary_factor", 0.5}}}}})
    EXPECT_EQ(read_glm(config_json(read_glm(config))), read_glm(config)) << config.dump();
  EXPECT_EQ(read_glm({{"model_type", "glm4"}}).rotary_dim(), 64);
}

TEST(GlmConfig, TowersReadWhatTheyWrite) {
  const auto read = [](const Json& config) { return read_vision_config(config, "config.json"); };
  for (const Json& config :
       {Json{{"model_type", "glm_ocr_vision"}}, Json{{"model_type", "glm4v_vision"}},
        Json{{"model_type", "glm4v_vision"}, {"image_size", {140, 140}}, {"out_hidden_size", 512}}})
    EXPECT_EQ(read(config_json(read(config))), read(config)) << config.dump();
  const VisionConfig tower = read({{"model_type", "glm4v_vision"}, {"intermediate_size", 100}});
  EXPECT_EQ(tower.num_position_embeddings, 24 * 24);
  EXPECT_EQ(tower.intermediate_size, 4096) << "the other one is the merger's";
}

TEST(GlmConfig, HasFourNormsAndOneTensorOfGateAndUp) {
  const WeightLayout layout = layout_of(read_glm({{"model_type", "glm_ocr_text"}, {"num_hidden_layers", 1}}));
  for (const char* norm :
       {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"})
    EXPECT_NE(spec_named(layout, std::string("model.layers.0.") + norm + ".weight"), nullptr) << norm;
  ASSERT_NE(spec_named(layout, "model.layers.0.mlp.gate_up_proj.weight"), nullptr);
  EXPECT_EQ(spec_named(layout, "model.layers.0.mlp.gate_up_proj.weight")->shape, (std::vector<int64_t>{8192, 1024}));
  EXPECT_EQ(spec_named(layout, "model.layers.0.mlp.up_proj.weight"), nullptr);
}

TEST(GlmConfig, HasAdjacentPairsOfQueriesAndKeysAlone) {
  const WeightLayout layout = layout_of(read_glm({{"model_type", "glm4"}, {"num_hidden_layers", 1}}));
  for (const TensorSpec& spec : layout.tensors) {
    const bool is_rotated =
        spec.name.find("q_proj") != std::string::npos || spec.name.find("k_proj") != std::string::npos;
    EXPECT_EQ(spec.pairs, is_rotated ? (AdjacentPairs{128, 64}) : AdjacentPairs()) << spec.name;
  }
}

TEST(AdjacentPairs, AreHalfOfTheRotatedRowsApartInMemory) {
  const AdjacentPairs pairs{6, 4};
  EXPECT_EQ(pairs.rows_in_file(12), (std::vector<int64_t>{0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11}));
  EXPECT_TRUE(AdjacentPairs().rows_in_file(12).empty());
}

TEST(GlmConfig, RefusesYarnThatScalesAPartOfAHead) {
  const Json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  try {
    (void)read_glm({{"model_type", "glm4"}, {"rope_scaling", yarn}});
    FAIL() << "it was read";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("64 of a head's 128 features"), std::string::npos) << error.text();
  }
  Json unscaled = yarn;
  unscaled["attention_factor"] = 1.0;
  EXPECT_EQ(read_glm({{"model_type", "glm4"}, {"rope_scaling", unscaled}}).rotary_dim(), 64);
}

} // namespace
} // namespace fvlm
