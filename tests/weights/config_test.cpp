#include "model/weights/connector.h"
#include "model/weights/towers.h"
#include "weights/foveated.h"
#include "weights/workshop.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
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

TEST(Config, Dinov2SmallHasItsDimensions) {
  VisionConfig config = read_vision_config(dinov2_small, "config.json");
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.num_hidden_layers, 12);
  EXPECT_EQ(config.head_dim(), 64);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.grid(), 37);
  EXPECT_EQ(config.layer_norm_eps, 1e-6);
  EXPECT_EQ(parameters(layout_of(config)), 22056576u - 384); // Dinov2Model's, less the mask token
}

TEST(Config, Dinov2WithRegistersHasItsDimensions) {
  const VisionConfig config = read_vision_config(with(dinov2_small, R"({"model_type": "dinov2_with_registers"})"), "c");
  EXPECT_EQ(config.num_register_tokens, 4);
  EXPECT_TRUE(config.position_antialias && config.use_mask_token);
  EXPECT_EQ(tokens_per_frame(config, 28, 42), 1 + 4 + 2 * 3);
  EXPECT_EQ(parameters(layout_of(config)), 22056576u - 384 + 4 * 384);
  EXPECT_EQ(read_vision_config(Json{{"model_type", "dinov2_with_registers"}}, "c").patch_size, 16);
}

TEST(Config, Smollm2135mHasItsDimensions) {
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
  config.vision_feature_layers = {-2};
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

TEST(Config, Fvlm135mHas1573MillionParameters) {
  VisionConfig vision = read_vision_config(dinov2_small, "config.json");
  DecoderConfig decoder = read_decoder_config(smollm2_135m, "config.json");
  uint64_t sum = parameters(layout_of(vision)) + parameters(layout_of(decoder)) +
                 parameters(layout_of(foveated(), vision, {decoder}));
  EXPECT_EQ(sum / 100000, 1573u) << sum;
}

TEST(Config, DeviationsOfFreshMatricesAndOfTheTokenEmbedding) {
  const auto deviations = [](const char* changed) {
    const DecoderConfig config = read_decoder_config(with({{"model_type", "llama"}}, changed), "config.json");
    const auto tensors = layout_of(config).tensors;
    const auto of = [&](const std::string& name) {
      return std::ranges::find(tensors, name, &TensorSpec::name)->fill.value;
    };
    return std::array{of("model.embed_tokens.weight"), of("model.layers.0.mlp.up_proj.weight")};
  };
  EXPECT_EQ(deviations("{}"), (std::array{0.02, 0.02}));
  EXPECT_EQ(deviations(R"({"initializer_range": 0.125})"), (std::array{0.125, 0.125}));
  EXPECT_EQ(deviations(R"({"initializer_range": 0.125, "embedding_initializer_range": 2})"), (std::array{2.0, 0.125}));
}

TEST(Config, OmittedValuesHaveTheDefaultsOfTransformers) {
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

TEST(Config, ReadsEveryFormOfTheRotaryBase) {
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

TEST(Config, ScalingOfRotaryPositionsInBothForms) {
  const auto scaling = [](const std::string& changes) {
    return read_decoder_config(with(smollm2_135m, changes), "config.json").rope_scaling;
  };
  const RopeScaling llama3 = scaling(
      R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32, "low_freq_factor": 1,
          "high_freq_factor": 4, "original_max_position_embeddings": 8192}})");
  EXPECT_EQ(llama3, (RopeScaling{.type = RopeScaling::Type::llama3,
                                 .factor = 32,
                                 .original_max_position_embeddings = 8192,
                                 .low_freq_factor = 1,
                                 .high_freq_factor = 4}));
  EXPECT_EQ(scaling(R"({"rope_scaling": {"type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4},
                        "original_max_position_embeddings": 8192})"),
            llama3);
  EXPECT_EQ(scaling(R"({"rope_scaling": {"type": "linear", "factor": 2}})").factor, 2);
  EXPECT_EQ(scaling(R"({"rope_scaling": {"type": "dynamic", "rope_type": "dynamic", "factor": 2}})"), RopeScaling())
      << "it begins beyond the positions";
  const RopeScaling yarn = scaling(R"({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": null,
                  "original_max_position_embeddings": 1024, "beta_fast": 0}})");
  EXPECT_EQ(yarn.factor, 4) << "what the lengths say";
  EXPECT_EQ(yarn.beta_fast, 32);
  EXPECT_NEAR(yarn.attention_factor, 1.1386294361, 1e-9);
  EXPECT_EQ(scaling(R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.5}})").attention_factor,
            1.5);
}

