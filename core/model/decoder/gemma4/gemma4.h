// Gemma 4's decoder: layers as Gemma 3's, with norms of queries, keys and values. The last layers read the keys and
// values of the last layer of their type before them. Each layer ends with what it makes of the row's token, by a table
// of all layers, and of the row as it entered the decoder; and with a factor.
#pragma once
#include "model/decoder/decoder.h"

#include <cmath>

namespace fvlm::model {

class Gemma4 : public Decoder {
 public:
  Gemma4(const DecoderConfig& config, Parameters& parameters, const std::string& part);

  int64_t width() const override { return config_.hidden_size; }
  ops::Weight embedding() const override { return embedding_; }
  ops::Weight head() const override { return head_; }
  double softcap() const override { return config_.final_logit_softcapping; }
  double token_scale() const override { return config_.token_scale(); }
  Value token_rows(Tape& tape, const ops::Sequence& sequence, at::ScalarType dtype) const override;
  Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                const ops::SharedGradientPass& pass, bool compensated, const AddedRows& added) const override;
  KvPages make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t slots) const override;
  at::Tensor forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const override;
  bool can_defer_gradients(int64_t, int64_t) const override { return false; }
  double flops(double rows, double pairs, bool trains, bool inputs) const override;
  double head_flops(double labels, bool trains, bool inputs) const override;

 private:
  struct Layer {
    ops::Operations::Layer in, out; // in: q, k and v as one, or q alone
    ops::Weight up, down;           // up: gate and up as one
    ops::Weight gate, projection;   // of the layer's own rows; undefined where there are none
    ops::Weight attention_norm, attention_post_norm, mlp_norm, mlp_post_norm, own_norm, q_norm, k_norm;
    at::Tensor factor;
    ops::AttentionShape attention; // of heads that are rotated already
    ops::Rotary rotary;
    size_t kv_layer; // whose keys and values it reads
    bool is_read;    // whether a later layer reads its keys and values
  };
  struct KeysAndValues {
    Value k, v; // [rows, kv_heads * head_dim], rotated
  };
  void load_layer(int64_t index, Parameters& parameters, const std::string& stem);
  double table_scale() const { return std::sqrt(static_cast<double>(config_.hidden_size_per_layer_input)); }
  Value normed(Tape& tape, Operations& ops, const Value& x, const ops::Weight& weight) const;
  // The rows that are the layers' own, in columns of each: of the rows that enter, and what the table has for tokens.
  Value own_rows(Tape& tape, Operations& ops, const Value& x, const Value& of_tokens) const;
  Value own_rows_of(Tape& tape, Operations& ops, const Value& all, size_t layer) const;
  Value queries(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv, const at::Tensor& positions) const;
  KeysAndValues keys_and_values(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv,
                                const at::Tensor& positions) const;
  // `attend`: of the rows that the layer's `in` makes. compensation: of x, and then of the result; null: none.
  template <class Attend>
  Value run_layer(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Value& own,
                  at::Tensor* compensation, const Attend& attend) const;

  DecoderConfig config_;
  ops::Weight embedding_, norm_, head_;
  ops::Weight table_, table_projection_, table_norm_; // undefined where layers have no rows of their own
  std::vector<Layer> layers_;
};

} // namespace fvlm::model
