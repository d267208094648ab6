// gemm.h: matrix products by cuBLASLt whose algorithms are chosen beforehand, so that a call only launches.
#pragma once
#include "common/cublaslt.h"

namespace fvlm::plugins {

// An algorithm for a shape: one for operands whose addresses and rows are multiples of 16 bytes, one for any others.
class Gemm {
 public:
  Gemm() = default;
  // Asks cuBLASLt's heuristics; partial sums are added in float32, and run() gets so many bytes of workspace. A tile, a
  // cublasLtMatmulTile_t, is taken where it is among the candidates. Throws where there is no algorithm. [setup]
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
