// What pre-norm vision transformers have in common: frames cut into embedded patches with learned positions, and the
// layer. An encoder is made of these: dinov2/, and by vit.h clip/, siglip/, internvl/ and ovis2_vision/.
#pragma once
#include "model/encoder/layerwise.h"
#include "model/flops.h"
#include "model/weights/towers.h"

#include <map>
#include <string>
#include <utility>

namespace fvlm::model {

// The form of GELU that the config names.
ops::Gelu gelu_of(const VisionConfig& config);

// LayerNorm; without a bias, RMSNorm.
struct VitNorm {
  ops::Weight weight, bias;
  double epsilon;
  Value operator()(Tape& tape, Operations& ops, const Value& x) const {
    if (!bias.defined()) return ops.rmsnorm(tape, x, {}, weight, epsilon).y;
    return ops.layernorm(tape, x, weight, bias, epsilon);
  }
};

// Cuts frames into patches, one for each row: [n * rows * columns, 3 * patch * patch], zero-padded to `width` columns.
// `times`: how often a row has each channel, as a convolution over time reads a still image; or how many frames, which
// are then [n, times, 3, H, W].
at::Tensor patches_of(const at::Tensor& frames, int64_t patch, at::ScalarType type, int64_t width, int64_t times = 1);

class VitEmbedding {
 public:
  struct Names {
    const char* class_token; // null: there is none
    const char *position, *patch;
    bool patch_bias;
    const char* patch_norm = nullptr; // RMSNorm of embedded patches, before positions are added; null: there is none
  };
  VitEmbedding(const VisionConfig& config, const Names& names, Parameters& parameters);

  // Rows of a frame: the class token, if there is one, the registers, and the patches.
  int64_t tokens(int64_t height, int64_t image_width) const;
  // [n * tokens, width] of frames [n, 3, H, W]; `appended_rows` [n, width] add one row to each frame.
  Value operator()(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& appended_rows = {}) const;
  bool requires_grad() const { return patch_weight_.requires_grad(); }

 private:
  // [class token and patches, width]: the position embedding, resampled if the frames have another grid than in
  // training.
  Value positions(Tape& tape, int64_t rows, int64_t columns) const;
  at::Tensor resampling(int64_t rows, int64_t columns, at::ScalarType type) const;

  VisionConfig config_;
  ops::Weight class_token_, registers_, position_, patch_weight_, patch_bias_;
  VitNorm patch_norm_;                 // an undefined weight: there is none
  int64_t class_rows_, patches_begin_; // of a frame's rows; registers are between them
  mutable std::map<std::pair<int64_t, int64_t>, at::Tensor> resampling_; // by rows and columns
};

struct VitLayer {
  // Of Hugging Face, behind the layer's own prefix; the scales (LayerScale) are null where there are none.
  struct Names {
    const char *before_attention, *query, *key, *value, *out, *before_mlp, *up, *down;
    const char *attention_scale, *mlp_scale;
    const char *query_norm, *key_norm; // where the config has use_qk_norm
    const char* gate =
        nullptr; // of an MLP that SiLU gates, in a layer whose linears have no biases; null: GELU is between
  };
  // `prefix`: "vision.encoder.layers.0."
  VitLayer(const VisionConfig& config, const std::string& prefix, const Names& names, Parameters& parameters);

  // The columns of queries, keys and values of the normalized rows.
  Value queries_keys_values(Tape& tape, Operations& ops, const Value& x) const;
  // Self-attention of the rows of each segment, before the output linear.
  Value attend(Tape& tape, Operations& ops, const Value& x, const Segments& segments) const;
  // The rest of the layer after its attention: both branches, scaled and added to x. `folded`: the output linears with
  // LayerScale in their weights, or undefined ones.
  Value finish(Tape& tape, Operations& ops, const Value& x, const Value& attended_rows,
               const VisualCache::FoldedLayer& folded = {}, Operations::Compensation* compensation = nullptr) const;

  VitNorm before_attention, before_mlp;
  ops::Operations::Layer query, qkv, keys_values, out, up, down;
  ops::Weight attention_scale, mlp_scale, query_norm, key_norm;
  int64_t heads, head_dim;
  bool is_gated; // `up` is gate and up then
  ops::Gelu activation;
};

// Of one row: query and output of attention, and both products of the MLP.
ForwardFlops vit_layer_flops(const VisionConfig& config);
// A frame of `tokens` rows, `patches` of which are embedded from pixels without a gradient, through `layers` whole
// layers; keys and values are computed in `with_keys` of them.
double vit_frame_flops(const VisionConfig& config, int64_t tokens, int64_t patches, int64_t layers, int64_t with_keys,
                       bool trains);

} // namespace fvlm::model
