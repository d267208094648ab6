#include "model/weights/connector.h"
#include "model/weights/towers.h"
#include "weights/foveated.h"
#include "weights/workshop.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

using Json = nlohmann::json;

// As in the folders on the Hub.
const Json dinov2_small = Json::parse(R"({
  "architectures": ["Dinov2Model"], "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.0, "hidden_size": 384, "image_size": 518, "initializer_range": 0.02, "layer_norm_eps": 1e-06,
  "layerscale_value": 1.0, "mlp_ratio": 4, "model_type": "dinov2", "num_attention_heads": 6, "num_channels": 3,
  "num_hidden_layers": 12, "patch_size": 14, "qkv_bias": true, "torch_dtype": "float32",
  "transformers_version": "4.32.0.dev0", "use_swiglu_ffn": false})");
const Json smollm2_135m = Json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
  "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
  "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
  "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers.js_config": {"a": [1]},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})");

uint64_t parameters(const WeightLayout& layout) {
  uint64_t sum = 0;
  for (const TensorSpec& tensor : layout.tensors)
    if (tensor.parameter) sum += TensorInfo{tensor.name, DType::f32, tensor.shape}.elements();
  return sum;
}

Json with(Json config, const std::string& changes) {
  config.update(Json::parse(changes));
  return config;
}

} // namespace

TEST(Config, dinov2_small_has_its_dimensions) {
  VisionConfig config = read_vision_config(dinov2_small, "config.json");
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.num_hidden_layers, 12);
  EXPECT_EQ(config.head_dim(), 64);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.grid(), 37);
  EXPECT_EQ(config.layer_norm_eps, 1e-6);
  EXPECT_EQ(parameters(layout_of(config)), 22056576u - 384); // Dinov2Model's, less the mask token
}

TEST(Config, smollm2_135m_has_its_dimensions) {
  DecoderConfig config = read_decoder_config(smollm2_135m, "config.json");
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.num_key_value_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rope_theta, 1e5);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 8192);
  EXPECT_EQ(parameters(layout_of(config)), 134515008u);
}

TEST(Config, ClipLargeOf336PixelsHasItsDimensions) {
  const Json clip = Json::parse(R"({"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768})");
  VisionConfig config = read_vision_config(clip, "config.json");
  EXPECT_EQ(config.hidden_act, "quick_gelu");
  EXPECT_EQ(config.layer_norm_eps, 1e-5);
  EXPECT_EQ(config.grid(), 24);
  EXPECT_EQ(config.layers_used(), 24);
  constexpr uint64_t all = 303507456, post_layernorm = 2 * 1024, layer = 12596224;
  EXPECT_EQ(parameters(layout_of(config)), all - post_layernorm);
  config.vision_feature_layer = -2;
  EXPECT_EQ(parameters(layout_of(config)), all - post_layernorm - layer);
}

TEST(Config, TheEncoderOfAWholeModelIsItsVisionConfig) {
  const Json whole = Json::parse(R"({"model_type": "siglip", "text_config": {}, "vision_config": {"patch_size": 14}})");
  const Json part = encoder_config(whole);
  EXPECT_EQ(part, Json::parse(R"({"model_type": "siglip_vision_model", "patch_size": 14})"));
  EXPECT_EQ(read_vision_config(part, "c").patch_size, 14);
  EXPECT_EQ(encoder_config(Json::parse(R"({"model_type": "clip"})"))["model_type"], "clip_vision_model");
  EXPECT_EQ(encoder_config(smollm2_135m), smollm2_135m);
}

TEST(Config, all_parts_of_fvlm_135m_have_157_3_million_parameters) {
  VisionConfig vision = read_vision_config(dinov2_small, "config.json");
  DecoderConfig decoder = read_decoder_config(smollm2_135m, "config.json");
  uint64_t sum = parameters(layout_of(vision)) + parameters(layout_of(decoder)) +
                 parameters(layout_of(foveated(), vision, decoder));
  EXPECT_EQ(sum / 100000, 1573u) << sum;
}

TEST(Config, what_is_left_out_has_the_default_of_transformers) {
  VisionConfig vision = read_vision_config({{"model_type", "dinov2"}}, "config.json");
  EXPECT_EQ(vision.hidden_size, 768);
  EXPECT_EQ(vision.grid(), 16);
  DecoderConfig decoder = read_decoder_config({{"model_type", "llama"}}, "config.json");
  EXPECT_EQ(decoder.vocab_size, 32000);
  EXPECT_EQ(decoder.num_key_value_heads, 32);
  EXPECT_EQ(decoder.head_dim, 128);
  EXPECT_EQ(decoder.rope_theta, 1e4);
  EXPECT_FALSE(decoder.tie_word_embeddings);
  EXPECT_THAT(decoder.eos_token_id, testing::ElementsAre(2));
}

