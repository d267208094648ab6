// SigLIP's vision transformer (transformers' SiglipVisionModel without its head): no class token, a bias in the patch
// embedding, and as output the hidden states after post_layernorm. Granite Docling has the same one, and Idefics3 and
// SmolVLM, which choose position embeddings of frames of other sizes in their own way. SigLIP 2's, PaddleOCR-VL's,
// VideoLLaMA 3's and MiniCPM-V's read cells of images of any size, the first one's patches as a linear does, the
// others' as a convolution. VideoLLaMA 3's has no learned positions, and MiniCPM-V's makes one row of each square of 2
// x 2 patches behind one of its layers.
#include "model/encoder/cell_vit.h"
#include "model/encoder/vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> siglip_encoder(const VisionConfig& config, Parameters& parameters) {
  if (config.reads_cells()) {
    const CellVit::Traits traits{.patch = "embeddings.patch_embedding",
                                 .position =
                                     config.num_position_embeddings > 0 ? "embeddings.position_embedding" : nullptr,
                                 .input_norm = nullptr,
                                 .layers = "encoder.layers.",
                                 .before_attention = "layer_norm1",
                                 .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                 .out = "self_attn.out_proj",
                                 .before_mlp = "layer_norm2",
                                 .up = {"mlp.fc1"},
                                 .down = "mlp.fc2",
                                 .output_norm = "post_layernorm",
                                 .rotates = config.axial_rope,
                                 .channels_last = config.position_antialias,
                                 .patch_bias = true,
                                 .merger = config.insert_layer_id >= 0 ? "vit_merger." : nullptr};
    return std::make_unique<CellVit>(config, traits, parameters);
  }
  const Vit::Traits traits = Vit::clip_traits(/*class_token=*/false, /*patch_bias=*/true, /*output_normed=*/true);
  return std::make_unique<Vit>(config, traits, parameters);
}

} // namespace fvlm::model
