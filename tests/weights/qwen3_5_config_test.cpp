// Decoders of Qwen3.5: what their config.json means, and what of it is refused.
#include "base/error.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <string>

namespace fvlm {
namespace {

DecoderConfig qwen3_5_with(const char* changes = "{}") {
  nlohmann::json json = nlohmann::json::parse(R"({
    "attention_bias": false, "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 1024, "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "model_type": "qwen3_5_text", "num_attention_heads": 8, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "vocab_size": 248320,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                        "rope_theta": 10000000, "rope_type": "default"}})");
  json.merge_patch(nlohmann::json::parse(changes));
  return read_decoder_config(json, "config.json");
}

std::string qwen3_5_refusal(const char* changes) {
  try {
    (void)qwen3_5_with(changes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "it was read";
}

TEST(Qwen35Config, HasItsLayersAndTheirSizes) {
  const DecoderConfig config = qwen3_5_with();
  EXPECT_EQ(config.delta_rules(), 18);
  EXPECT_TRUE(config.has_delta_rule(0) && config.has_delta_rule(2) && !config.has_delta_rule(3));
  EXPECT_EQ(config.rotary_dim(), 64);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_EQ(config.query_rows(), 4096);
  EXPECT_EQ(config.delta_rows(), 6144);
  // A layer with a delta rule has two linears of 1,024 to 16 heads for b and a, A_log and dt_bias of 16, a convolution
  // of 6,144 features with four taps, linears of 1,024 to 6,144, to 2,048 and back, and a norm of 128.
  const int64_t mlp = 3 * 1024 * 3584, norms = 2 * 1024;
  const int64_t ruled = 2 * 1024 * 16 + 2 * 16 + 6144 * 4 + 1024 * (6144 + 2048 + 2048) + 128;
  const int64_t attending = 1024 * (4096 + 512 + 512 + 2048) + 2 * 256;
  int64_t parameters = 0;
  for (const TensorSpec& spec : layout_of(config).tensors) parameters += elements_of(spec.shape);
  EXPECT_EQ(parameters, 248320 * 1024 + 1024 + 24 * (mlp + norms) + 18 * ruled + 6 * attending);
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
}

TEST(Qwen35Config, SaysWhichLayersAttend) {
  EXPECT_EQ(qwen3_5_with(R"({"full_attention_interval": 3})").delta_rules(), 16);
  const DecoderConfig named =
      qwen3_5_with(R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]})");
  EXPECT_TRUE(!named.has_delta_rule(0) && named.has_delta_rule(1));
}

TEST(Qwen35Config, RefusesWhatDoesNotFit) {
  using testing::HasSubstr;
  EXPECT_THAT(qwen3_5_refusal(R"({"num_hidden_layers": 1, "layer_types": ["mamba"]})"),
              HasSubstr("an entry is full_attention or linear_attention"));
  EXPECT_THAT(qwen3_5_refusal(R"({"linear_num_key_heads": 3})"),
              HasSubstr("'linear_num_key_heads' = 3 is no divisor of 'linear_num_value_heads' = 16"));
  EXPECT_THAT(qwen3_5_refusal(R"({"linear_conv_kernel_dim": 0})"), HasSubstr("a whole number from 1 to 64"));
  EXPECT_THAT(qwen3_5_refusal(R"({"rope_parameters": {"mrope_section": [11, 11, 11]}})"),
              HasSubstr("does not divide the 32 pairs of a head's features"));
  EXPECT_THAT(qwen3_5_refusal(R"({"head_dim": 4, "rope_parameters": {"mrope_section": [0, 0, 0]}})"),
              HasSubstr("'partial_rotary_factor' = 0.25 of 'head_dim' = 4 is odd"));
  EXPECT_THAT(qwen3_5_refusal(R"({"num_experts": 8})"), HasSubstr("num_experts"));
}

} // namespace
} // namespace fvlm
