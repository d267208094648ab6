// A feed-forward layer that is a mixture of experts: a router gives each row to a few of them, and what they make of it
// is summed with the router's weights. Rows are sorted by expert, so that each product reads rows that lie together.
// Which rows an expert has is known on the device alone: on a GPU nothing of it is read back and no shape depends on
// it, so that passes can be captured.
#pragma once
#include "ops/operations.h"

namespace fvlm::ops {

// How a router's logits become weights.
struct Routing {
  int64_t chosen = 0;      // experts of each row
  bool sigmoid = false;    // scores are sigmoids of logits, in place of a softmax over all of them
  bool normalized = false; // the scores of a row's experts are divided by their sum
  double epsilon = 0;      // added to that sum
  double scale = 1;        // of the weights
  Weight bias;             // [experts], added to scores for the choice alone; undefined: none. It has no gradient
};

// The experts of each row, int64 [rows, chosen], and their weights [rows, chosen], of the logits' type.
struct Routed {
  at::Tensor experts;
  Value weights;
};
Routed route(Tape& tape, const Value& logits, const Routing& routing);

// Matrices of all experts, one below the other.
struct ExpertWeights {
  int64_t count = 0;
  Weight gate_up; // of each expert the rows of its gate, then those of up: [experts * 2 * inner, width]
  Weight down;    // [experts * width, inner]
};

// How products by expert are computed.
enum class ExpertProducts {
  loop,    // one by one, of the experts that have rows: on a CPU
  grouped, // by one kernel for all: bfloat16 on GPUs of compute capability 9 and 10
  blocks   // as a batch of products of blocks of rows, with a copy of an expert's weights for each block: other GPUs
};
// What computes them for rows and weights of this type and of these sizes.
ExpertProducts expert_products(at::Device device, at::ScalarType type, int64_t experts, int64_t width, int64_t inner);

// The mixture of the experts to which a router with these logits gives the rows. In a pass without a tape a plugin
// computes all of it where it can, of few rows; else it is route() and mix_experts().
Value mixture(Tape& tape, Operations& ops, const Value& x, const Value& logits, const Routing& routing,
              const ExpertWeights& experts, ExpertProducts products);

// sum_k weights[., k] down(silu(gate x) * up x) of each row's experts.
Value mix_experts(Tape& tape, Operations& ops, const Value& x, const Routed& routed, const ExpertWeights& experts,
                  ExpertProducts products);

} // namespace fvlm::ops
