// DINOv2: a pre-norm ViT with LayerScale.
#pragma once
#include "model/parts.h"
#include "model/weights/towers.h"

#include <map>
#include <utility>

namespace fvlm::model {

class Dinov2 : public VisionTower {
 public:
  Dinov2(const VisionConfig& config, Parameters& parameters);

  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override;
  VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                     const Segments& readers, const Savings& savings) const override;
  Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
               AttentionMaps* maps) const override;
  Read encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x, const Riding& riding,
                         const Savings& savings) const override;
  bool trains() const override { return patch_weight_.trains(); }

  // The hidden states of every token after the final norm, as transformers gives them: for comparison.
  Value last_hidden(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens) const;

 private:
  struct Norm {
    ops::Weight weight, bias;
  };
  struct Layer {
    Norm before_attention, before_mlp;
    ops::Operations::Layer query, qkv, keys_values, out, up, down;
    ops::Weight attention_scale, mlp_scale;
  };
  // [n * (1 + patches), width]; with riders [n, width] a row more a frame.
  Value embed(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& riders = {}) const;
  Value positions(Tape& tape, int64_t rows, int64_t columns) const;
  at::Tensor resampling(int64_t rows, int64_t columns, at::ScalarType type) const;
  Value normed(Tape& tape, Operations& ops, const Value& x, const Norm& norm) const;
  using Folded = std::vector<VisualCache::Ends>;
  Folded fold(Tape& tape, Operations& ops, const Savings& savings) const;
  Value finish_layer(Tape& tape, Operations& ops, const Layer& layer, const VisualCache::Ends& ends, const Value& x,
                     const Value& read, Operations::Carried* riders = nullptr) const;
  // Through layers [0, count) in full. Their keys and values. rest_of_riders: what the rows that ride lost by rounding,
  // or NULL where none ride.
  std::vector<VisualCache::Layer> run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                      const Segments& keys, const Folded& folded,
                                      at::Tensor* rest_of_riders = nullptr) const;
  VisualCache::Layer keys_values(Tape& tape, Operations& ops, const Layer& layer, const Value& x) const;
  // A row for each frame through one layer.
  struct Reader;
  void read(Tape& tape, Operations& ops, size_t layer, Reader& reader, const VisualCache& cache,
            AttentionMaps* maps) const;
  Value normed(Tape& tape, Operations& ops, Reader& reader, const Norm& norm) const;

  VisionConfig config_;
  int64_t head_dim_;
  ops::Weight class_token_, position_, patch_weight_, patch_bias_;
  mutable std::map<std::pair<int64_t, int64_t>, at::Tensor> resampling_; // by rows and columns
  std::vector<Layer> layers_;
  Norm final_;
};

} // namespace fvlm::model
