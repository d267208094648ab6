// Llama and its family: RMSNorm, rotary positions, grouped queries, SwiGLU.
#pragma once
#include "model/decoder/decoder.h"

namespace fvlm::model {

class Llama : public Decoder {
 public:
  Llama(const DecoderConfig& config, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  ops::Weight embedding() const override { return embedding_; }
  ops::Weight head() const override { return head_; }
  Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                const ops::SharedGradientPass& pass, bool compensated) const override;
  KvCache make_kv_cache(Operations& ops, int64_t capacity) const override;
  at::Tensor forward(Operations& ops, const at::Tensor& x, KvCache& cache) const override;
  bool can_defer_gradients(int64_t rows, int64_t element) const override;
  double flops(double rows, double pairs, bool trains, bool inputs) const override;
  double head_flops(double labels, bool trains, bool inputs) const override;

 private:
  struct Layer {
    ops::Weight attention_norm, qkv, out, mlp_norm, gate_up, down;
  };
  struct Stream;
  // Adds the branch to the residual and normalizes the sum.
  Value normed(Tape& tape, Operations& ops, Stream& stream, const ops::Weight& weight,
               const at::Tensor& into = {}) const;
  template <class Attend>
  void run_layer(Tape& tape, Operations& ops, const Layer& layer, Stream& stream, const Attend& attend,
                 const ops::SharedGradientPass& pass = {}) const;

  DecoderConfig config_;
  ops::Weight embedding_, norm_, head_;
  std::vector<Layer> layers_;
};

} // namespace fvlm::model
