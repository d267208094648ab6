// newton_schulz.h: Muon's five Newton-Schulz steps, which make matrices nearly orthogonal, as strided batched cuBLASLt
// products.
#pragma once
#include "common/cublaslt.h"

namespace fvlm::plugins {

// `count` matrices of one shape.
struct MatricesShape {
  fvlm_dtype dtype{};
  std::int64_t rows = 0, cols = 0; // multiples of 8
  int count = 0;

  std::int64_t small() const { return std::min(rows, cols); }
};

// Buffers in which the matrices are contiguous.
struct NewtonSchulzSpace {
  void *x = nullptr, *other = nullptr;         // [count, rows, cols]
  void *gram = nullptr, *polynomial = nullptr; // [count, small, small]
  void* workspace = nullptr;                   // of the products
};

// c = alpha a b + beta addend for a batch; the addend has c's shape.
class BatchedProduct {
 public:
  static constexpr std::int64_t workspace = std::int64_t{4} << 20; // bytes that run() needs

  BatchedProduct(const CublasLt& library, const GemmShape& shape, int count);
  void run(const CublasLt& library, cudaStream_t stream, float alpha, const void* a, const void* b, float beta,
           const void* addend, void* c, void* workspace_data) const;

 private:
  GemmDescriptor description_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// The steps for one shape. Algorithms are selected beforehand, so that a call only launches.
class NewtonSchulz {
 public:
  NewtonSchulz(const CublasLt& library, const MatricesShape& shape);

  // Returns the buffer that holds the result: x or other. [step thread]
  void* run(const CublasLt& library, cudaStream_t stream, NewtonSchulzSpace space) const;

 private:
  bool tall_; // then the polynomial is of x^T x and is applied from the right, so that nothing is transposed
  BatchedProduct gram_, square_, update_;
};

} // namespace fvlm::plugins
