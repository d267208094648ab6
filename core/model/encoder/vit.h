// Vit: the vision transformers that are called as in CLIP: CLIP itself and SigLIP, which differ in a few traits.
#pragma once
#include "model/encoder/encoder.h"
#include "model/encoder/vit_layer.h"

#include <vector>

namespace fvlm::model {

class Vit : public Encoder {
 public:
  struct Traits {
    bool class_token;   // CLS, and a norm of the embedded rows (pre_layrnorm)
    bool patch_bias;    // of the patch embedding
    bool output_normed; // last_hidden_state is behind post_layernorm
  };
  Vit(const VisionConfig& config, const Traits& traits, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return fvlm::tokens_per_frame(config_, height, image_width);
  }
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens) const override;
  double flops(int64_t tokens, bool trains) const override;
  bool trains() const override { return embedding_.requires_grad(); }

 private:
  VisionConfig config_;
  Traits traits_;
  bool drops_class_token_;
  VitEmbedding embedding_;
  VitNorm before_layers_, output_; // undefined weights: there is none
  std::vector<VitLayer> layers_;   // that the output depends on
};

} // namespace fvlm::model
