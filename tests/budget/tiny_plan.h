// A plan of one stage and the description of its model, small enough to be written down.
#pragma once
#include "model/weights/model_directory.h"
#include "objective/next_token/settings.h"
#include "recipe/plan.h"

namespace fvlm::budget {

inline ModelDescription model() {
  const VisionConfig vision = {.model_type = "dinov2",
                               .hidden_size = 64,
                               .num_hidden_layers = 4,
                               .num_attention_heads = 4,
                               .intermediate_size = 256,
                               .image_size = 56,
                               .patch_size = 14,
                               .num_channels = 3,
                               .layer_norm_eps = 1e-6,
                               .layerscale_value = 1,
                               .initializer_range = 0.02,
                               .use_mask_token = true};
  const DecoderConfig decoder = {.model_type = "llama",
                                 .vocab_size = 1000,
                                 .hidden_size = 96,
                                 .intermediate_size = 256,
                                 .num_hidden_layers = 6,
                                 .num_attention_heads = 6,
                                 .num_key_value_heads = 2,
                                 .head_dim = 16,
                                 .max_position_embeddings = 512,
                                 .rope_theta = 10000,
                                 .rms_norm_eps = 1e-5,
                                 .initializer_range = 0.02,
                                 .tie_word_embeddings = true,
                                 .eos_token_id = {2}};
  ModelDescription description;
  description.parts = {{"vision", vision, {}}, {"connector", plan::default_connector(), {}}, {"decoder", decoder, {}}};
  return description;
}

inline plan::Plan plan() {
  plan::Plan plan;
  plan.precision = plan::Precision::fp32;
  plan.model.image_size = 56;
  plan::Stage& stage = plan.stages.emplace_back();
  stage.name = "align";
  stage.data.sources.emplace_back().shards = {"a.tar"};
  stage.data.max_frames = 4;
  stage.data.max_text_tokens = 28;
  stage.objective = {objective::NextToken{}};
  plan::AdamW adamw;
  adamw.lr = {{"connector", 1e-3}, {"default", 1e-5}};
  stage.optimizer = adamw;
  stage.packing.frames = 32;
  stage.packing.tokens.count = 512;
  return plan;
}

} // namespace fvlm::budget
