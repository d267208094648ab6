// matmul.h: matrix products by cuBLASLt whose algorithms are chosen beforehand, so that a call only launches.
#pragma once
#include "common/cublaslt.h"

#include <functional>
#include <vector>

namespace fvlm::plugins {

struct MatmulShape : GemmShape {
  bool adds_bias = false; // a vector of the results' dtype to each row of c
};

struct MatmulOperands {
  Matrix a, b, c;
  void* bias = nullptr;
  bool accumulate = false; // c += a b
  Matrix addend{};         // c = addend + a b; it may be c itself
};

class Matmul {
 public:
  Matmul() = default;
  // Asks cuBLASLt's heuristics for algorithms that add partial sums, if any, in float32 in an order of their own, and
  // takes the first. [setup]
  Matmul(const CublasLt& library, const MatmulShape& shape, std::size_t workspace);

  // Whether cuBLASLt has an algorithm, whatever the addresses.
  bool exists() const { return exists_; }

  // Times the candidates on a product of the same kind, which may be smaller, and takes the fastest. Its operands are
  // aligned to 256 bytes and differ from turn to turn, so that they are not in the L2 because they were a moment ago.
  // [setup]
  void measure(const CublasLt& library, const fvlm_call& call, const MatmulShape& shape,
               const std::function<MatmulOperands(int turn)>& operands, sdk::Span<char> workspace);
  // "number 3 of 8 candidates, 31.2 us, the first 33.1 us", of the last measure().
  const char* report() const { return report_; }

  // The same algorithm for a product of another number of rows.
  Matmul with_rows(std::int64_t rows) const {
    Matmul other = *this;
    other.shape_.rows = rows;
    return other;
  }

  // [step thread]
  void run(const CublasLt& library, const fvlm_call& call, const MatmulOperands& operands,
           sdk::Span<char> workspace) const;

 private:
  MatmulShape shape_;
  std::vector<cublasLtMatmulAlgo_t> candidates_; // for operands that are aligned as their rows' lengths allow
  std::size_t chosen_ = 0;
  cublasLtMatmulAlgo_t unaligned_{}; // for any operands
  bool exists_ = false;
  char report_[96] = "not timed";
};

} // namespace fvlm::plugins
