// Llama and its family: RMSNorm, rotary positions, grouped queries, a gated MLP, and the traits of DecoderConfig in
// which the family's members differ.
#pragma once
#include "model/decoder/decoder.h"
#include "model/decoder/llama/delta_layer.h"
#include "model/decoder/llama/expert_layer.h"
#include "ops/feature_rotation.h"
#include "ops/short_convolution.h"

#include <optional>

namespace fvlm::model {

class Llama : public Decoder {
 public:
  Llama(const DecoderConfig& config, Parameters& parameters, const std::string& part);

  int64_t width() const override { return config_.hidden_size; }
  ops::Weight embedding() const override { return embedding_; }
  ops::Weight head() const override { return head_; }
  double softcap() const override { return config_.final_logit_softcapping; }
  double logits_scaling() const override { return config_.logits_scaling; }
  double token_scale() const override { return config_.token_scale(); }
  Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                const ops::SharedGradientPass& pass, bool compensated, const AddedRows& added) const override;
  bool carries_state() const override { return config_.delta_rules() > 0; }
  KvPages make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t slots) const override;
  at::Tensor forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const override;
  bool can_defer_gradients(int64_t rows, int64_t element) const override;
  double flops(double rows, double pairs, bool trains, bool inputs) const override;
  double head_flops(double labels, bool trains, bool inputs) const override;

 private:
  // Undefined where the family has none: biases, weights of norms.
  struct Layer {
    ops::Operations::Layer in, out;     // in: q, k and v as one, or what the convolution reads
    ops::ConvolutionTaps taps;          // of a layer with a convolution in place of attention
    std::optional<DeltaLayer> delta;    // of one with a delta rule
    ops::Operations::Layer gates;       // what the rule reads besides, or what makes the gates of heads
    ops::Operations::Layer up, down;    // up: gate and up as one where the MLP is gated
    std::optional<ExpertLayer> experts; // in place of these
    ops::Weight attention_norm, mlp_norm, attention_post_norm, mlp_post_norm, q_norm, k_norm;
    ops::AttentionShape attention;
    bool convolves() const { return taps.weight.defined(); }
  };
  struct Stream;
  // What a branch reads: the sum of the residual and of the branch before it, with pre_norms normalized. And what it
  // adds to the residual, with post_norms normalized.
  Value branch_input(Tape& tape, Operations& ops, Stream& stream, const ops::Weight& norm,
                     const at::Tensor& into) const;
  Value branch_output(Tape& tape, Operations& ops, Value rows, const ops::Weight& norm) const;
  // By which a norm with this weight multiplies.
  ops::Weight factor_of(const ops::Weight& norm) const {
    return config_.unit_offset && norm.defined() ? norm.plus_one() : norm;
  }
  // Adds the branch to the residual and normalizes the sum.
  Value normed(Tape& tape, Operations& ops, Stream& stream, const ops::Weight& weight,
               const at::Tensor& into = {}) const;
  // The columns of q, k and v, or normalized copies of q and k.
  struct QueryKeyValue {
    ops::Heads q, k, v;
    Value adjacent(int64_t head_dim) const; // in one value, as append_and_attend() reads them; without a gradient
  };
  // With the gates of what attention makes, where it has some, which it is then multiplied by. `gates`: those that no
  // rows of q hold, if any.
  struct GatedRows {
    Value rows, gates;
  };
  GatedRows without_gates(Tape& tape, const Value& qkv, const Value& gates) const;
  static Value gated(Tape& tape, const Value& attended, const Value& gates);
  // [rows, 1] by which the queries of rows are multiplied, all of whose positions are below `bound`; undefined where
  // they all stay as they are.
  at::Tensor query_factors(const at::Tensor& positions, int64_t bound, const at::TensorOptions& options) const;
  Value scaled_queries(Tape& tape, const Value& qkv, const at::Tensor& factors) const;
  // Of queries and keys that are rotated before their norms; undefined elsewhere.
  ops::FeatureAngles angles_at(const at::Tensor& positions, const at::TensorOptions& options) const;
  QueryKeyValue heads_of(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv,
                         const ops::FeatureAngles& angles) const;
  bool has_swiglu() const { return config_.gated_mlp && !config_.gelu_gate; }
  // The MLP's activation where it is another one.
  Value activated(Tape& tape, Operations& ops, const Value& up) const;
  Value mlp(Tape& tape, Operations& ops, const Layer& layer, Value x, const ops::SharedGradientPass& pass) const;
  // `mix`: what a layer has between its linears `in` and `out`, of the rows that `in` and `gates` make, with memory for
  // the result or none.
  template <class Mix>
  void run_layer(Tape& tape, Operations& ops, const Layer& layer, Stream& stream, const Mix& mix,
                 const ops::SharedGradientPass& pass = {}) const;

  // The rows that enter the first layer, and those that are added behind one, as the residual has them. The residual is
  // held divided by residual_multiplier, so that what branches add needs no factor. Norms take any factor out again, by
  // an epsilon that is divided by its square.
  Value entry(Tape& tape, Operations& ops, const Value& x) const;
  Value as_residual(Tape& tape, const Value& added) const;

  DecoderConfig config_;
  double residual_epsilon_; // of norms of the residual
  ops::Weight embedding_, norm_, head_;
  at::Tensor feature_frequencies_; // see ops::feature_angles(); undefined unless config_.norms_rotated
  std::vector<Layer> layers_;
};

} // namespace fvlm::model
