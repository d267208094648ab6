// matmul.h: matrix products by cuBLASLt whose algorithms are selected beforehand, so that a call only launches.
#pragma once
#include "common/cublaslt.h"

#include <functional>
#include <vector>

namespace fvlm::plugins {

struct MatmulShape : GemmShape {
  bool adds_bias = false; // adds a vector of the result's dtype to each row of c
  // An epilogue with the approximation of GELU with tanh, the only one that cuBLASLt has. value: c = gelu(a b + bias).
  // derivative: c = a b multiplied by GELU's derivative at the pre-activation.
  enum class Gelu { none, value, derivative } gelu = Gelu::none;
  bool has_pre_activation = false; // of the value: it is stored too
};

struct MatmulOperands {
  Matrix a, b, c;
  void* bias = nullptr;
  bool accumulate = false; // c += a b
  Matrix addend{};         // c = addend + a b; may be c itself
  Matrix pre_activation{}; // as c
  // Of e4m3: what each row of a and each column of b is multiplied by.
  const float *a_scales = nullptr, *b_scales = nullptr;
};

struct MatmulAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0; // bytes that it needs
};

// The algorithm of another Matmul, of the same product with another number of rows. Trivially copyable.
struct MatmulChoice {
  MatmulAlgorithm algorithm;
  std::uint64_t exists = 0; // 0: there is none
};

class Matmul {
 public:
  Matmul() = default;
  // Asks cuBLASLt's heuristics for algorithms and selects the first. Split-K algorithms are restricted to float32
  // partial sums with a fixed order. [setup]
  Matmul(const CublasLt& library, const MatmulShape& shape, std::size_t workspace);

  // Whether cuBLASLt has an algorithm for operands of any alignment.
  bool exists() const { return exists_; }
  // Whether it has one for contiguous operands at aligned addresses.
  bool exists_aligned() const { return !candidates_.empty(); }
  // Whether it has a fast one for operands of such an alignment.
  bool takes(const MatmulOperands& operands) const;

  // Times the candidates on a product of the same kind, possibly with fewer rows, and selects the fastest. `operands`
  // returns operands aligned to 256 bytes that differ per repetition, so that they are not in the L2 already. [setup]
  void measure(const CublasLt& library, const fvlm_call& call, const MatmulShape& shape,
               const std::function<MatmulOperands(int repeat)>& operands, sdk::Span<char> workspace);
  // What measure() selected, and its selection in place of a measurement. An algorithm that does not do for this number
  // of rows, or needs more workspace, is ignored. [setup]
  MatmulChoice choice() const;
  void choose(const CublasLt& library, const MatmulChoice& choice, std::size_t workspace);
  // The result of the last measure(), such as "candidate 3 of 8, 31.2 us, the first 33.1 us".
  const char* report() const { return report_; }

  // The same algorithm for another number of rows.
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
  std::vector<MatmulAlgorithm> candidates_; // for contiguous operands at aligned addresses
  std::size_t first_ = 0, chosen_ = 0;      // the heuristics' first, and the selected one
  MatmulAlgorithm unaligned_;               // for operands of any alignment
  bool exists_ = false;
  char report_[96] = "not timed";
};

} // namespace fvlm::plugins
