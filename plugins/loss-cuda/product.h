// product.h: matrix products by cuBLASLt whose algorithms are chosen beforehand, so that a call only launches.
#pragma once
#include <fvlm/cuda.hpp>

#include <cublasLt.h>
#include <memory>

namespace fvlm::plugins {

// c [rows, columns] = a [rows, inner] b [inner, columns], all row-major; a and b may be given transposed.
struct ProductShape {
  fvlm_dtype dtype{}, result{}; // of a and b, of c
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool a_transposed = false; // a lies as [inner, rows]
  bool b_transposed = false; // b lies as [columns, inner]
  int favourite_tile = 0;    // a cublasLtMatmulTile_t: taken where it is among cuBLASLt's candidates
};

// A row-major matrix in device memory, with the distance of its rows in elements.
struct Operand {
  void* data = nullptr;
  std::int64_t row = 0;
};

class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  cublasLtHandle_t get() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

// An algorithm for a shape: one for operands whose addresses and rows are multiples of 16 bytes, one for any others.
class Product {
 public:
  Product() = default;
  // Asks cuBLASLt's heuristics; partial sums are added in float32, and run() gets so many bytes of workspace. Throws
  // where there is no algorithm. [setup]
  Product(const CublasLt& library, const ProductShape& shape, std::size_t workspace);

  // c = a b, or c += a b. [step thread]
  void run(const CublasLt& library, const fvlm_call& call, const Operand& a, const Operand& b, const Operand& c,
           bool accumulate, void* workspace) const;

 private:
  ProductShape shape_;
  std::size_t workspace_ = 0;
  cublasLtMatmulAlgo_t aligned_{}, any_{};
};

} // namespace fvlm::plugins
