// Decoders of Gemma and Gemma 3: what their config.json means, and what of it is refused.
#include "model/weights/towers.h"
#include "weights/workshop.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <string>
#include <vector>

namespace fvlm {
namespace {

using Json = nlohmann::json;

DecoderConfig read(const Json& json) {
  return read_decoder_config(json, "config.json");
}

Json with(Json json, const char* changes) {
  json.merge_patch(Json::parse(changes));
  return json;
}

// As the published model of 270 million parameters has it, but for the layers, which are fewer.
const Json gemma3 = Json::parse(R"({
  "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "attn_logit_softcapping": null, "eos_token_id": 1, "final_logit_softcapping": null,
  "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "max_position_embeddings": 32768,
  "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 1,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": null,
  "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": false, "vocab_size": 262144})");

std::vector<std::string> names_of(const DecoderConfig& config, const std::string& layer) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : layout_of(config).tensors)
    if (tensor.name.starts_with(layer) && tensor.name.find("norm") != std::string::npos)
      names.push_back(tensor.name.substr(layer.size()));
  return names;
}

TEST(GemmaConfig, TraitsOfGemma3) {
  const DecoderConfig config = read(gemma3);
  EXPECT_TRUE(config.pre_norms && config.post_norms && config.qk_norm && config.unit_offset && config.gelu_gate);
  EXPECT_TRUE(config.gated_mlp && config.tie_word_embeddings && !config.qkv_bias);
  EXPECT_DOUBLE_EQ(config.token_scale(), 25.298221281347036);
  EXPECT_EQ(config.attention_multiplier, 0.0625);
  EXPECT_THAT(config.sliding_layers, testing::ElementsAre(1, 0, 1));
  EXPECT_EQ(config.sliding_window, 512);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.local_rope_theta, 1e4);
  EXPECT_THAT(names_of(config, "model.layers.0."),
              testing::UnorderedElementsAre("input_layernorm.weight", "self_attn.q_norm.weight",
                                            "self_attn.k_norm.weight", "post_attention_layernorm.weight",
                                            "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"));
  for (const TensorSpec& tensor : layout_of(config).tensors) {
    const bool is_norm = tensor.shape.size() == 1;
    EXPECT_TRUE(!is_norm || tensor.fill.value == 0) << tensor.name;
  }
}

// The text_config of the 4B model says little more than its sizes.
TEST(GemmaConfig, DefaultsOfGemma3) {
  const DecoderConfig config = read(Json::parse(R"({"model_type": "gemma3_text", "hidden_size": 2560,
      "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})"));
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::linear);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  for (int64_t layer = 0; layer < 34; ++layer) EXPECT_EQ(config.has_window(layer), layer % 6 != 5) << layer;
}

TEST(GemmaConfig, RotaryPositionsByTypeOfLayer) {
  const DecoderConfig config = read(with(gemma3, R"({"rope_local_base_freq": null, "rope_theta": null,
      "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4, "rope_theta": 500000},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 2000}}})"));
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rope_scaling.factor, 4);
  EXPECT_EQ(config.local_rope_theta, 2000);
}

// "gelu" is what the first files say, and the approximation is what they mean.
TEST(GemmaConfig, TraitsOfGemma) {
  const DecoderConfig config = read(Json::parse(R"({"model_type": "gemma", "hidden_act": "gelu",
      "hidden_activation": null, "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1})"));
  EXPECT_TRUE(config.pre_norms && !config.post_norms && !config.qk_norm && config.unit_offset && config.gelu_gate);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.attention_multiplier, 0) << "1 / sqrt(head_dim)";
  EXPECT_TRUE(config.sliding_layers.empty());
}

// As the published models have it: every second layer has a window, and logits and scores are bounded.
TEST(GemmaConfig, TraitsOfGemma2) {
  const Json json = Json::parse(R"({"model_type": "gemma2", "num_hidden_layers": 3, "query_pre_attn_scalar": 144,
      "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"})");
  const DecoderConfig config = read(json);
  EXPECT_TRUE(config.pre_norms && config.post_norms && !config.qk_norm && config.unit_offset && config.scaled_tokens);
  EXPECT_THAT(config.sliding_layers, testing::ElementsAre(1, 0, 1));
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_FALSE(config.local_rope_theta);
  EXPECT_DOUBLE_EQ(config.attention_multiplier, 1.0 / 12);
  EXPECT_EQ(config.final_logit_softcapping, 30);
  EXPECT_EQ(config.attn_logit_softcapping, 50);
  const DecoderConfig unbounded =
      read(with(json, R"({"layer_types": ["full_attention", "full_attention", "full_attention"]})"));
  EXPECT_FALSE(unbounded.has_windows());
}

TEST(GemmaConfig, WrittenConfigReadsBack) {
  for (const Json& json :
       {gemma3, with(gemma3, R"({"final_logit_softcapping": 30, "rope_scaling": {"type": "linear", "factor": 8}})"),
        with(gemma3, R"({"query_pre_attn_scalar": 168, "rope_local_base_freq": 5000})"),
        Json::parse(R"({"model_type": "gemma", "attention_bias": true})"), Json::parse(R"({"model_type": "gemma2"})"),
        Json::parse(R"({"model_type": "gemma2", "attn_logit_softcapping": null, "final_logit_softcapping": null})")})
    EXPECT_EQ(read_decoder_config(config_json(read(json)), "written"), read(json)) << json;
}

TEST(GemmaConfig, RefusesWhatIsNotSupported) {
  struct Wrong {
    const char* changes;
    std::vector<const char*> words;
  };
  for (const auto& [changes, words] : std::vector<Wrong>{
           {R"({"sliding_window": 0})", {"'sliding_window' is 0"}},
           {R"({"layer_types": ["full_attention"]})", {"'layer_types' = [\"full_attention\"]", "there are 3 layers"}},
           {R"({"layer_types": ["full_attention", "chunked_attention", "full_attention"]})",
            {"'layer_types'", "full_attention or sliding_attention"}},
           {R"({"use_bidirectional_attention": true})", {"'use_bidirectional_attention' = true"}},
           {R"({"attn_logit_softcapping": 50.0})", {"'attn_logit_softcapping' = 50", "have no bound"}},
           {R"({"hidden_activation": "silu"})", {"'hidden_activation' = \"silu\"", "only gelu_pytorch_tanh is"}},
           {R"({"hidden_activation": "gelu"})", {"'hidden_activation' = \"gelu\"", "only gelu_pytorch_tanh is"}},
           {R"({"query_pre_attn_scalar": 0})", {"'query_pre_attn_scalar' is 0"}},
           {R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}})",
            {"'rope_parameters' scales", "a sliding window"}},
           {R"({"rope_parameters": {"full_attention": {"rope_type": "linear"}}})",
            {"full_attention: 'factor' is missing"}},
       }) {
    SCOPED_TRACE(changes);
    const std::string error = testing_weights::data_error_of([&] { read(with(gemma3, changes)); });
    for (const char* word : words) EXPECT_THAT(error, testing::HasSubstr(word));
  }
}

} // namespace
} // namespace fvlm
