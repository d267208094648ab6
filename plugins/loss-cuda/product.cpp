#include "product.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int candidates = 8; // of cuBLASLt's heuristics

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Failure(status == CUBLAS_STATUS_NOT_SUPPORTED ? FVLM_ERROR_UNSUPPORTED : FVLM_ERROR_DEVICE, "%s: %s", what,
                cublasLtGetStatusString(status));
}

cudaDataType type_of(fvlm_dtype dtype) {
  return dtype == bfloat16 ? CUDA_R_16BF : dtype == float16 ? CUDA_R_16F : CUDA_R_32F;
}

// The descriptions of one product. cuBLASLt is column-major: c^T = b^T a^T. They live on the stack.
struct Description {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t b{}, a{}, c{};

  Description(const ProductShape& s, int64_t a_row, int64_t b_row, int64_t c_row) {
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, s.b_transposed);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, s.a_transposed);
    layout(b, s.dtype, s.b_transposed ? s.inner : s.columns, s.b_transposed ? s.columns : s.inner, b_row);
    layout(a, s.dtype, s.a_transposed ? s.rows : s.inner, s.a_transposed ? s.inner : s.rows, a_row);
    layout(c, s.result, s.columns, s.rows, c_row);
  }

 private:
  void transpose(cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(&operation, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& made, fvlm_dtype dtype, int64_t rows, int64_t columns, int64_t ld) {
    check(cublasLtMatrixLayoutInit(&made, type_of(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   std::max(ld, rows)),
          "cublasLtMatrixLayoutInit");
  }
};

// The rows' lengths as they lie in memory.
struct Rows {
  int64_t a, b, c;
};

Rows rows_of(const ProductShape& s) {
  return {s.a_transposed ? s.rows : s.inner, s.b_transposed ? s.inner : s.columns, s.columns};
}

int tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  int tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
  return tile;
}

cublasLtMatmulAlgo_t choose(const CublasLt& library, const ProductShape& s, std::size_t workspace, bool aligned) {
  const auto whole = [&](int64_t length, fvlm_dtype dtype) {
    const int64_t unit = 16 / static_cast<int64_t>(bytes_of(dtype));
    return aligned ? (length + unit - 1) / unit * unit : length / unit * unit + unit + 1;
  };
  const Rows rows = rows_of(s);
  Description d(s, whole(rows.a, s.dtype), whole(rows.b, s.dtype), whole(rows.c, s.result));
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const auto alignment = [&](fvlm_dtype dtype) { return static_cast<uint32_t>(aligned ? 16 : bytes_of(dtype)); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(s.dtype));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(s.dtype));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(s.result));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(s.result));
  cublasLtMatmulHeuristicResult_t found[candidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.get(), &d.operation, &d.b, &d.a, &d.c, &d.c,
                                                               &preference, candidates, found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for %s %lld x %lld x %lld: %s", name_of(s.dtype),
                  static_cast<long long>(s.rows), static_cast<long long>(s.columns), static_cast<long long>(s.inner),
                  cublasLtGetStatusString(status));
  const auto* chosen = std::find_if(found, found + count, [&](const cublasLtMatmulHeuristicResult_t& result) {
    return tile_of(result.algo) == s.favourite_tile;
  });
  return (chosen == found + count ? found : chosen)->algo;
}

} // namespace

CublasLt::CublasLt() {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
}
CublasLt::~CublasLt() {
  (void)cublasLtDestroy(handle_);
}

Product::Product(const CublasLt& library, const ProductShape& shape, std::size_t workspace)
    : shape_(shape), workspace_(workspace), aligned_(choose(library, shape, workspace, true)),
      any_(choose(library, shape, workspace, false)) {}

void Product::run(const CublasLt& library, const fvlm_call& call, const Operand& a, const Operand& b, const Operand& c,
                  bool accumulate, void* workspace) const {
  Description d(shape_, a.row, b.row, c.row);
  const auto is_aligned = [](const Operand& operand, fvlm_dtype dtype) {
    return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
           operand.row * static_cast<int64_t>(bytes_of(dtype)) % 16 == 0;
  };
  const bool aligned = is_aligned(a, shape_.dtype) && is_aligned(b, shape_.dtype) && is_aligned(c, shape_.result);
  const float one = 1, beta = accumulate ? 1 : 0;
  check(cublasLtMatmul(library.get(), &d.operation, &one, b.data, &d.b, a.data, &d.a, &beta, c.data, &d.c, c.data, &d.c,
                       aligned ? &aligned_ : &any_, workspace_ ? workspace : nullptr, workspace_, stream_of(call)),
        "cublasLtMatmul");
}

} // namespace fvlm::plugins