// With the numbers of Llama 3.2. tests/model/families_test.py compares them with transformers.
TEST(Config, FrequenciesOfScaledRotaryPositions) {
  const RopeScaling llama3{.type = RopeScaling::Type::llama3,
                           .factor = 32,
                           .original_max_position_embeddings = 8192,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4};
  const auto scaled = rope_frequencies({5e5, llama3}, 64), plain = rope_frequencies({5e5, {}}, 64);
  ASSERT_EQ(scaled.size(), 32);
  EXPECT_EQ(scaled[0], 1);
  EXPECT_EQ(scaled[10], plain[10]) << "a short wavelength";
  EXPECT_EQ(scaled[31], plain[31] / 32) << "a long one";
  EXPECT_GT(scaled[16], plain[16] / 32);
  EXPECT_LT(scaled[16], plain[16]);
}

TEST(Config, TraitsOfEachFamily) {
  const auto read = [](const std::string& json) { return read_decoder_config(Json::parse(json), "config.json"); };
  const DecoderConfig llama = read(R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias && llama.gated_mlp && llama.norm_weights);
  EXPECT_FALSE(llama.qk_norm || llama.embedding_norm || llama.rope_reversed);
  const DecoderConfig mistral = read(R"({"model_type": "mistral", "sliding_window": null, "attention_bias": true})");
  EXPECT_FALSE(mistral.qkv_bias || mistral.out_bias || mistral.mlp_bias || mistral.tie_word_embeddings);
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_TRUE(mistral.sliding_layers.empty());
  const DecoderConfig window = read(R"({"model_type": "mistral", "num_hidden_layers": 2})");
  EXPECT_THAT(window.sliding_layers, testing::ElementsAre(1, 1));
  EXPECT_EQ(window.sliding_window, 4096);
  const DecoderConfig smollm3 = read(R"({"model_type": "smollm3", "num_hidden_layers": 9})");
  EXPECT_THAT(smollm3.no_rope_layers, testing::ElementsAre(1, 1, 1, 0, 1, 1, 1, 0, 1));
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_EQ(smollm3.rope_theta, 2e6);
  EXPECT_EQ(smollm3.num_key_value_heads, 4);
  const DecoderConfig interval =
      read(R"({"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2, "no_rope_layers": null})");
  EXPECT_THAT(interval.no_rope_layers, testing::ElementsAre(1, 0, 1, 0));
  const DecoderConfig listed = read(
      R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [0, 1, 0, 1], "rope_theta": 5000000.0})");
  EXPECT_THAT(listed.no_rope_layers, testing::ElementsAre(0, 1));
  EXPECT_EQ(listed.rope_theta, 5e6);
  const DecoderConfig granite = read(R"({"model_type": "granite", "embedding_multiplier": 12, "logits_scaling": 8.0,
                                           "residual_multiplier": 0.22})");
  EXPECT_EQ(granite.embedding_multiplier, 12);
  EXPECT_EQ(granite.logits_scaling, 8);
  EXPECT_EQ(granite.residual_multiplier, 0.22);
  EXPECT_EQ(granite.attention_multiplier, 1) << "transformers' default, not 1 / sqrt(head_dim)";
  const DecoderConfig olmo2 = read(R"({"model_type": "olmo2", "attention_bias": true})");
  EXPECT_TRUE(olmo2.post_norms && olmo2.qk_row_norm && !olmo2.qk_norm && olmo2.qkv_bias && olmo2.out_bias);
  EXPECT_EQ(olmo2.rms_norm_eps, 1e-5);
  const WeightLayout norms = layout_of(olmo2);
  const auto shape_of = [&](const std::string& name) {
    for (const TensorSpec& tensor : norms.tensors)
      if (tensor.name == "model.layers.0." + name + ".weight") return tensor.shape;
    return std::vector<int64_t>();
  };
  EXPECT_THAT(shape_of("self_attn.q_norm"), testing::ElementsAre(4096));
  EXPECT_THAT(shape_of("post_feedforward_layernorm"), testing::ElementsAre(4096));
  EXPECT_TRUE(shape_of("input_layernorm").empty());
  const DecoderConfig qwen2 = read(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": null})");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 128);
  const DecoderConfig qwen3 = read(R"({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 24,
                                         "num_key_value_heads": 8})");
  EXPECT_TRUE(qwen3.qk_norm && qwen3.norm_weights && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128) << "its own, not hidden_size / heads";
  const DecoderConfig nanochat = read(R"({"model_type": "nanochat"})");
  EXPECT_TRUE(nanochat.qk_norm && nanochat.embedding_norm && nanochat.rope_reversed);
  EXPECT_FALSE(nanochat.norm_weights || nanochat.gated_mlp || nanochat.qkv_bias || nanochat.tie_word_embeddings);
  EXPECT_EQ(nanochat.final_logit_softcapping, 15);
  EXPECT_EQ(read(R"({"model_type": "nanochat", "final_logit_softcapping": null})").final_logit_softcapping, 0);
  const DecoderConfig ghostvis = read(R"({"model_type": "ghostvis"})");
  EXPECT_TRUE(ghostvis.gated_mlp && ghostvis.qkv_bias && !ghostvis.out_bias && !ghostvis.norm_weights);
  EXPECT_EQ(ghostvis.rms_norm_eps, 0x1p-23);
}

