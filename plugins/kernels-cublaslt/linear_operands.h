// linear_operands.h: checks the tensors of a linear layer's calls and describes them as matrices.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

#include <initializer_list>

namespace fvlm::plugins {

inline std::int64_t bytes(fvlm_dtype dtype) {
  return static_cast<std::int64_t>(sdk::bytes_of(dtype));
}

inline Matrix matrix_of(const fvlm_tensor* tensor, fvlm_dtype dtype, std::int64_t rows, std::int64_t columns,
                        const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 2 || tensor->shape[0] != rows || tensor->shape[1] != columns)
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %lld]", name, sdk::name_of(dtype),
                       static_cast<long long>(rows), static_cast<long long>(columns));
  if (columns > 1 && tensor->strides[1] != 1)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows have to be contiguous", name);
  if (rows <= 1) return {tensor->data, columns};
  if (tensor->strides[0] < columns) throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows overlap", name);
  return {tensor->data, tensor->strides[0]};
}

inline Matrix parameter_of(const fvlm_tensor* tensor, fvlm_dtype dtype, std::int64_t rows, std::int64_t columns,
                           const char* name) {
  const Matrix matrix = matrix_of(tensor, dtype, rows, columns, name);
  if (matrix.row_stride != columns) throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s has to be contiguous", name);
  return matrix;
}

// The weight of a linear.
inline Matrix weight_of(const fvlm_kernels_query& query, const fvlm_tensor* weight) {
  const auto of = query.options & FVLM_STRIDED_WEIGHT ? matrix_of : parameter_of;
  return of(weight, query.dtype, query.width, query.inner, "weight");
}

inline void* vector_of(const fvlm_tensor* tensor, fvlm_dtype dtype, std::int64_t size, const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 1 || tensor->shape[0] != size)
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld]", name, sdk::name_of(dtype),
                       static_cast<long long>(size));
  if (size > 1 && tensor->strides[0] != 1) throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s has to be contiguous", name);
  return tensor->data;
}

inline Rows rows_of(const Matrix& matrix) {
  return {matrix.data, matrix.row_stride};
}
inline Matrix matrix_of(const Rows& rows) {
  return {rows.data, rows.stride};
}

// Records whether all operands can be accessed 16 bytes at a time.
inline Shape shape_of(fvlm_dtype dtype, std::int64_t rows, std::int64_t width, std::initializer_list<Matrix> operands) {
  bool vectorized = width * bytes(dtype) % 16 == 0;
  for (const Matrix& each : operands)
    vectorized =
        vectorized && reinterpret_cast<std::uintptr_t>(each.data) % 16 == 0 && each.row_stride * bytes(dtype) % 16 == 0;
  return {dtype, rows, width, vectorized};
}

inline void clear(const fvlm_call& call, void* data, std::int64_t size) {
  sdk::check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(size), sdk::stream_of(call)), "cudaMemsetAsync");
}

} // namespace fvlm::plugins
