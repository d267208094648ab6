// The vision encoder of Gemma 4 (transformers' Gemma4VisionModel), up to its pooler.
#include "model/encoder/cell_vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> gemma4_vision_encoder(const VisionConfig& config, Parameters& parameters) {
  const CellVit::Traits::NormedBranches norms{.after_attention = "post_attention_layernorm",
                                              .after_mlp = "post_feedforward_layernorm"};
  const CellVit::Traits traits{.patch = "patch_embedder.input_proj",
                               .position = "patch_embedder.position_embedding_table",
                               .input_norm = nullptr,
                               .layers = "encoder.layers.",
                               .before_attention = "input_layernorm",
                               .qkv = {"self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"},
                               .out = "self_attn.o_proj.linear",
                               .before_mlp = "pre_feedforward_layernorm",
                               .up = {"mlp.gate_proj.linear", "mlp.up_proj.linear"},
                               .down = "mlp.down_proj.linear",
                               .biases = false,
                               .channels_last = true,
                               .q_norm = "self_attn.q_norm",
                               .k_norm = "self_attn.k_norm",
                               .normed_branches = &norms};
  return std::make_unique<CellVit>(config, traits, parameters);
}

} // namespace fvlm::model
