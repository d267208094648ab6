// What a layer of Qwen3.5 has in place of attention, between its linears: a short convolution over q, k and v, the
// gated delta rule, and a norm that is gated.
#pragma once
#include "model/decoder/kv_pages.h"
#include "model/weights/towers.h"
#include "ops/gated_delta_rule.h"
#include "ops/operations.h"
#include "ops/short_convolution.h"

#include <functional>
#include <optional>

namespace fvlm::model {

struct DeltaLayer {
  // What all of these layers read of the segments of a pass.
  struct Segments {
    Segments(const ops::Segments& segments, int64_t rows, int64_t taps, const at::TensorOptions& options);
    ops::RowChunks chunks;
    at::Tensor within;
  };
  // The same of sequences that go on.
  struct Runs {
    Runs(const StagedRows& rows, int64_t taps);
    ops::RowChunks chunks;
    ops::CarriedRows carried;
    at::Tensor slots, starts; // int64, bool [sequences]
  };

  // `weight`: finds one by its name in the layer.
  DeltaLayer(const DecoderConfig& config, const std::function<ops::Weight(const char*)>& weight);
  // `in`: the product that makes q, k, v and z of each row, side by side; `gates`: that which makes b and a.
  Value mix(Tape& tape, const Value& in, const Value& gates, const Segments& segments) const;
  // Without a gradient, from the states of the slots on, which become those behind the rows.
  at::Tensor mix(const at::Tensor& in, const at::Tensor& gates, const Runs& runs,
                 const std::vector<at::Tensor>& states) const;
  // What mix() goes on from: the rows that the convolution reads, and the rule's states, of so many slots.
  std::vector<at::Tensor> make_states(int64_t slots, const at::TensorOptions& options) const;

 private:
  ops::DeltaRule rule_;
  ops::ConvolutionTaps taps_;
  ops::Weight norm_;
  int64_t width_; // of q, k and v
  double epsilon_;
};

} // namespace fvlm::model
