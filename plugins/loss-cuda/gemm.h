// gemm.h: matrix products by cuBLASLt whose algorithms are selected beforehand, so that a call only launches.
#pragma once
#include "common/cublaslt.h"

namespace fvlm::plugins {

// The algorithms for a shape: one for operands aligned to 16 bytes, one for all others.
class Gemm {
 public:
  Gemm() = default;
  // Asks cuBLASLt's heuristics. Split-K sums are float32, and run() gets `workspace` bytes. preferred_tile, a
  // cublasLtMatmulTile_t, is chosen if it is among the candidates. Throws if there is no algorithm. [setup]
  Gemm(const CublasLt& library, const GemmShape& shape, std::size_t workspace, int preferred_tile);

  // c = a b, or c += a b. [step thread]
  void run(const CublasLt& library, const fvlm_call& call, const Matrix& a, const Matrix& b, const Matrix& c,
           bool accumulate, void* workspace) const;

 private:
  GemmShape shape_;
  std::size_t workspace_ = 0;
  cublasLtMatmulAlgo_t aligned_{}, any_{};
};

} // namespace fvlm::plugins
