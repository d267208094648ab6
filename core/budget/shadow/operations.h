// ops/operations.h without numbers: what each operation makes, keeps for its backward pass and needs inside.
#pragma once
#include "budget/shadow/tape.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::budget {

// What computes. The plugins that come with the engine need little inside; the plain references hold whole
// intermediate results.
struct Machine {
  int64_t element = 4;           // bytes of an activation and of a parameter
  bool widened_products = false; // 16-bit numbers on a CPU: products are computed in float32, of copies
  bool plain_attention = false, plain_loss = false, plain_kernels = false, plain_optimizer = false; // the reference
  bool takes_guests = false;      // attention without a mask, in its backward
  bool keeps_rests = false;       // a decoder's attention: a byte a number, of what its output lost by rounding
  int64_t packs_of_frames = 1;    // on the device; on a GPU the next one waits there
  bool matrices_together = false; // by Muon, on a GPU
  int64_t row_unit = 1;           // bytes: rows that products read are of as many as are a multiple of these
};

} // namespace fvlm::budget

namespace fvlm::budget::shadow {

struct Weight {
  int64_t rows = 0, columns = 0;
  bool trains = false;
  std::string name = {}; // where it matters which it is
};

struct Heads {
  Value value;
  int64_t column, count;
};

struct Segments {
  int64_t longest; // rows of one
};

// One of two passes that share weights' gradients: see ops/joint.h.
struct SharedGradientPass {
  using Waiting = std::map<std::string, std::vector<Tensor>>; // what the later one leaves, by weight
  std::shared_ptr<Waiting> waiting;                           // null: nothing is shared
  bool later = false;
};

class Operations {
 public:
  Operations(Ledger& ledger, const Machine& machine) : ledger_(ledger), machine_(machine) {}
  Ledger& ledger() const { return ledger_; }
  const Machine& machine() const { return machine_; }
  Tensor tensor(int64_t rows, int64_t columns) const { return make(ledger_, rows, columns, machine_.element); }
  int64_t padded(int64_t columns) const {
    const int64_t at_once = std::max<int64_t>(1, machine_.row_unit / machine_.element);
    return (columns + at_once - 1) / at_once * at_once;
  }
  Tensor wide(int64_t rows, int64_t columns = 1) const { return make(ledger_, rows, columns, 4); }

  Value linear(Tape& tape, const Value& x, const Weight& weight, bool bias_trains = false,
               const SharedGradientPass& pass = {}, const Value& residual = {}) const;
  Value gelu_mlp(Tape& tape, const Value& x, const Weight& up, const Weight& down, const Value& residual = {}) const;
  // So many linears like this. What it gives holds them until the tape has come back here.
  std::shared_ptr<const void> fold_scale(Tape& tape, int64_t count, const Weight& weight) const;
  struct NormOutput {
    Value y, sum;
  };
  NormOutput rmsnorm(Tape& tape, const Value& x, const Value& residual, bool trains) const;
  Value layernorm(Tape& tape, const Value& x, bool trains) const;
  Value swiglu(Tape& tape, const Value& gate_up) const;
  Value layerscale(Tape& tape, const Value& x, bool trains, const Value& residual) const;
  Value attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv, int64_t head_dim,
                  bool rotary, const Value& lent = {}) const;
  Value cross_entropy(Tape& tape, const Value& hidden, const Weight& head) const;
  // The losses, with the gradients made at once.
  Tensor weighted_cross_entropy(Tape& tape, const Value& hidden, const Weight& head) const;

  Value gather_rows(Tape& tape, const Value& x, int64_t rows) const;
  Value embed(Tape& tape, const Weight& table, const Value& visual, int64_t rows) const;
  Value broadcast_row(Tape& tape, const Weight& row, int64_t rows) const;
  Value strided_rows(Tape& tape, const Value& x, int64_t step) const;
  Value slice_columns(Tape& tape, const Value& x, int64_t count) const;
  Value scale(Tape& tape, const Value& x) const;

 private:
  // What a product of [rows, inner] and [inner, columns] needs besides its operands and its result.
  void product(int64_t rows, int64_t inner, int64_t columns, bool into_float32 = false) const;
  void inside(int64_t bytes, bool of_reference) const;
  NormOutput norm(Tape& tape, const Value& x, const Value& residual, bool trains, int64_t statistics) const;
  void logits(int64_t rows, const Weight& head, int64_t copies) const;

  Ledger& ledger_;
  Machine machine_;
};

} // namespace fvlm::budget::shadow
