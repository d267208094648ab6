// cuda_operands.h: checks the tensors of a call of a kernels plugin, and whether they can be accessed 16 bytes at a
// time.
#pragma once

#include "common/cuda_rows.h"

#include <initializer_list>
#include <string>

namespace fvlm::plugins {

inline constexpr std::int64_t widest_access = 16; // bytes

// Reads a call's tensors and records whether all of them can be accessed 16 bytes at a time.
class Operands {
 public:
  explicit Operands(const fvlm_kernels_query& query)
      : query_(query), wide_(query.width * element() % widest_access == 0) {}

  Rows rows(const fvlm_tensor* tensor, const char* name) {
    const Rows found = matrix(tensor, query_.width, name);
    check_alignment(found.data, query_.rows > 1 ? found.stride : 0);
    return found;
  }

  // [rows, width] of another width, which may be at any address.
  Rows matrix(const fvlm_tensor* tensor, std::int64_t width, const char* name) const {
    if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    if (tensor->dtype != query_.dtype || tensor->ndim != 2 || tensor->shape[0] != query_.rows ||
        tensor->shape[1] != width)
      throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %lld]", name, sdk::name_of(query_.dtype),
                         static_cast<long long>(query_.rows), static_cast<long long>(width));
    if (width > 1 && tensor->strides[1] != 1)
      throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows have to be contiguous", name);
    return {tensor->data, tensor->strides[0]};
  }

  Rows optional_rows(const fvlm_tensor* tensor, const char* name) { return tensor ? rows(tensor, name) : Rows{}; }

  // [width], contiguous.
  void* parameter(const fvlm_tensor* tensor, const char* name) { return parameter(tensor, {query_.width}, name); }
  void* parameter(const fvlm_tensor* tensor, std::initializer_list<std::int64_t> shape, const char* name) {
    void* data = contiguous(tensor, query_.dtype, shape, name);
    check_alignment(data, 0);
    return data;
  }
  void* gradient(const fvlm_tensor* tensor, const char* name) const { return gradient(tensor, {query_.width}, name); }
  void* gradient(const fvlm_tensor* tensor, std::initializer_list<std::int64_t> shape, const char* name) const {
    return tensor ? contiguous(tensor, query_.gradient_dtype, shape, name) : nullptr;
  }

  static void* contiguous(const fvlm_tensor* tensor, fvlm_dtype dtype, std::initializer_list<std::int64_t> shape,
                          const char* name) {
    if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    bool fits = tensor->dtype == dtype && tensor->ndim == static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (int i = static_cast<int>(shape.size()); fits && i-- > 0;) {
      const std::int64_t size = shape.begin()[i];
      fits = tensor->shape[i] == size && (size <= 1 || tensor->strides[i] == stride);
      stride *= size;
    }
    if (fits) return tensor->data;
    std::string expected;
    for (const std::int64_t size : shape) expected += (expected.empty() ? "" : ", ") + std::to_string(size);
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected contiguous %s [%s]", name, sdk::name_of(dtype),
                       expected.c_str());
  }

  // A saved statistic: one float per row.
  float* statistic(const fvlm_tensor* tensor, const char* name) const {
    return static_cast<float*>(contiguous(tensor, sdk::float32, {query_.rows}, name));
  }

  const std::int32_t* integers(const fvlm_tensor* tensor, std::int64_t count, const char* name) const {
    return static_cast<const std::int32_t*>(contiguous(tensor, sdk::int32, {count}, name));
  }

  // [rows, heads, head_dim]; the head stride is returned in `head`.
  Rows heads(const fvlm_tensor* tensor, std::int64_t& head, const char* name) {
    if (!tensor) throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    if (tensor->dtype != query_.dtype || tensor->ndim != 3 || tensor->shape[0] != query_.rows ||
        tensor->shape[1] != query_.heads || tensor->shape[2] != query_.head_dim)
      throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %d, %d]", name, sdk::name_of(query_.dtype),
                         static_cast<long long>(query_.rows), static_cast<int>(query_.heads),
                         static_cast<int>(query_.head_dim));
    if (query_.head_dim > 1 && tensor->strides[2] != 1)
      throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has to be contiguous", name);
    head = tensor->strides[1];
    check_alignment(tensor->data, query_.rows > 1 ? tensor->strides[0] : 0);
    check_alignment(tensor->data, query_.heads > 1 ? head : 0);
    return {tensor->data, tensor->strides[0]};
  }

  // These many elements have to be a multiple of 16 bytes, too.
  void require_wide(std::int64_t elements) { wide_ = wide_ && elements * element() % widest_access == 0; }

  // Records whether a tensor with this stride can be accessed so, for those that are not read by a function above.
  void check_alignment(const void* data, std::int64_t stride) {
    wide_ =
        wide_ && reinterpret_cast<std::uintptr_t>(data) % widest_access == 0 && stride * element() % widest_access == 0;
  }

  bool vectorized() const { return wide_; }
  Shape shape() const { return {query_.dtype, query_.rows, query_.width, wide_}; }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(sdk::bytes_of(query_.dtype)); }

  const fvlm_kernels_query& query_;
  bool wide_;
};

} // namespace fvlm::plugins