TEST(Config, SizesAsPairsFractionsAndListsOfEnds) {
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"image_size": [224, 224]})"), "c").image_size, 224);
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"mlp_ratio": 2.6667})"), "c").intermediate_size, 1024);
  EXPECT_EQ(read_vision_config(with(dinov2_small, R"({"image_size": 30})"), "c").grid(), 2) << "rounded down";
  EXPECT_THAT(read_decoder_config(with(smollm2_135m, R"({"eos_token_id": [1, 7]})"), "c").eos_token_id,
              testing::ElementsAre(1, 7));
  EXPECT_TRUE(read_decoder_config(with(smollm2_135m, R"({"eos_token_id": null})"), "c").eos_token_id.empty());
  EXPECT_EQ(read_decoder_config(with(smollm2_135m, R"({"head_dim": 32})"), "c").head_dim, 32);
}

TEST(Config, WrittenConfigReadsBack) {
  for (const char* changes : {"{}", R"({"mlp_ratio": 2.6667, "image_size": 98, "layerscale_value": 0.1})"}) {
    VisionConfig config = read_vision_config(with(dinov2_small, changes), "config.json");
    EXPECT_EQ(read_vision_config(config_json(config), "written"), config) << changes;
  }
  const Json registers = with(dinov2_small, R"({"model_type": "dinov2_with_registers", "num_register_tokens": 3})");
  EXPECT_EQ(read_vision_config(config_json(read_vision_config(registers, "c")), "written"),
            read_vision_config(registers, "c"));
  for (const char* model_type : {"clip_vision_model", "siglip_vision_model", "idefics3_vision", "smolvlm_vision"})
    for (const char* changes : {"{}", R"({"hidden_act": "gelu", "image_size": 98, "patch_size": 14})",
                                R"({"vision_feature_layer": -2, "initializer_factor": 2, "vision_use_head": false})",
                                R"({"vision_feature_layer": [-4, 2, -1]})"}) {
      VisionConfig config = read_vision_config(with({{"model_type", model_type}}, changes), "config.json");
      EXPECT_EQ(read_vision_config(config_json(config), "written"), config) << model_type << changes;
    }
  for (const char* changes :
       {"{}", R"({"eos_token_id": [3, 4], "head_dim": 32, "tie_word_embeddings": false})",
        R"({"initializer_range": 0.125, "embedding_initializer_range": 1})",
        R"({"attention_bias": true, "mlp_bias": true, "rope_scaling": {"rope_type": "linear", "factor": 2}})",
        R"({"model_type": "mistral", "sliding_window": 8192, "head_dim": 32})",
        R"({"model_type": "mistral", "sliding_window": 32})",
        R"({"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [0, 1, 0]})",
        R"({"model_type": "smollm3", "no_rope_layer_interval": 5, "use_sliding_window": true})",
        R"({"model_type": "granite", "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "mlp_bias": true,
            "embedding_multiplier": 12.0, "logits_scaling": 8})",
        R"({"model_type": "olmo2", "attention_bias": true})",
        R"({"model_type": "qwen2", "eos_token_id": null, "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
        R"({"model_type": "qwen3", "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4}})",
        R"({"model_type": "nanochat", "hidden_act": "relu2", "final_logit_softcapping": null})",
        R"({"model_type": "ghostvis", "attention_bias": false, "final_logit_softcapping": 30})"}) {
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

TEST(Config, ReportsAllErrorsAtOnce) {
  std::string text = data_error_of([] {
    read_decoder_config(with(smollm2_135m, R"({"hidden_size": -1, "is_causal": false, "hidden_act": "gelu"})"),
                        "decoder/config.json");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("decoder/config.json: "), HasSubstr("'hidden_size' is -1"),
                          HasSubstr("'is_causal' = false"), HasSubstr("'hidden_act' = \"gelu\"")));
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
      vision("a_decoder", R"({"model_type": "llama"})",
             {"\"llama\" is not supported as vision tower", "it is that of the other part, a decoder"}),
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
      vision("no_registers", R"({"model_type": "dinov2_with_registers", "num_register_tokens": 0})",
             {"'num_register_tokens' is 0", "from 1"}),
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
      decoder("sees_what_comes", R"({"is_causal": false})", {"'is_causal' = false", "before it"}),
      decoder("gelu", R"({"hidden_act": "gelu"})", {"'hidden_act' = \"gelu\"", "only silu"}),
      decoder("relu2_in_a_gated_mlp", R"({"hidden_act": "relu2"})", {"'hidden_act' = \"relu2\"", "only silu"}),
      decoder("silu_in_nanochats_mlp", R"({"model_type": "nanochat", "hidden_act": "silu"})", {"only relu2 is"}),
      decoder("mixture_of_experts", R"({"num_local_experts": 8})", {"'num_local_experts' = 8", "experts"}),
      decoder("qwen2_moe", R"({"model_type": "qwen2_moe"})",
              {"\"qwen2_moe\"", "llama, mistral, ministral3, smollm3, granite, olmo2, gemma, gemma2, gemma3_text"}),
      decoder("sliding_window", R"({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 2})",
              {"'use_sliding_window' = true", "full attention", "set it to false"}),
      decoder("mistrals_window_zero", R"({"model_type": "mistral", "sliding_window": 0})", {"'sliding_window' is 0"}),
      decoder("smollm3s_window", R"({"model_type": "smollm3", "use_sliding_window": true, "sliding_window": 512})",
              {"'sliding_window' = 512", "full attention", "set it to null"}),
      decoder("rope_layers_too_few", R"({"model_type": "smollm3", "no_rope_layers": [1, 1]})",
              {"'no_rope_layers' = [1,1]", "30 layers"}),
      decoder("rope_layers_of_other_numbers",
              R"({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, 2]})",
              {"'no_rope_layers' = [1,2]", "an entry is 1, or 0"}),
      decoder("rope_interval_zero", R"({"model_type": "smollm3", "no_rope_layer_interval": 0})",
              {"'no_rope_layer_interval' is 0"}),
      decoder("residual_multiplier_zero", R"({"model_type": "granite", "residual_multiplier": 0})",
              {"'residual_multiplier' is 0"}),
      decoder("logits_scaling_text", R"({"model_type": "granite", "logits_scaling": "8"})",
              {"'logits_scaling' is \"8\""}),
      decoder("sliding_layers", R"({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]})",
              {"'layer_types' = [\"full_attention\",\"sliding_attention\"]", "without a sliding window"}),
      decoder("layer_types_as_text", R"({"layer_types": "full_attention"})", {"list of texts"}),
      decoder("cap_negative", R"({"model_type": "ghostvis", "final_logit_softcapping": -1})",
              {"'final_logit_softcapping' is -1"}),
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

std::vector<Wrong> wrong_rotary_positions() {
  return {
      decoder("longrope_scaling", R"({"rope_scaling": {"type": "longrope", "factor": 2}})",
              {"'rope_scaling'", "\"longrope\"", "default, linear, dynamic, llama3 and yarn are"}),
      decoder("linear_without_a_factor", R"({"rope_scaling": {"type": "linear"}})",
              {"rope_scaling: 'factor' is missing"}),
      decoder("llama3_without_its_range", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
              {"'low_freq_factor' is missing", "'high_freq_factor' is missing"}),
      decoder("llama3_with_an_empty_range",
              R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}})",
              {"'high_freq_factor' = 1 is not larger than 'low_freq_factor' = 4"}),
      decoder("yarn_in_the_new_form", R"({"rope_parameters": {"rope_type": "yarn"}})",
              {"rope_parameters: 'factor' is missing"}),
      decoder("rope_by_layer", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
              {"'rope_parameters' has 'full_attention'", "the same in all layers"}),
      decoder("multimodal_rope", R"({"model_type": "qwen2", "rope_scaling": {"mrope_section": [16, 24, 24]}})",
              {"'rope_scaling' has 'mrope_section'"}),
      decoder("multimodal_rope_of_two_axes",
              R"({"model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [16, 16]}})",
              {"'mrope_section' = [16, 16] does not divide the 32 pairs"}),
      decoder("multimodal_rope_of_smaller_heads",
              R"({"model_type": "qwen2_5_vl_text", "head_dim": 32, "rope_parameters": {"mrope_section": [4, 6, 5]}})",
              {"'mrope_section' = [4, 6, 5] does not divide the 16 pairs"}),
      decoder("multimodal_rope_that_takes_turns",
              R"({"model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_interleaved": true}})",
              {"rope_scaling: 'mrope_interleaved' = true", "one axis behind the other"}),
      decoder("multimodal_rope_that_takes_no_turns",
              R"({"model_type": "qwen3_vl_text", "rope_scaling": {"mrope_interleaved": false}})",
              {"rope_scaling: 'mrope_interleaved' = false", "take turns"}),
      decoder("scaling_is_text", R"({"rope_scaling": "linear"})", {"'rope_scaling' is \"linear\"", "object"}),
      decoder("theta_zero", R"({"rope_theta": 0})", {"'rope_theta' is 0"}),
      decoder("theta_text_in_the_new_form", R"({"rope_parameters": {"rope_theta": "1e5"}})",
              {"rope_parameters: 'rope_theta' is \"1e5\""}),
      decoder("partial_rotation", R"({"partial_rotary_factor": 0.5})", {"'partial_rotary_factor' = 0.5"}),
      decoder("partial_rotation_in_the_new_form", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
              {"rope_parameters: 'partial_rotary_factor' = 0.5"}),
  };
}

