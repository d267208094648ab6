// Decoders of Ministral 3 and the encoder of Pixtral: what their config.json means, and what of it is refused.
#include "base/error.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <string>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// As the published model of three billion parameters has it, and the tower of all of them.
const Json ministral = Json::parse(R"({
  "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
  "intermediate_size": 9216, "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
  "num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"beta_fast": 32.0,
  "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
  "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"},
  "sliding_window": null, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 131072})");
const Json pixtral = Json::parse(R"({
  "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540,
  "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16,
  "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14,
  "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})");

DecoderConfig ministral_with(const char* changes = "{}") {
  Json json = ministral;
  json.merge_patch(Json::parse(changes));
  return read_decoder_config(json, "config.json");
}

VisionConfig pixtral_with(const char* changes = "{}") {
  Json json = pixtral;
  json.merge_patch(Json::parse(changes));
  return read_vision_config(json, "config.json");
}

template <class Read>
std::string refusal(Read read, const char* changes) {
  try {
    (void)read(changes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "it was read";
}

TEST(MistralConfig, Ministral3ScalesQueriesByTheirPositions) {
  const DecoderConfig config = ministral_with();
  EXPECT_EQ(config.rope_scaling.llama_4_scaling_beta, 0.1);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 16384);
  EXPECT_EQ(config.rope_scaling.attention_factor, 1);
  EXPECT_TRUE(config.tie_word_embeddings && !config.qkv_bias && !config.has_windows());
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
  const DecoderConfig windowed = ministral_with(R"({"sliding_window": 4096})");
  EXPECT_EQ(windowed.sliding_window, 4096);
  EXPECT_EQ(read_decoder_config(config_json(windowed), "written"), windowed);
  EXPECT_FALSE(ministral_with(R"({"model_type": "mistral"})").rope_scaling.llama_4_scaling_beta)
      << "no other model does";
}

TEST(MistralConfig, RefusesAMinistral3WithoutItsScaling) {
  for (const char* changes : {R"({"rope_parameters": null})", R"({"rope_parameters": {"rope_type": "default"}})",
                              R"({"rope_parameters": {"llama_4_scaling_beta": null}})"})
    EXPECT_THAT(refusal(ministral_with, changes), testing::HasSubstr("'llama_4_scaling_beta' is missing")) << changes;
  EXPECT_THAT(refusal(ministral_with, R"({"rope_parameters": {"llama_4_scaling_beta": -1}})"),
              testing::HasSubstr("'llama_4_scaling_beta' is -1"));
}

TEST(MistralConfig, PixtralsCellsAreItsPatchesUnlessTheyAreMerged) {
  EXPECT_EQ(pixtral_with().image_size, 14) << "not the largest image";
  EXPECT_EQ(tokens_per_frame(pixtral_with(), 14, 14), 1);
  const VisionConfig merged = pixtral_with(R"({"spatial_merge_size": 2})");
  EXPECT_EQ(merged.image_size, 28);
  EXPECT_EQ(tokens_per_frame(merged, 28, 28), 4);
  for (const VisionConfig& config : {pixtral_with(), merged})
    EXPECT_EQ(read_vision_config(config_json(config), "written"), config);
}

TEST(MistralConfig, RefusesTowersThatPixtralsIsNot) {
  EXPECT_THAT(refusal(pixtral_with, R"({"hidden_act": null})"), testing::HasSubstr("only silu is"));
  EXPECT_THAT(refusal(pixtral_with, R"({"num_channels": 1})"), testing::HasSubstr("'num_channels' = 1"));
  EXPECT_THAT(refusal(pixtral_with, R"({"head_dim": 32})"), testing::HasSubstr("'head_dim' = 32"));
  EXPECT_THAT(refusal(pixtral_with, R"({"rope_theta": 500.0})"), testing::HasSubstr("'rope_theta' = 500"));
  EXPECT_THAT(refusal(pixtral_with, R"({"attention_dropout": 0.1})"), testing::HasSubstr("'attention_dropout' = 0.1"));
  EXPECT_THAT(refusal(pixtral_with, R"({"vision_feature_layer": [-1, -2]})"),
              testing::HasSubstr("'vision_feature_layer'"));
}

} // namespace
} // namespace fvlm
