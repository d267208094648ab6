// Decoders of LFM2: what their config.json means, and what of it is refused.
#include "base/error.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <string>

namespace fvlm {
namespace {

// As the published model of 1.2 billion parameters has it, whose intermediate_size only transformers 5 writes.
DecoderConfig lfm2_with(const char* changes = "{}") {
  nlohmann::json json = nlohmann::json::parse(R"({
    "block_auto_adjust_ff_dim": true, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "conv_L_cache": 3, "conv_bias": false, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 1000000.0,
    "tie_embedding": true, "vocab_size": 65536})");
  json.merge_patch(nlohmann::json::parse(changes));
  return read_decoder_config(json, "config.json");
}

std::string lfm2_refusal(const char* changes) {
  try {
    (void)lfm2_with(changes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "it was read";
}

TEST(Lfm2Config, HasTheParametersOfThePublishedModel) {
  const DecoderConfig config = lfm2_with();
  EXPECT_EQ(config.intermediate_size, 8192);
  EXPECT_EQ(config.convolutions(), 10);
  EXPECT_TRUE(config.has_convolution(0) && !config.has_convolution(2) && !config.has_convolution(14));
  EXPECT_EQ(config.eos_token_id, std::vector<int64_t>{7});
  int64_t parameters = 0;
  for (const TensorSpec& spec : layout_of(config).tensors) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;
    parameters += elements;
  }
  EXPECT_EQ(parameters, 1170340608);
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
}

TEST(Lfm2Config, AdjustsTheWidthOfItsMlp) {
  EXPECT_EQ(lfm2_with(R"({"block_auto_adjust_ff_dim": false})").intermediate_size, 12288);
  EXPECT_EQ(lfm2_with(R"({"block_ffn_dim_multiplier": null})").intermediate_size, 8192);
  EXPECT_EQ(lfm2_with(R"({"block_ffn_dim_multiplier": 1.01})").intermediate_size, 8448);
  EXPECT_EQ(lfm2_with(R"({"block_ff_dim": null, "intermediate_size": 6656})").intermediate_size, 4608);
}

TEST(Lfm2Config, RefusesWhatIsNoLayer) {
  using testing::HasSubstr;
  EXPECT_EQ(lfm2_with(R"({"full_attn_idxs": null})").convolutions(), 0);
  EXPECT_THAT(lfm2_refusal(R"({"layer_types": ["conv"]})"), HasSubstr("there are 16 layers, and each has an entry"));
  EXPECT_THAT(lfm2_refusal(R"({"num_hidden_layers": 2, "layer_types": ["conv", "mamba"]})"),
              HasSubstr("an entry is full_attention or conv"));
  EXPECT_THAT(lfm2_refusal(R"({"conv_L_cache": 0})"), HasSubstr("a whole number from 1 to 64"));
  EXPECT_THAT(lfm2_refusal(R"({"block_ffn_dim_multiplier": 1000})"),
              HasSubstr("make an MLP of width 8192000: expected 1 to 1048576"));
}

} // namespace
} // namespace fvlm