class WrongVision : public testing::TestWithParam<Wrong> {};
class WrongDecoder : public testing::TestWithParam<Wrong> {};

} // namespace

TEST_P(WrongVision, IsRefusedByName) {
  std::string text = data_error_of([&] { read_vision_config(GetParam().config, "vision/config.json"); });
  EXPECT_THAT(text, testing::StartsWith("vision/config.json: "));
  for (const std::string& word : GetParam().words) EXPECT_THAT(text, HasSubstr(word));
}

TEST_P(WrongDecoder, IsRefusedByName) {
  std::string text = data_error_of([&] { read_decoder_config(GetParam().config, "decoder/config.json"); });
  EXPECT_THAT(text, testing::StartsWith("decoder/config.json: "));
  for (const std::string& word : GetParam().words) EXPECT_THAT(text, HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(Configs, WrongVision, testing::ValuesIn(wrong_visions()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Configs, WrongDecoder, testing::ValuesIn(wrong_decoders()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(RotaryPositions, WrongDecoder, testing::ValuesIn(wrong_rotary_positions()),
                         [](const auto& info) { return info.param.name; });

TEST(WrongConnector, IsRefusedByName) {
  auto error = [](const std::string& json) {
    return data_error_of([&] { read_connector_config(Json::parse(json), "fvlm.json"); });
  };
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("'kind' is missing"), HasSubstr("'query_dim' is missing")));
  EXPECT_THAT(error(R"({"kind": "qformer", "query_dim": 4, "visual_scale": 1})"), HasSubstr("\"qformer\""));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 0, "visual_scale": 1})"), HasSubstr("'query_dim' is 0"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scale": -1})"), HasSubstr("'visual_scale' is -1"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scale": 1, "attend": "x"})"),
              HasSubstr("deep or shallow"));
  EXPECT_THAT(error(R"({"kind": "fvlm", "query_dim": 4, "visual_scales": 1})"),
              HasSubstr("did you mean 'visual_scale'"));
}
