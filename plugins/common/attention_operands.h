// attention_operands.h: checks the tensors of an attention call and describes them to kernels: heads contiguous, every
// head aligned to 16 bytes.
#pragma once

#include <fvlm/fvlm.hpp>

#include <cstdint>
#include <type_traits>

namespace fvlm::plugins {

// [rows, heads, head_dim] with a contiguous last dimension; strides in elements.
struct HeadTensor {
  void* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;
};

enum Operand { q, k, v, out, d_out, d_q, d_k, d_v, operand_count };

inline bool is_key_side(int operand) {
  return operand == k || operand == v || operand == d_k || operand == d_v;
}

template <class Tensor>
HeadTensor rows_of(const fvlm_attention_query& query, int operand, Tensor* tensor) {
  using sdk::Failure;
  constexpr const char* names[operand_count] = {"q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v"};
  const char* name = names[operand];
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  const std::int64_t tokens = is_key_side(operand) ? query.tokens_kv : query.tokens_q;
  const std::int64_t heads = is_key_side(operand) ? query.heads_kv : query.heads_q;
  if (tensor->dtype != query.dtype || tensor->ndim != 3 || tensor->shape[0] != tokens || tensor->shape[1] != heads ||
      tensor->shape[2] != query.head_dim)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %lld, %d]", name, sdk::name_of(query.dtype),
                  static_cast<long long>(tokens), static_cast<long long>(heads), static_cast<int>(query.head_dim));
  const std::int64_t unit = 16 / static_cast<std::int64_t>(sdk::bytes_of(query.dtype));
  const std::int64_t row = tokens > 1 ? tensor->strides[0] : heads * query.head_dim;
  const std::int64_t head = heads > 1 ? tensor->strides[1] : query.head_dim;
  if (tensor->strides[2] != 1 || row % unit != 0 || head % unit != 0 || row < 0 || head < 0 ||
      reinterpret_cast<std::uintptr_t>(tensor->data) % 16 != 0)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: heads have to be contiguous and aligned to 16 bytes", name);
  return {tensor->data, row, head};
}

template <class Element>
Element* vector_of(std::conditional_t<std::is_const_v<Element>, const fvlm_tensor, fvlm_tensor>* tensor,
                   std::int64_t size, const char* name) {
  const sdk::View<Element, 1> view(tensor, name);
  if (view.size(0) != size || !view.contiguous())
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: expected contiguous [%lld]", name, static_cast<long long>(size));
  return view.data();
}

struct Operands {
  HeadTensor rows[operand_count];
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  float* lse = nullptr; // logsumexp, saved[0]; NULL in a forward without backward
};

template <class Arguments>
Operands operands_of(const fvlm_attention_query& query, const Arguments& a) {
  Operands operands;
  operands.rows[q] = rows_of(query, q, a.q);
  operands.rows[k] = rows_of(query, k, a.k);
  operands.rows[v] = rows_of(query, v, a.v);
  operands.rows[out] = rows_of(query, out, a.out);
  operands.cu_q = vector_of<const std::int32_t>(a.cu_seqlens_q, query.segments + 1, "cu_seqlens_q");
  operands.cu_kv = vector_of<const std::int32_t>(a.cu_seqlens_kv, query.segments + 1, "cu_seqlens_kv");
  if (const fvlm_tensor* saved = a.saved[0])
    operands.lse = static_cast<float*>(saved->data);
  else if (query.needs_backward)
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "saved[0] is NULL");
  if constexpr (std::is_same_v<Arguments, fvlm_attention_backward>) {
    operands.rows[d_out] = rows_of(query, d_out, a.d_out);
    operands.rows[d_q] = rows_of(query, d_q, a.d_q);
    if (query.queries_alone) return operands;
    operands.rows[d_k] = rows_of(query, d_k, a.d_k);
    operands.rows[d_v] = rows_of(query, d_v, a.d_v);
  }
  return operands;
}

} // namespace fvlm::plugins
