// Decoder: rows in, hidden states out. A decoder knows its own parameters and nothing of the other parts. A family of
// decoders is a folder beside this file and a line in decoders.inc.
#pragma once
#include "model/decoder/kv_pages.h"
#include "model/part.h"
#include "model/weights/model_family.h"
#include "ops/rows.h"

#include <memory>
#include <vector>

namespace fvlm::model {

// What a decoder reads besides its rows. By DeepStack, what is added to some rows behind its first layers; and what its
// layers have in tables of their own for the tokens.
struct AddedRows {
  std::vector<Value> by_layer; // [added rows, width], of each of the first layers
  at::Tensor places;           // int64 [added rows]: the row of each; the number of all rows for padding
  Value of_tokens;             // Decoder::token_rows(); undefined: no row is a token
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual int64_t width() const = 0;
  virtual ops::Weight embedding() const = 0;
  virtual ops::Weight head() const = 0; // the embedding's where they are tied
  // The head's logits z become softcap * tanh(z / softcap); 0: they stay as they are.
  virtual double softcap() const { return 0; }
  // The head's logits are divided by it before that.
  virtual double logits_scaling() const { return 1; }
  // Embeddings of tokens are multiplied by it where they enter; rows of images are not.
  virtual double token_scale() const { return 1; }
  // The rows of text tokens, without a gradient.
  at::Tensor embed(const Operations& ops, const at::Tensor& tokens) const;
  // [rows, columns for all layers] of the tables that layers have of tokens, Gemma 4's for one; undefined: they have
  // none.
  virtual Value token_rows(Tape& tape, const ops::Sequence& sequence, at::ScalarType dtype) const {
    static_cast<void>(tape), static_cast<void>(sequence), static_cast<void>(dtype);
    return {};
  }
  // The rows whose products with the head are the logits: last hidden states, divided by logits_scaling().
  Value head_rows(Tape& tape, const Value& hidden) const;
  // Of the last hidden states [rows, width]: [rows, vocabulary]. float32 or wider where there is a softcap.
  Value logits(Tape& tape, Operations& ops, const Value& hidden) const;
  // [rows, width] -> the last hidden states, after the final norm. compensated: the residual sums use Kahan
  // compensation in 16-bit types, for queries and for passes whose gradients are needed.
  virtual Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                        const ops::SharedGradientPass& pass = {}, bool compensated = false,
                        const AddedRows& added = {}) const = 0;

  // Whether some layer carries a state from row to row. Passes then have PassRows::has_states: they read each row of a
  // sequence once and in order, so that nothing can be taken back, and no sequence reads rows of another.
  virtual bool carries_state() const { return false; }
  // Pages of keys and values of all layers, the padding page among them; and where a state is carried, as many slots,
  // the padding's among them.
  virtual KvPages make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t slots) const = 0;
  // The same for the next rows of sequences whose earlier rows are in `pages`, where theirs are written. In every layer
  // all rows are written before any row attends, so that a row may read what another sequence writes in the same pass.
  // x may have further columns, `width` for each of the first layers, which are added to the rows behind that layer.
  virtual at::Tensor forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const = 0;

  // Whether two passes, one over `rows` rows of `element` bytes a number, can share one product for each weight
  // gradient: see shared_weight_gradients.h.
  virtual bool can_defer_gradients(int64_t rows, int64_t element) const = 0;
  // Floating-point operations of a pass over `rows` rows with `pairs` attention pairs, and of predicting `labels`
  // labels. `trains`, `inputs`: whether weights and rows have gradients.
  virtual double flops(double rows, double pairs, bool trains, bool inputs) const = 0;
  virtual double head_flops(double labels, bool trains, bool inputs) const = 0;

  Recompute recompute;
};

// Its parameters' names begin with the part's: "decoder". Throws Error(data) for an unknown model_type.
std::unique_ptr<Decoder> make_decoder(const DecoderConfig& config, Parameters& parameters, const std::string& part);

// For a program that adds decoders of its own, before it reads the first recipe or model directory.
using MakeDecoder = std::unique_ptr<Decoder> (*)(const DecoderConfig& config, Parameters& parameters,
                                                 const std::string& part);
void register_decoder(DecoderFamily family, MakeDecoder make);

} // namespace fvlm::model
