// gemm.cpp: selection and launch of cuBLASLt algorithms, with a preference for a tile size.
#include "gemm.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int candidates = 8; // requested from cuBLASLt's heuristics

// Row strides of contiguous operands.
struct Rows {
  int64_t a, b, c;
};

Rows rows_of(const GemmShape& s) {
  return {s.a_transposed ? s.rows : s.inner, s.b_transposed ? s.inner : s.columns, s.columns};
}

int tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  int tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
  return tile;
}

cublasLtMatmulAlgo_t choose(const CublasLt& library, const GemmShape& s, std::size_t workspace, int preferred_tile,
                            bool aligned) {
  const auto round_row = [&](int64_t length, fvlm_dtype dtype) {
    const int64_t unit = 16 / static_cast<int64_t>(bytes_of(dtype));
    return aligned ? (length + unit - 1) / unit * unit : length / unit * unit + unit + 1;
  };
  const Rows rows = rows_of(s);
  GemmDescriptor d(s, round_row(rows.a, s.dtype), round_row(rows.b, s.dtype), round_row(rows.c, s.result));
  const auto alignment = [&](fvlm_dtype dtype) { return aligned ? 16 : static_cast<int64_t>(bytes_of(dtype)); };
  auto preference = gemm_preference(workspace, alignment(s.dtype), alignment(s.dtype), alignment(s.result));
  cublasLtMatmulHeuristicResult_t found[candidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.get(), &d.operation, &d.b, &d.a, &d.c, &d.c,
                                                               &preference, candidates, found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for %s %lld x %lld x %lld: %s", name_of(s.dtype),
                  static_cast<long long>(s.rows), static_cast<long long>(s.columns), static_cast<long long>(s.inner),
                  cublasLtGetStatusString(status));
  const auto* chosen = std::find_if(found, found + count, [&](const cublasLtMatmulHeuristicResult_t& result) {
    return tile_of(result.algo) == preferred_tile;
  });
  return (chosen == found + count ? found : chosen)->algo;
}

} // namespace

Gemm::Gemm(const CublasLt& library, const GemmShape& shape, std::size_t workspace, int preferred_tile)
    : shape_(shape), workspace_(workspace), aligned_(choose(library, shape, workspace, preferred_tile, true)),
      any_(choose(library, shape, workspace, preferred_tile, false)) {}

void Gemm::run(const CublasLt& library, const fvlm_call& call, const Matrix& a, const Matrix& b, const Matrix& c,
               bool accumulate, void* workspace) const {
  GemmDescriptor d(shape_, a.row_stride, b.row_stride, c.row_stride);
  const auto is_aligned = [](const Matrix& operand, fvlm_dtype dtype) {
    return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
           operand.row_stride * static_cast<int64_t>(bytes_of(dtype)) % 16 == 0;
  };
  const bool aligned = is_aligned(a, shape_.dtype) && is_aligned(b, shape_.dtype) && is_aligned(c, shape_.result);
  const float one = 1, beta = accumulate ? 1 : 0;
  check_cublas(cublasLtMatmul(library.get(), &d.operation, &one, b.data, &d.b, a.data, &d.a, &beta, c.data, &d.c,
                              c.data, &d.c, aligned ? &aligned_ : &any_, workspace_ ? workspace : nullptr, workspace_,
                              stream_of(call)),
               "cublasLtMatmul");
}

} // namespace fvlm::plugins
