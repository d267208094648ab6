// operands.h: the tensors of a call, checked against its query.
#pragma once

#include "row_kernels.h"

#include <fvlm/fvlm.hpp>

namespace fvlm::plugins {

inline Rows rows_of(const fvlm_tensor* tensor, const fvlm_kernels_query& query, const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != query.dtype || tensor->ndim != 2 || tensor->shape[0] != query.rows ||
      tensor->shape[1] != query.width)
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %lld]", name, sdk::name_of(query.dtype),
                       static_cast<long long>(query.rows), static_cast<long long>(query.width));
  if (query.width > 1 && tensor->strides[1] != 1)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: its rows must be contiguous", name);
  return {tensor->data, tensor->strides[0]};
}

inline Rows optional_rows(const fvlm_tensor* tensor, const fvlm_kernels_query& query, const char* name) {
  return tensor ? rows_of(tensor, query, name) : Rows{};
}

inline void* parameter_of(const fvlm_tensor* tensor, const fvlm_kernels_query& query, fvlm_dtype dtype,
                          const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 1 || tensor->shape[0] != query.width ||
      (query.width > 1 && tensor->strides[0] != 1))
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is not a contiguous %s [%lld]", name, sdk::name_of(dtype),
                       static_cast<long long>(query.width));
  return tensor->data;
}

// A linear's weight or its gradient.
inline void* matrix_of(const fvlm_tensor* tensor, const fvlm_kernels_query& query, fvlm_dtype dtype, const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 2 || tensor->shape[0] != query.width ||
      tensor->shape[1] != query.inner || (query.inner > 1 && tensor->strides[1] != 1) ||
      (query.width > 1 && tensor->strides[0] != query.inner))
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is not a contiguous %s [%lld, %lld]", name, sdk::name_of(dtype),
                       static_cast<long long>(query.width), static_cast<long long>(query.inner));
  return tensor->data;
}

// A saved statistic: one float32 per row.
inline float* statistic_of(const fvlm_tensor* tensor, const fvlm_kernels_query& query, const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != sdk::float32 || tensor->ndim != 1 || tensor->shape[0] != query.rows ||
      (query.rows > 1 && tensor->strides[0] != 1))
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is not a contiguous float32 [%lld]", name,
                       static_cast<long long>(query.rows));
  return static_cast<float*>(tensor->data);
}

struct HeadRows {
  Rows rows;
  int64_t head;
};

inline HeadRows heads_of(const fvlm_tensor* tensor, const fvlm_kernels_query& query, const char* name) {
  if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != query.dtype || tensor->ndim != 3 || tensor->shape[0] != query.rows ||
      tensor->shape[1] != query.heads || tensor->shape[2] != query.head_dim)
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %d, %d]", name, sdk::name_of(query.dtype),
                       static_cast<long long>(query.rows), static_cast<int>(query.heads),
                       static_cast<int>(query.head_dim));
  if (query.head_dim > 1 && tensor->strides[2] != 1)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: its last dimension must be contiguous", name);
  return {{tensor->data, tensor->strides[0]}, tensor->strides[1]};
}

} // namespace fvlm::plugins
