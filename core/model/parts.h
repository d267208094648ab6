// What a model is put together from. A tower or decoder knows its own parameters and operations and nothing of the
// others; each stands in one table by its Hugging Face model_type.
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

// Keys and values of every frame, a layer each: rows are the tokens of one frame after the other.
struct VisualCache {
  struct Layer {
    Heads keys, values;
  };
  // The linears that a layer's branches end in, with the scale behind them folded in, or nothing.
  struct Ends {
    Operations::Layer attention, mlp;
  };
  std::vector<Layer> layers;
  Segments tokens, readers; // a segment a frame: what is read, and one row that reads it
  std::vector<Ends> folded; // of each layer, for those who read
};

// Rows that go through the tower with the patches, one behind those of its frame: a frame's rows ask the keys of its
// patches, which do not see it. Two segments a frame: the second has the key of the row that rides, and nobody asks.
struct Riding {
  Segments rows, keys, readers;
};

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  virtual int64_t tokens_per_frame(int64_t height, int64_t image_width) const = 0;
  // What may be saved, see plan::Speed. skip_last_patches: the last layer makes keys and values alone, as nobody reads
  // its patches. fold_layer_scale: scales go into the weights before them, where the type holds such small numbers.
  struct Savings {
    bool skip_last_patches, fold_layer_scale;
  };
  // frames [n, 3, H, W], normalised. `tokens`: a segment a frame, of tokens_per_frame rows.
  virtual VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                             const Segments& readers, const Savings& savings) const = 0;
  // Rows x [n, width] go through the layers, each reading its frame. Final norm included. `maps`, where it is given, is
  // filled; nothing else changes by it.
  virtual Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
                       AttentionMaps* maps = nullptr) const = 0;
  // Both at once: `x` rides through the layers while keys and values are computed.
  struct Read {
    VisualCache cache;
    Value seen;
  };
  virtual Read encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x,
                                 const Riding& riding, const Savings& savings) const = 0;
  // Whether its own parameters learn.
  virtual bool trains() const = 0;

  Recompute recompute;
};

// Keys and values of one growing sequence, for inference.
struct DecoderMemory {
  std::vector<at::Tensor> layers; // [capacity, 2 * kv_heads * head_dim]: keys, then values
  int64_t length = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual int64_t width() const = 0;
  virtual ops::Weight embedding() const = 0;
  virtual ops::Weight head() const = 0; // the embedding's where they are tied
  // [rows, width] -> the last hidden states, after the final norm. keeps_rest: what the sums of layers lose by rounding
  // is carried along, for few rows on which much depends.
  virtual Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                        const ops::JointPass& pass = {}, bool keeps_rest = false) const = 0;

  virtual DecoderMemory remember(Operations& ops, int64_t capacity) const = 0;
  // The same for the next rows of one sequence, after those that memory holds.
  virtual at::Tensor forward(Operations& ops, const at::Tensor& x, DecoderMemory& memory) const = 0;

  Recompute recompute;
};

} // namespace fvlm::model
