// Mixtures of experts: which layers have them, where their matrices lie, and what reads them.
#include "model/weights/adapter.h"
#include "model/weights/blocks.h"
#include "model/weights/packed_weight.h"
#include "model/weights/towers.h"
#include "workshop.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <gmock/gmock.h>
#include <numeric>

namespace fvlm {
namespace {

using namespace testing_weights;
using testing::ElementsAre;
using testing::HasSubstr;

DecoderConfig qwen3_moe_with(const char* changes = "{}") {
  nlohmann::json json = nlohmann::json::parse(R"({
    "attention_bias": false, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})");
  json.merge_patch(nlohmann::json::parse(changes));
  return read_decoder_config(json, "config.json");
}

std::string refusal(const char* changes) {
  return data_error_of([&] { (void)qwen3_moe_with(changes); });
}

TEST(ExpertsConfig, Qwen3MoeHasThirtyBillionParameters) {
  const DecoderConfig config = qwen3_moe_with();
  EXPECT_EQ(config.mixtures(), 48);
  int64_t parameters = 0;
  for (const TensorSpec& spec : layout_of(config).tensors) parameters += elements_of(spec.shape);
  const int64_t attention = 2048 * (4096 + 512 + 512 + 4096) + 2 * 128, norms = 2 * 2048;
  EXPECT_EQ(parameters,
            2 * 151936 * 2048 + 2048 + 48 * (attention + norms + 128 * 2048 + int64_t{128} * 3 * 2048 * 768));
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
}

TEST(ExpertsConfig, SomeLayersAreDense) {
  const DecoderConfig config =
      qwen3_moe_with(R"({"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
  EXPECT_THAT(config.expert_layers, ElementsAre(0, 1, 0, 0, 0, 1));
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
  EXPECT_EQ(qwen3_moe_with(R"({"num_experts": null, "num_local_experts": 16})").num_experts, 16);
}

TEST(ExpertsConfig, FirstLayersOfLfm2AreDenseAndItsRouterHasABias) {
  const DecoderConfig config = read_decoder_config(nlohmann::json::parse(R"({"model_type": "lfm2_moe",
    "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"], "num_experts": 4,
    "num_experts_per_tok": 2, "routed_scaling_factor": 1.5})"),
                                                   "config.json");
  EXPECT_THAT(config.expert_layers, ElementsAre(0, 0, 1, 1));
  EXPECT_TRUE(config.sigmoid_router && config.norm_topk_prob && config.use_expert_bias);
  EXPECT_EQ(config.intermediate_size, 7168);
  EXPECT_EQ(read_decoder_config(config_json(config), "written"), config);
  std::vector<std::string> fixed;
  for (const TensorSpec& spec : layout_of(config).tensors)
    if (spec.is_fixed) fixed.push_back(spec.name);
  EXPECT_THAT(fixed, ElementsAre("model.layers.2.feed_forward.expert_bias", "model.layers.3.feed_forward.expert_bias"));
}

TEST(ExpertsConfig, WhatIsNotSupportedIsRefused) {
  EXPECT_THAT(refusal(R"({"num_experts_per_tok": 129})"),
              HasSubstr("'num_experts_per_tok' = 129 is more than the 128"));
  EXPECT_THAT(refusal(R"({"output_router_logits": true})"), HasSubstr("without an auxiliary loss"));
  EXPECT_THAT(refusal(R"({"use_sliding_window": true, "sliding_window": 4096})"), HasSubstr("use_sliding_window"));
}

TEST(ExpertsConfig, MatricesOfALayersExpertsLieTogether) {
  const DecoderConfig config = qwen3_moe_with(R"({"num_hidden_layers": 2, "num_experts": 3, "mlp_only_layers": [0],
    "num_experts_per_tok": 1})");
  const auto blocks = blocks_of(layout_of(config), "decoder.", fused_weights(config));
  std::vector<std::vector<std::string>> of_experts;
  for (const ParameterBlock& block : blocks)
    if (block.front().name.find(".experts.") != std::string::npos) {
      auto& names = of_experts.emplace_back();
      for (const ParameterSpec& spec : block) names.push_back(spec.name.substr(spec.name.find("experts.")));
    }
  EXPECT_THAT(of_experts, ElementsAre(ElementsAre("experts.0.gate_proj.weight", "experts.0.up_proj.weight",
                                                  "experts.1.gate_proj.weight", "experts.1.up_proj.weight",
                                                  "experts.2.gate_proj.weight", "experts.2.up_proj.weight"),
                                      ElementsAre("experts.0.down_proj.weight", "experts.1.down_proj.weight",
                                                  "experts.2.down_proj.weight")));
}

TEST(ExpertsConfig, AdaptersAreOfOtherLinearsAndCodesOfAllButRouters) {
  const WeightLayout layout = layout_of(qwen3_moe_with(R"({"num_hidden_layers": 1, "num_experts": 8})"));
  EXPECT_EQ(adapted_modules(layout, {"all"}, "recipe").size(), 4); // q, k, v, o
  for (const char* target : {"gate", "up_proj", "experts", "mlp.experts", "experts.3.down_proj"}) try {
      (void)adapted_modules(layout, {"q", target}, "recipe");
      ADD_FAILURE() << target << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), HasSubstr(fmt::format("'{}' names matrices of experts", target)));
    }
  for (const TensorSpec& spec : layout.tensors) {
    const bool is_linear = spec.name.find("_proj.weight") != std::string::npos;
    EXPECT_EQ(is_packable(spec.name, spec.shape), is_linear) << spec.name;
    EXPECT_EQ(takes_adapter(spec.name, spec.shape), is_linear && spec.name.find("self_attn") != std::string::npos)
        << spec.name;
  }
}

} // namespace
} // namespace fvlm
