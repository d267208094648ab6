// DINOv2: a pre-norm ViT with LayerScale.
#pragma once
#include "model/encoder/encoder.h"
#include "model/encoder/layerwise.h"

#include <map>
#include <utility>

namespace fvlm::model {

class Dinov2 : public Encoder, public LayerwiseEncoder {
 public:
  Dinov2(const VisionConfig& config, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  int64_t layers() const override { return config_.num_hidden_layers; }
  int64_t heads() const override { return config_.num_attention_heads; }
  const LayerwiseEncoder* layerwise() const override { return this; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override;
  // As transformers' last_hidden_state.
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens) const override;
  VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                     const Segments& queries, const EncodeOptions& options) const override;
  Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
               AttentionMaps* maps) const override;
  EncodedAndAttended encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x,
                                       const AppendedQueries& appended, const EncodeOptions& options) const override;
  bool trains() const override { return patch_weight_.requires_grad(); }
  double flops(int64_t tokens, bool trains) const override;
  double encode_flops(int64_t tokens, bool trains) const override;
  double attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const override;

 private:
  struct Norm {
    ops::Weight weight, bias;
  };
  struct Layer {
    Norm before_attention, before_mlp;
    ops::Operations::Layer query, qkv, keys_values, out, up, down;
    ops::Weight attention_scale, mlp_scale;
  };
  // [n * (1 + patches), width]; `appended_rows` [n, width] add one row to each frame.
  Value embed(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& appended_rows = {}) const;
  Value positions(Tape& tape, int64_t rows, int64_t columns) const;
  at::Tensor resampling(int64_t rows, int64_t columns, at::ScalarType type) const;
  Value normed(Tape& tape, Operations& ops, const Value& x, const Norm& norm) const;
  using Folded = std::vector<VisualCache::FoldedLayer>;
  Folded fold(Tape& tape, Operations& ops, const EncodeOptions& options) const;
  Value finish_layer(Tape& tape, Operations& ops, const Layer& layer, const VisualCache::FoldedLayer& folded_layer,
                     const Value& x, const Value& attended_rows,
                     Operations::Compensation* compensation = nullptr) const;
  // Runs layers [0, count) on all rows and returns their keys and values. `appended_compensation`: rounding error of
  // the appended rows, or null if there are none.
  std::vector<VisualCache::Layer> run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                      const Segments& keys, const Folded& folded,
                                      at::Tensor* appended_compensation = nullptr) const;
  VisualCache::Layer keys_values(Tape& tape, Operations& ops, const Layer& layer, const Value& x) const;
  // One layer for the queries alone, one row for each frame.
  struct QueryStream;
  void attend_layer(Tape& tape, Operations& ops, size_t layer, QueryStream& stream, const VisualCache& cache,
                    AttentionMaps* maps) const;
  Value normed(Tape& tape, Operations& ops, QueryStream& stream, const Norm& norm) const;

  VisionConfig config_;
  int64_t head_dim_;
  ops::Weight class_token_, position_, patch_weight_, patch_bias_;
  mutable std::map<std::pair<int64_t, int64_t>, at::Tensor> resampling_; // by rows and columns
  std::vector<Layer> layers_;
  Norm final_;
};

} // namespace fvlm::model