TEST(Config, rotary_base_is_read_in_every_form_that_transformers_reads) {
  auto theta = [](const std::string& changes) {
    Json config = smollm2_135m;
    config.erase("rope_theta");
    return read_decoder_config(with(config, changes), "config.json").rope_theta;
  };
  EXPECT_EQ(theta("{}"), 1e4);
  EXPECT_EQ(theta(R"({"rope_theta": 5e5})"), 5e5);
  EXPECT_EQ(theta(R"({"rope_parameters": {"rope_theta": 130000.0, "rope_type": "default"}})"), 1.3e5);
  EXPECT_EQ(theta(R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 7e4})"), 7e4);
  EXPECT_EQ(theta(R"({"rope_parameters": {"rope_theta": 2e4}, "rope_theta": 7e4})"), 2e4);
  EXPECT_EQ(
      theta(R"({"rope_scaling": {"type": "default", "rope_theta": 3e4}, "rope_parameters": {"rope_theta": 2e4}})"),
      3e4);
  EXPECT_EQ(theta(R"({"rope_scaling": {}, "rope_parameters": {"rope_theta": 2e4}})"), 2e4);
}

TEST(Config, sizes_as_pairs_fractions_and_lists_of_ends) {
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"image_size": [224, 224]})"), "c").image_size, 224);
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"mlp_ratio": 2.6667})"), "c").intermediate_size, 1024);
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"image_size": 30})"), "c").grid(), 2) << "rounded down";
  EXPECT_THAT(read_decoder_config(with(smollm2_135m, R"({"eos_token_id": [1, 7]})"), "c").eos_token_id,
              testing::ElementsAre(1, 7));
  EXPECT_TRUE(read_decoder_config(with(smollm2_135m, R"({"eos_token_id": null})"), "c").eos_token_id.empty());
  EXPECT_EQ(read_decoder_config(with(smollm2_135m, R"({"head_dim": 32})"), "c").head_dim, 32);
}

TEST(Config, what_the_engine_writes_it_reads_to_the_same) {
  for (const char* changes : {"{}", R"({"mlp_ratio": 2.6667, "image_size": 98, "layerscale_value": 0.1})"}) {
    VisionConfig config = read_vision_config(with(dinov2_small, changes), "config.json");
    EXPECT_EQ(read_vision_config(config_json(config), "written"), config) << changes;
  }
  for (const char* model_type : {"clip_vision_model", "siglip_vision_model", "idefics3_vision", "smolvlm_vision"})
    for (const char* changes : {"{}", R"({"hidden_act": "gelu", "image_size": 98, "patch_size": 14})",
                                R"({"vision_feature_layer": -2, "initializer_factor": 2, "vision_use_head": false})"}) {
      VisionConfig config = read_vision_config(with({{"model_type", model_type}}, changes), "config.json");
      EXPECT_EQ(read_vision_config(config_json(config), "written"), config) << model_type << changes;
    }
  for (const char* changes : {"{}", R"({"eos_token_id": [3, 4], "head_dim": 32, "tie_word_embeddings": false})"}) {
    DecoderConfig config = read_decoder_config(with(smollm2_135m, changes), "config.json");
    EXPECT_EQ(read_decoder_config(config_json(config), "written"), config) << changes;
  }
  const ConnectorConfig connector = foveated(64, 0.5, connector::Attend::shallow);
  const ConnectorConfig read = read_connector_config(config_json(connector), "written");
  EXPECT_EQ(config_json(read), config_json(connector));
  EXPECT_EQ(read.as<connector::Foveated>()->query_dim, 64);
  EXPECT_EQ(read.as<connector::Foveated>()->visual_scale, 0.5);
  EXPECT_TRUE(read.as<connector::Foveated>()->shallow());
}

TEST(Config, all_that_is_wrong_is_told_at_once) {
  std::string text = data_error_of([] {
    read_decoder_config(with(smollm2_135m, R"({"hidden_size": -1, "attention_bias": true, "hidden_act": "gelu"})"),
                        "decoder/config.json");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("decoder/config.json: "), HasSubstr("'hidden_size' is -1"),
                          HasSubstr("'attention_bias' = true"), HasSubstr("'hidden_act' = \"gelu\"")));
}

