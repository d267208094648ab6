// muon.h: Muon's elementwise kernels before and after the Newton-Schulz products, for a batch of matrices of one shape.
#pragma once

#include "newton_schulz.h"
#include "step.h"

namespace fvlm::plugins {

// Newton-Schulz runs in float32 for float32 parameters, otherwise in bfloat16.
inline fvlm_dtype dtype_of_products(const StepTypes& types) {
  return types.copy == sdk::float32 ? sdk::float32 : sdk::bfloat16;
}

// Matrices that have the same shape after padding with zeros to multiples of 8, so that batched products serve all of
// them and rows are aligned to 16 bytes. Passed to kernels by value.
struct MuonBatch {
  static constexpr int max_matrices = 64;
  MatricesShape shape; // padded
  fvlm_optimizer_segment segments[max_matrices];
};

constexpr int muon_parts = 64; // blocks per matrix, and partial sums

// Updates the momentum and writes `update`, [count, rows, cols] in dtype_of_products(types): the matrix to
// orthogonalize, divided by its norm. `squares` has room for muon_parts values per matrix. hyper: lr, momentum,
// nesterov, weight_decay, eps.
void muon_momentum(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                   void* update, double* squares);

// Applies the orthogonalized update to the parameters.
void muon_apply(cudaStream_t stream, const StepTypes& types, const ArenaStep& step, const MuonBatch& batch,
                const void* update);

} // namespace fvlm::plugins
