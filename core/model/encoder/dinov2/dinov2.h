// DINOv2: a pre-norm ViT with LayerScale.
#pragma once
#include "model/encoder/encoder.h"
#include "model/encoder/vit_layer.h"

#include <vector>

namespace fvlm::model {

class Dinov2 : public Encoder, public LayerwiseEncoder {
 public:
  Dinov2(const VisionConfig& config, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  int64_t layers() const override { return config_.num_hidden_layers; }
  int64_t heads() const override { return config_.num_attention_heads; }
  const LayerwiseEncoder* layerwise() const override { return this; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return embedding_.tokens(height, image_width);
  }
  // As transformers' last_hidden_state.
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                const PackMaps& maps) const override;
  VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                     const Segments& queries, const EncodeOptions& options) const override;
  Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
               AttentionMaps* maps) const override;
  EncodedAndAttended encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x,
                                       const AppendedQueries& appended, const EncodeOptions& options) const override;
  bool trains() const override { return embedding_.requires_grad(); }
  double flops(int64_t tokens, bool trains) const override;
  double encode_flops(int64_t tokens, bool trains) const override;
  double attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const override;

 private:
  using Folded = std::vector<VisualCache::FoldedLayer>;
  Folded fold(Tape& tape, Operations& ops, const EncodeOptions& options) const;
  // Runs layers [0, count) on all rows and returns their keys and values. `appended_compensation`: rounding error of
  // the appended rows, or null if there are none.
  std::vector<VisualCache::Layer> run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                      const Segments& keys, const Folded& folded,
                                      at::Tensor* appended_compensation = nullptr) const;
  VisualCache::Layer keys_values(Tape& tape, Operations& ops, const VitLayer& layer, const Value& x) const;
  // One layer for the queries alone, one row for each frame.
  struct QueryStream;
  void attend_layer(Tape& tape, Operations& ops, size_t layer, QueryStream& stream, const VisualCache& cache,
                    AttentionMaps* maps) const;
  Value normed(Tape& tape, Operations& ops, QueryStream& stream, const VitNorm& norm) const;

  VisionConfig config_;
  int64_t head_dim_;
  VitEmbedding embedding_;
  std::vector<VitLayer> layers_;
  VitNorm final_;
};

} // namespace fvlm::model