namespace {

struct Wrong {
  std::string name;
  Json config;
  std::vector<std::string> words;
};

std::ostream& operator<<(std::ostream& out, const Wrong& one) {
  return out << one.name;
}

Wrong vision(const std::string& name, const std::string& changes, std::vector<std::string> words) {
  return {name, with(dinov2_small, changes), std::move(words)};
}

Wrong decoder(const std::string& name, const std::string& changes, std::vector<std::string> words) {
  return {name, with(smollm2_135m, changes), std::move(words)};
}

std::vector<Wrong> wrong_visions() {
  return {
      {"empty", Json::object(), {"'model_type' is missing", "Hugging Face"}},
      vision("type_is_a_number", R"({"model_type": 3})", {"'model_type'", "no text"}),
      vision("convnext", R"({"model_type": "convnext"})", {"\"convnext\"", "vision tower", "dinov2"}),
      vision("a_decoder", R"({"model_type": "llama"})", {"\"llama\" is not supported as vision tower", "other part"}),
      vision("width_zero", R"({"hidden_size": 0})", {"'hidden_size' is 0", "from 1"}),
      vision("width_negative", R"({"hidden_size": -384})", {"'hidden_size' is -384"}),
      vision("width_text", R"({"hidden_size": "384"})", {"'hidden_size' is \"384\""}),
      vision("width_fraction", R"({"hidden_size": 384.5})", {"'hidden_size' is 384.5"}),
      vision("width_null", R"({"hidden_size": null})", {"'hidden_size' is null"}),
      vision("width_beyond_int64", R"({"hidden_size": 18446744073709551615})",
             {"'hidden_size' is 18446744073709551615"}),
      vision("a_million_layers", R"({"num_hidden_layers": 1000000})", {"'num_hidden_layers' is 1000000", "to 1024"}),
      vision("heads_that_do_not_share", R"({"num_attention_heads": 7})", {"7 heads", "'hidden_size' = 384"}),
      vision("image_not_square", R"({"image_size": [224, 448]})", {"'image_size' is [224,448]", "square"}),
      vision("image_of_three", R"({"image_size": [14, 14, 14]})", {"'image_size' is [14,14,14]"}),
      vision("patch_larger_than_image", R"({"patch_size": 600})", {"'patch_size' = 600", "'image_size' = 518"}),
      vision("one_channel", R"({"num_channels": 1})", {"'num_channels' = 1", "three channels"}),
      vision("swiglu", R"({"use_swiglu_ffn": true})", {"'use_swiglu_ffn' = true", "GELU"}),
      vision("tanh_gelu", R"({"hidden_act": "gelu_new"})", {"'hidden_act' = \"gelu_new\"", "only gelu"}),
      vision("no_bias", R"({"qkv_bias": false})", {"'qkv_bias' = false", "bias"}),
      vision("drop_path", R"({"drop_path_rate": 0.1})", {"'drop_path_rate' = 0.1", "dropout"}),
      vision("eps_negative", R"({"layer_norm_eps": -1e-6})", {"'layer_norm_eps' is -1e-06"}),
      vision("mlp_of_nothing", R"({"mlp_ratio": 0.001})", {"'mlp_ratio' = 0.001", "no features"}),
      vision("flag_as_number", R"({"use_mask_token": 1})", {"'use_mask_token' is 1", "true or false"}),
      vision("quantized", R"({"quantization_config": {"bits": 4}})", {"'quantization_config'", "not supported"}),
  };
}

std::vector<Wrong> wrong_decoders() {
  return {
      decoder("gpt2", R"({"model_type": "gpt2"})", {"\"gpt2\"", "decoder", "llama"}),
      decoder("a_vision_tower", R"({"model_type": "dinov2"})", {"\"dinov2\" is not supported as decoder"}),
      decoder("terminal_codes", R"({"model_type": "\u001b[2J"})", {"\\u001b[2J"}),
      decoder("attention_bias", R"({"attention_bias": true})", {"'attention_bias' = true", "no bias"}),
      decoder("sees_what_comes", R"({"is_causal": false})", {"'is_causal' = false", "before it"}),
      decoder("mlp_bias", R"({"mlp_bias": true})", {"'mlp_bias' = true"}),
      decoder("gelu", R"({"hidden_act": "gelu"})", {"'hidden_act' = \"gelu\"", "only silu"}),
      decoder("linear_scaling", R"({"rope_scaling": {"type": "linear", "factor": 2}})",
              {"'rope_scaling'", "\"linear\"", "not supported"}),
      decoder("llama3_scaling", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
              {"\"llama3\"", "not supported"}),
      decoder("yarn_in_the_new_form", R"({"rope_parameters": {"rope_type": "yarn"}})",
              {"'rope_parameters'", "\"yarn\""}),
      decoder("scaling_is_text", R"({"rope_scaling": "linear"})", {"'rope_scaling' is \"linear\"", "object"}),
      decoder("theta_zero", R"({"rope_theta": 0})", {"'rope_theta' is 0"}),
      decoder("theta_text_in_the_new_form", R"({"rope_parameters": {"rope_theta": "1e5"}})",
              {"rope_parameters: 'rope_theta' is \"1e5\""}),
      decoder("partial_rotation", R"({"partial_rotary_factor": 0.5})", {"'partial_rotary_factor' = 0.5"}),
      decoder("partial_rotation_in_the_new_form", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
              {"rope_parameters: 'partial_rotary_factor' = 0.5"}),
      decoder("odd_head", R"({"head_dim": 63})", {"'head_dim' = 63 is odd"}),
      decoder("heads_that_do_not_share", R"({"num_attention_heads": 10})", {"10 heads", "'hidden_size' = 576"}),
      decoder("kv_heads_no_divisor", R"({"num_key_value_heads": 2})", {"'num_key_value_heads' = 2", "no divisor", "9"}),
      decoder("more_kv_heads_than_heads", R"({"num_key_value_heads": 18})", {"'num_key_value_heads' = 18"}),
      decoder("kv_heads_zero", R"({"num_key_value_heads": 0})", {"'num_key_value_heads' is 0"}),
      decoder("vocabulary_empty", R"({"vocab_size": 0})", {"'vocab_size' is 0"}),
      decoder("vocabulary_huge", R"({"vocab_size": 4294967296})", {"'vocab_size' is 4294967296"}),
      decoder("eps_text", R"({"rms_norm_eps": "small"})", {"'rms_norm_eps' is \"small\""}),
      decoder("tied_as_text", R"({"tie_word_embeddings": "yes"})", {"'tie_word_embeddings' is \"yes\""}),
      decoder("end_negative", R"({"eos_token_id": -1})", {"'eos_token_id' is -1"}),
      decoder("ends_of_text", R"({"eos_token_id": [2, "x"]})", {"'eos_token_id' is [2,\"x\"]"}),
      decoder("dropout", R"({"attention_dropout": 0.1})", {"'attention_dropout' = 0.1"}),
      decoder("quantized", R"({"quantization_config": {}})", {"'quantization_config'"}),
  };
}

class WrongVision : public testing::TestWithParam<Wrong> {};
class WrongDecoder : public testing::TestWithParam<Wrong> {};

} // namespace

TEST_P(WrongVision, is_refused_by_name) {
  std::string text = data_error_of([&] { read_vision_config(GetParam().config, "vision/config.json"); });
  EXPECT_THAT(text, testing::StartsWith("vision/config.json: "));
  for (const std::string& word : GetParam().words) EXPECT_THAT(text, HasSubstr(word));
}

TEST_P(WrongDecoder, is_refused_by_name) {
  std::string text = data_error_of([&] { read_decoder_config(GetParam().config, "decoder/config.json"); });
  EXPECT_THAT(text, testing::StartsWith("decoder/config.json: "));
  for (const std::string& word : GetParam().words) EXPECT_THAT(text, HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(Configs, WrongVision, testing::ValuesIn(wrong_visions()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Configs, WrongDecoder, testing::ValuesIn(wrong_decoders()),
                         [](const auto& info) { return info.param.name; });

TEST(WrongConnector, is_refused_by_name) {
  auto error = [](const std::string& json) {
    return data_error_of([&] { read_connector_config(Json::parse(json), "fvlm.json"); });
  };
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("'kind' is missing"), HasSubstr("'query_dim' is missing")));
  EXPECT_THAT(error(R"({"kind": "perceiver", "query_dim": 4, "visual_scale": 1})"), HasSubstr("\"perceiver\""));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 0, "visual_scale": 1})"), HasSubstr("'query_dim' is 0"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scale": -1})"), HasSubstr("'visual_scale' is -1"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scale": 1, "attend": "x"})"),
              HasSubstr("deep or shallow"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scales": 1})"),
              HasSubstr("did you mean 'visual_scale'"));
}
