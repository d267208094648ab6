// LayerwiseEncoder: an encoder whose layers can be attended to one by one, by queries that are not among its tokens.
#pragma once
#include "model/part.h"

#include <vector>

namespace fvlm::model {

struct AttentionMaps; // encoder/attention_maps.h

// Frames that several queries attend to, each as often as it is repeated: see Pack::frame_source.
struct SharedFrames {
  at::Tensor source; // of each query; undefined: each has a frame of its own
  int64_t count = 0; // of frames
};

// The encoder's keys and values of every frame, by layer. Rows are the tokens of the frames in order.
struct VisualCache {
  struct Layer {
    Heads keys, values;
  };
  // The output linears of a layer's two branches with LayerScale folded into their weights; undefined if it is not.
  struct FoldedLayer {
    Operations::Layer attention, mlp;
  };
  std::vector<Layer> layers;
  Segments tokens, queries;        // one segment for each frame: its tokens, and its query, or those that share it
  std::vector<FoldedLayer> folded; // of each layer, for the queries
  SharedFrames shared = {};
};

// One query for each frame, appended to the frame's tokens, so that it goes through the encoder with them. It attends
// to the tokens, and nothing attends to it. Each frame has two key segments: its tokens, and the appended row, whose
// key no row uses.
struct AppendedQueries {
  Segments rows, keys, queries;
};

class LayerwiseEncoder {
 public:
  virtual ~LayerwiseEncoder() = default;
  virtual int64_t layers() const = 0;
  virtual int64_t heads() const = 0;
  // Optimizations that do not change the result, see plan::Speed. skip_last_patches: the last layer computes only keys
  // and values, because its patch outputs are unused. fold_layer_scale: folds LayerScale into the preceding weights, if
  // the type can represent such small numbers.
  struct EncodeOptions {
    bool skip_last_patches, fold_layer_scale;
  };
  // frames [n, 3, H, W], normalised. `tokens`: one segment of tokens_per_frame rows for each frame.
  virtual VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                             const Segments& queries, const EncodeOptions& options) const = 0;
  // Passes rows x [queries, width] through the layers and the final norm, each attending to the tokens of its frame.
  // `shallow` uses only the last layer. `maps`, if given, receives the attention maps.
  virtual Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
                       AttentionMaps* maps = nullptr) const = 0;
  // encode() and attend() at once: `x` is appended to the frames' tokens.
  struct EncodedAndAttended {
    VisualCache cache;
    Value attended;
  };
  virtual EncodedAndAttended encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x,
                                               const AppendedQueries& appended, const EncodeOptions& options) const = 0;
  // Floating-point operations of encode() for one frame of `tokens` tokens, with its backward pass if it trains, and of
  // attend() for the query of one frame; `inputs`: the query has a gradient.
  virtual double encode_flops(int64_t tokens, bool trains) const = 0;
  virtual double attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const = 0;
};

} // namespace fvlm::model
