// Vit: the vision transformers whose layers read all rows of a frame and nothing else: CLIP, SigLIP, InternVL and
// Ovis2, which differ in a few traits and in what their weights are called.
#pragma once
#include "model/encoder/encoder.h"
#include "model/encoder/vit_layer.h"

#include <vector>

namespace fvlm::model {

class Vit : public Encoder {
 public:
  struct Traits {
    VitEmbedding::Names embedding;
    const char* input_norm; // LayerNorm of the embedded rows; null: there is none
    const char* layers;     // the names of all layers begin with it: "encoder.layers."
    VitLayer::Names layer;
    const char* output_norm; // last_hidden_state is behind this LayerNorm; null: there is none
    bool output_bias = true; // of that norm; without it, it is an RMSNorm
  };
  // Names as in CLIP.
  static Traits clip_traits(bool class_token, bool patch_bias, bool output_normed);
  Vit(const VisionConfig& config, const Traits& traits, Parameters& parameters);

  int64_t width() const override { return config_.output_width(); }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return fvlm::tokens_per_frame(config_, height, image_width);
  }
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                const PackMaps& maps) const override {
    return forward_with_layers(tape, ops, frames, tokens, maps)[0];
  }
  std::vector<Value> forward_with_layers(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                                         const PackMaps& maps) const override;
  double flops(int64_t tokens, bool trains) const override;
  bool trains() const override { return embedding_.requires_grad(); }

 private:
  VisionConfig config_;
  bool has_class_token_, drops_class_token_;
  VitEmbedding embedding_;
  VitNorm before_layers_, output_; // undefined weights: there is none
  std::vector<VitLayer> layers_;   // that the output depends on
};

} // namespace fvlm::model
