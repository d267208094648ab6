// muon.h: what Muon does element by element, before and after the products, for matrices of one shape at once.
#pragma once

#include "newton_schulz.h"
#include "step.h"

namespace fvlm::plugins {

// Newton-Schulz is as exact as the parameters are.
inline fvlm_dtype dtype_of_products(const StepTypes& types) {
  return types.copy == sdk::float32 ? sdk::float32 : sdk::bfloat16;
}

// Matrices that have the same shape once zeros fill them up to multiples of 8, so that one product serves them all and
// rows begin at multiples of 16 bytes. A kernel gets it as an argument.
struct MuonBatch {
  static constexpr int max_matrices = 64;
  MatricesShape shape; // filled up
  fvlm_optimizer_segment segments[max_matrices];
};

constexpr int muon_parts = 64; // of a matrix: blocks, and partial sums

// Writes the momentum and `update`, [count, rows, cols] in dtype_of_products(types): what is to be made orthogonal,
// divided by its norm. `squares` has room for muon_parts values a matrix. hyper: lr, momentum, nesterov, weight_decay,
// eps.
void muon_momentum(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                   void* update, double* squares);

// Steps the parameters by what Newton-Schulz made of it.
void muon_apply(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                const void* update);

} // namespace fvlm::plugins
