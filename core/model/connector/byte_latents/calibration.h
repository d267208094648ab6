// The steps of LatentWire's poolers and adapter that are no products with weights: gates, modulation, colour and
// loudness. Elementwise arithmetic is in float32, or in float64 where the rows are.
#pragma once
#include "model/decoder/decoder.h"
#include "model/part.h"

namespace fvlm::model {

// sigmoid(gate) * x + (1 - sigmoid(gate)) * other
Value gated(Tape& tape, const Value& x, const Value& other, const Value& gate);

// x * sigmoid(scale) + shift
Value modulated(Tape& tape, const Value& x, const Value& scale, const Value& shift);

// Each row standardized, with the deviation of n - 1 values, then its columns times gamma plus beta.
Value colored(Tape& tape, const Value& x, const ops::Weight& gamma, const ops::Weight& beta);

// The rows of each frame times `rms` over their own root mean square.
Value calibrated(Tape& tape, const Value& x, int64_t frames, const at::Tensor& rms);

// The root mean square of a decoder's embedding, a scalar. Of a frozen decoder it is computed once, when it is first
// read: the weights have to be loaded by then.
class EmbeddingRms {
 public:
  explicit EmbeddingRms(const Decoder& decoder) : decoder_(decoder) {}
  at::Tensor value() const;

 private:
  const Decoder& decoder_;
  mutable at::Tensor known_;
};

} // namespace fvlm::model
