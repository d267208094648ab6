// What a layer of Qwen3.5 has in place of attention, between its linears: a short convolution over q, k and v, the
// gated delta rule, and a norm that is gated.
#pragma once
#include "model/decoder/kv_pages.h"
#include "model/weights/towers.h"
#include "ops/operations.h"

#include <functional>

namespace fvlm::model {

struct DeltaLayer {
  // `weight`: finds one by its name in the layer.
  DeltaLayer(const DecoderConfig& config, const std::function<ops::Weight(const char*)>& weight);
  // `in`: the product that makes q, k, v and z of each row, side by side; `gates`: that which makes b and a.
  Value mix(Tape& tape, ops::Operations& ops, const Value& in, const Value& gates, const ops::Segments& segments) const;
  // Without a gradient, from the states of the slots on, which become those behind the rows.
  at::Tensor mix(ops::Operations& ops, const at::Tensor& in, const at::Tensor& gates, const StagedRows& rows,
                 const std::vector<at::Tensor>& states) const;
  // What mix() goes on from: the rows that the convolution reads, and the rule's states, of so many slots.
  std::vector<at::Tensor> make_states(int64_t slots, const at::TensorOptions& options) const;

 private:
  // Each head of y normalized, times silu of the columns of `in` behind q, k and v.
  Value gated_norm(Tape& tape, ops::Operations& ops, const Value& y, const Value& in) const;

  ops::DeltaRule rule_;
  ops::ConvolutionTaps taps_;
  ops::Weight norm_;
  int64_t width_; // of q, k and v
  double epsilon_;
};

} // namespace fvlm::model
