// muon.h: what Muon does element by element, before and after the products, for matrices of one shape at once.
#pragma once

#include "newton_schulz.h"

#include <cstdint>

namespace fvlm::plugins {

// All in device memory.
struct MuonStep {
  float* master;
  void* copy; // NULL: the model computes with the master
  const void* gradient;
  void* momentum;     // float or BFloat16
  const float* hyper; // lr, momentum, nesterov, weight_decay, eps of each group
  const float* scale;
  const std::int32_t* skip;
};

struct MuonTypes {
  fvlm_dtype gradient, copy, momentum;

  bool operator==(const MuonTypes& o) const {
    return gradient == o.gradient && copy == o.copy && momentum == o.momentum;
  }

  // Newton-Schulz is as exact as the parameters are.
  fvlm_dtype product() const { return copy == sdk::float32 ? sdk::float32 : sdk::bfloat16; }
};

// Matrices that have the same shape once zeros fill them up to multiples of 8: products of these are the same, and
// cuBLASLt's fast algorithms take them. A kernel gets it as an argument.
struct MuonBatch {
  static constexpr int most = 64;
  MatricesShape shape; // filled up
  fvlm_optimizer_segment segments[most];
};

constexpr int muon_parts = 64; // of a matrix: blocks, and partial sums

// Writes the momentum and `update`, [count, rows, cols] in types.product(): what is to be made orthogonal, divided by
// its norm. `squares` has room for muon_parts values a matrix.
void muon_gather(cudaStream_t stream, const MuonTypes& types, const MuonStep& step, const MuonBatch& batch,
                 void* update, double* squares);

// Steps the parameters by what Newton-Schulz made of it.
void muon_apply(cudaStream_t stream, const MuonTypes& types, const MuonStep& step, const MuonBatch& batch,
                const void* update);

} // namespace fvlm::plugins
