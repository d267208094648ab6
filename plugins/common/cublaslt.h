// cublaslt.h: what the plugins on cuBLASLt share: the handle, error checks, and the descriptors of a product.
#pragma once
#include <fvlm/cuda.hpp>

#include <algorithm>
#include <cublasLt.h>

namespace fvlm::plugins {

inline void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw sdk::Failure(status == CUBLAS_STATUS_NOT_SUPPORTED ? FVLM_ERROR_UNSUPPORTED : FVLM_ERROR_DEVICE, "%s: %s", what,
                     cublasLtGetStatusString(status));
}

class CublasLt {
 public:
  CublasLt() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate"); }
  ~CublasLt() { (void)cublasLtDestroy(handle_); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  cublasLtHandle_t get() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

// e4m3 has no code in the ABI, whose tensors never hold it.
inline constexpr fvlm_dtype e4m3{FVLM_FLOAT, 8, 1};

// c [rows, columns] = a [rows, inner] b [inner, columns], all row-major; a and b may be stored transposed.
struct GemmShape {
  fvlm_dtype dtype{}, result{}; // of a and b; of c
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool a_transposed = false; // a is stored as [inner, rows]
  bool b_transposed = false; // b is stored as [columns, inner]
};

// A row-major matrix in device memory; the row stride counts elements.
struct Matrix {
  void* data = nullptr;
  std::int64_t row_stride = 0;
};

// The cuBLASLt descriptors of a product, on the stack. cuBLASLt is column-major, so it computes c^T = b^T a^T.
struct GemmDescriptor {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t b{}, a{}, c{};

  GemmDescriptor(const GemmShape& s, std::int64_t a_row, std::int64_t b_row, std::int64_t c_row) {
    check_cublas(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    layout(b, s.dtype, s.b_transposed ? s.inner : s.columns, s.b_transposed ? s.columns : s.inner, b_row);
    layout(a, s.dtype, s.a_transposed ? s.rows : s.inner, s.a_transposed ? s.inner : s.rows, a_row);
    layout(c, s.result, s.columns, s.rows, c_row);
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t which, const Value& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation, which, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  }

 private:
  static void layout(cublasLtMatrixLayoutOpaque_t& made, fvlm_dtype dtype, std::int64_t rows, std::int64_t columns,
                     std::int64_t ld) {
    const cudaDataType type = dtype.bits == 8          ? CUDA_R_8F_E4M3
                              : dtype == sdk::bfloat16 ? CUDA_R_16BF
                              : dtype == sdk::float16  ? CUDA_R_16F
                                                       : CUDA_R_32F;
    check_cublas(cublasLtMatrixLayoutInit(&made, type, static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), std::max(ld, rows)),
                 "cublasLtMatrixLayoutInit");
  }
};

// Limits for the heuristics: workspace, and alignment of the operands, in bytes. Split-K sums are restricted to the
// compute type.
inline cublasLtMatmulPreferenceOpaque_t gemm_preference(std::uint64_t workspace, std::int64_t a, std::int64_t b,
                                                        std::int64_t c) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(c));
  return preference;
}

} // namespace fvlm::plugins
