// newton_schulz.cpp: the batched products of Newton-Schulz and their coefficients.
#include "newton_schulz.h"

#include <utility>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int steps = 5;

void batch(cublasLtMatrixLayoutOpaque_t& layout, int64_t distance, std::int32_t count) {
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    check_cublas(cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof value),
                 "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, distance);
}

} // namespace

BatchedProduct::BatchedProduct(const CublasLt& library, const GemmShape& s, int count) : description_(s, 0, 0, 0) {
  batch(description_.a, s.rows * s.inner, count);
  batch(description_.b, s.inner * s.columns, count);
  batch(description_.c, s.rows * s.columns, count);
  auto preference = gemm_preference(workspace, 16, 16, 16);
  GemmDescriptor& d = description_;
  cublasLtMatmulHeuristicResult_t found{};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.get(), &d.operation, &d.b, &d.a, &d.c, &d.c,
                                                               &preference, 1, &found, &results);
  if (status != CUBLAS_STATUS_SUCCESS || results == 0)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for %d %s products of %lld x %lld x %lld: %s",
                  count, name_of(s.dtype), static_cast<long long>(s.rows), static_cast<long long>(s.columns),
                  static_cast<long long>(s.inner), cublasLtGetStatusString(status));
  algorithm_ = found.algo;
}

void BatchedProduct::run(const CublasLt& library, cudaStream_t stream, float alpha, const void* a, const void* b,
                         float beta, const void* addend, void* c, void* workspace_data) const {
  GemmDescriptor d = description_; // cuBLASLt's parameters are not const
  check_cublas(cublasLtMatmul(library.get(), &d.operation, &alpha, b, &d.b, a, &d.a, &beta, addend, &d.c, c, &d.c,
                              &algorithm_, workspace_data, workspace, stream),
               "cublasLtMatmul");
}

NewtonSchulz::NewtonSchulz(const CublasLt& library, const MatricesShape& s)
    : tall_(s.rows > s.cols),
      gram_(library, {s.dtype, s.dtype, s.small(), s.small(), std::max(s.rows, s.cols), tall_, !tall_}, s.count),
      square_(library, {s.dtype, s.dtype, s.small(), s.small(), s.small()}, s.count),
      update_(library, {s.dtype, s.dtype, s.rows, s.cols, s.small()}, s.count) {}

void* NewtonSchulz::run(const CublasLt& library, cudaStream_t stream, NewtonSchulzSpace m) const {
  for (int step = 0; step < steps; ++step) {
    gram_.run(library, stream, 1, m.x, m.x, 0, m.gram, m.gram, m.workspace);
    square_.run(library, stream, 2.0315f, m.gram, m.gram, -4.7750f, m.gram, m.polynomial, m.workspace);
    update_.run(library, stream, 1, tall_ ? m.x : m.polynomial, tall_ ? m.polynomial : m.x, 3.4445f, m.x, m.other,
                m.workspace);
    std::swap(m.x, m.other);
  }
  return m.x;
}

} // namespace fvlm::plugins
