// The parts of a model: interfaces of vision towers and decoders. A part knows its own parameters and nothing of the
// others. Implementations are registered by their Hugging Face model_type in vlm.cpp.
#pragma once
#include "model/parameters.h"
#include "model/recompute.h"
#include "ops/operations.h"

#include <memory>

namespace fvlm::model {

using ops::Heads;
using ops::Operations;
using ops::Segments;
using ops::Tape;
using ops::Value;

struct AttentionMaps; // vision/attention_maps.h

// The vision tower's keys and values of every frame, by layer. Rows are the tokens of the frames in order.
struct VisualCache {
  struct Layer {
    Heads keys, values;
  };
  // The output linears of a layer's two branches with LayerScale folded into their weights; undefined if it is not.
  struct FoldedLayer {
    Operations::Layer attention, mlp;
  };
  std::vector<Layer> layers;
  Segments tokens, queries;        // one segment for each frame: its tokens, and its one query
  std::vector<FoldedLayer> folded; // of each layer, for the queries
};

// One query for each frame, appended to the frame's tokens, so that it goes through the tower with them. It attends to
// the tokens, and nothing attends to it. Each frame has two key segments: its tokens, and the appended row, whose key
// no row uses.
struct AppendedQueries {
  Segments rows, keys, queries;
};

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  virtual int64_t tokens_per_frame(int64_t height, int64_t image_width) const = 0;
  // Optimizations that do not change the result, see plan::Speed. skip_last_patches: the last layer computes only keys
  // and values, because its patch outputs are unused. fold_layer_scale: folds LayerScale into the preceding weights, if
  // the type can represent such small numbers.
  struct EncodeOptions {
    bool skip_last_patches, fold_layer_scale;
  };
  // frames [n, 3, H, W], normalised. `tokens`: one segment of tokens_per_frame rows for each frame.
  virtual VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                             const Segments& queries, const EncodeOptions& options) const = 0;
  // Passes rows x [n, width] through the layers and the final norm, each attending to the tokens of its frame.
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
  // Whether the tower's parameters are trained.
  virtual bool trains() const = 0;

  Recompute recompute;
};

// Keys and values of one sequence, appended to as it is generated.
struct KvCache {
  std::vector<at::Tensor> layers; // [capacity, 2 * kv_heads * head_dim]: keys, then values
  int64_t length = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual int64_t width() const = 0;
  virtual ops::Weight embedding() const = 0;
  virtual ops::Weight head() const = 0; // the embedding's where they are tied
  // [rows, width] -> the last hidden states, after the final norm. compensated: the residual sums use Kahan
  // compensation, for the few rows that become queries.
  virtual Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                        const ops::SharedGradientPass& pass = {}, bool compensated = false) const = 0;

  virtual KvCache make_kv_cache(Operations& ops, int64_t capacity) const = 0;
  // The same for the next rows of one sequence, which are appended to `cache`.
  virtual at::Tensor forward(Operations& ops, const at::Tensor& x, KvCache& cache) const = 0;

  Recompute recompute;
};

} // namespace fvlm::model
