// Decoders of LFM3: what their config.json means, and what of it is refused.
#include "base/error.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <string>

namespace fvlm {
namespace {

DecoderConfig lfm3_with(const char* changes = "{}") {
  nlohmann::json json{{"model_type", "lfm3"}};
  json.merge_patch(nlohmann::json::parse(changes));
  return read_decoder_config(json, "config.json");
}

std::string lfm3_refusal(const char* changes) {
  try {
    (void)lfm3_with(changes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "it was read";
}

TEST(Lfm3Config, HasTheParametersOfThePublishedModel) {
  const DecoderConfig config = lfm3_with();
  EXPECT_EQ(config.convolutions(), 13);
  EXPECT_TRUE(config.has_convolution(0) && config.has_convolution(1) && config.has_window(4) && !config.has_window(2));
  EXPECT_EQ(config.sliding_window, 256);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.local_rope_theta, 1e4);
  int64_t parameters = 0;
  for (const TensorSpec& spec : layout_of(config).tensors) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;
    parameters += elements;
  }
  EXPECT_EQ(parameters, 1728801536);
}

TEST(Lfm3Config, ReadsWhatItWrites) {
  for (const char* changes : {
           "{}",
           R"({"use_attention_gate": false, "use_sandwich_norm": false, "attention_bias": true, "conv_bias": true})",
           R"({"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "sliding_window": null,
               "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 5e5}}})",
           R"({"num_hidden_layers": 2, "layer_types": ["conv", "sliding_attention"], "sliding_window": 7,
               "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 500}}})",
       })
    EXPECT_EQ(read_decoder_config(config_json(lfm3_with(changes)), "written"), lfm3_with(changes)) << changes;
}

TEST(Lfm3Config, RotatesTheLeadingPairsOfLayersWithoutAWindow) {
  const DecoderConfig config = lfm3_with();
  const std::vector<double> frequencies = rope_frequencies({config.rope_theta, config.rope_scaling}, config.head_dim);
  ASSERT_EQ(frequencies.size(), 64);
  EXPECT_DOUBLE_EQ(frequencies[16], std::pow(1e6, -0.25));
  EXPECT_GT(frequencies[31], 0);
  EXPECT_EQ(frequencies[32], 0);
  // As transformers has it where an entry does not say the part: all pairs are rotated.
  EXPECT_EQ(lfm3_with(R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e4},
                          "sliding_attention": {"rope_theta": 1e4}}})")
                .rope_scaling.rotated_part,
            1);
}

TEST(Lfm3Config, RefusesOtherLayersAndPositions) {
  using testing::HasSubstr;
  EXPECT_THAT(lfm3_refusal(R"({"num_hidden_layers": 1, "layer_types": ["mamba"]})"),
              HasSubstr("an entry is full_attention, sliding_attention or conv"));
  EXPECT_THAT(lfm3_refusal(R"({"conv_L_cache": 65})"), HasSubstr("a whole number from 1 to 64"));
  EXPECT_THAT(
      lfm3_refusal(R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6}}})"),
      HasSubstr("'rope_parameters' has no 'sliding_attention'"));
  EXPECT_THAT(lfm3_refusal(R"({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6},
                               "sliding_attention": {"rope_theta": 1e4}}})"),
              HasSubstr("rope_parameters: full_attention: 'rope_type' = \"yarn\""));
  EXPECT_THAT(lfm3_refusal(R"({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
                               "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}})"),
              HasSubstr("all features of a head are rotated"));
}

} // namespace
} // namespace fvlm
