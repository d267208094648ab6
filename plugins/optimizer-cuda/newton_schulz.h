// newton_schulz.h: the five steps that make matrices nearly orthogonal, by cuBLASLt's products of many at once.
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

// They lie one after the other.
struct NewtonSchulzSpace {
  void *x = nullptr, *other = nullptr;         // [count, rows, cols]
  void *gram = nullptr, *polynomial = nullptr; // [count, small, small]
  void* workspace = nullptr;                   // of the products
};

// c = alpha a b + beta addend, for many matrices; the addend has c's shape.
class BatchedProduct {
 public:
  static constexpr std::int64_t workspace = std::int64_t{4} << 20; // bytes that run() gets

  BatchedProduct(const CublasLt& library, const GemmShape& shape, int count);
  void run(const CublasLt& library, cudaStream_t stream, float alpha, const void* a, const void* b, float beta,
           const void* addend, void* c, void* workspace_data) const;

 private:
  GemmDescriptor description_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// The steps for a shape. Algorithms are chosen beforehand, so that a call only launches.
class NewtonSchulz {
 public:
  NewtonSchulz(const CublasLt& library, const MatricesShape& shape);

  // Returns where the result lies: in x or in other. [step thread]
  void* run(const CublasLt& library, cudaStream_t stream, NewtonSchulzSpace space) const;

 private:
  bool tall_; // taken from the other side instead of being transposed: x p, with p of x^T x
  BatchedProduct gram_, square_, update_;
};

} // namespace fvlm::plugins
