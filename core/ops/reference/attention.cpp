// The kind attention, by the methods of reference/attention.h.
#include "ops/reference/attention.h"

#include "ops/reference/common.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

struct Bounds {
  const fvlm_tensor* cu_seqlens;
  int64_t tokens, longest; // of all segments, of one
};

// In a dry run the bounds of the segments are unknown: then there is one segment, as long as any.
Tensor bounds_of(const fvlm_attention_query& query, const Bounds& bounds) {
  const Tensor cu_seqlens = torch_tensor(bounds.cu_seqlens);
  if (!cu_seqlens.is_meta() || query.device.type != FVLM_CPU) return cu_seqlens;
  return at::tensor({int64_t{0}, std::min(bounds.tokens, bounds.longest)}, at::kInt);
}

AttentionShape shape_of(const fvlm_attention_query& query, const Bounds& of_q, const fvlm_tensor* cu_seqlens_kv) {
  return {bounds_of(query, of_q), bounds_of(query, {cu_seqlens_kv, query.tokens_kv, query.max_seqlen_kv}), query.scale,
          query.causal != 0, Attention::window_of(query)};
}

Tensor with_rope(const fvlm_attention_query& query, const Tensor& x, const fvlm_tensor* positions, bool inverse) {
  if (query.rotary_dim == 0) return x;
  return rotated(x, torch_tensor(positions), query.rotary_dim, query.rope_theta, inverse);
}

AttentionGradients gradients(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& d_out, const MergedAttention& merged = {}) {
  return is_on_cpu(q) ? attention_gradients_by_segment(shape, q, k, v, d_out, merged)
                      : attention_gradients_by_mask(shape, q, k, v, d_out, merged);
}

} // namespace

sdk::Support Attention::supports(const Query& query) {
  if (query.heads_kv < 1 || query.heads_q % query.heads_kv != 0)
    return sdk::refuse("%d query heads over %d key heads", query.heads_q, query.heads_kv);
  if (query.rotary_dim % 2 != 0 || query.rotary_dim < 0 || query.rotary_dim > query.head_dim)
    return sdk::refuse("rotary_dim %d of head_dim %d not supported", query.rotary_dim, query.head_dim);
  if (query.guests && (query.causal || query.rotary_dim != 0 || query.queries_alone))
    return sdk::refuse("guests with a causal mask, rotary embedding or queries_alone");
  if (is_partial(query) && (query.rotary_dim != 0 || query.guests || query.queries_alone || !query.needs_backward))
    return sdk::refuse("partial with rotary embedding, guests or queries_alone, or without a backward");
  if (const int window = window_of(query);
      window < 0 ||
      (window > 0 && (!query.causal || query.tokens_q != query.tokens_kv || query.guests || query.queries_alone)))
    return sdk::refuse("a window of %d without a causal mask or with other queries than keys", window);
  const bool on_host = query.device.type == FVLM_CPU;
  return supports_number(query.device, query.dtype, on_host ? "ATen, by segment" : "ATen, one masked softmax");
}

void Attention::requirements(const Query& query, sdk::Requirements& wanted) const {
  if (is_partial(query)) wanted.save(wide(query.dtype), {query.tokens_q, query.heads_q});
}

void Attention::forward(const fvlm_call&, const Query& query, const Forward& arguments) {
  const Tensor q = with_rope(query, upcast(arguments.q), arguments.positions_q, false);
  const Tensor k = with_rope(query, upcast(arguments.k), arguments.positions_kv, false);
  const Tensor v = upcast(arguments.v);
  const auto shape =
      shape_of(query, {arguments.cu_seqlens_q, query.tokens_q, query.max_seqlen_q}, arguments.cu_seqlens_kv);
  const Tensor log_sum_exp = is_partial(query) ? torch_tensor(arguments.saved[0]) : Tensor();
  store(torch_tensor(arguments.out), is_on_cpu(q) ? attention_by_segment(shape, q, k, v, log_sum_exp)
                                                  : attention_by_mask(shape, q, k, v, log_sum_exp));
}

void Attention::backward(const fvlm_call&, const Query& query, const Backward& arguments) {
  const Tensor q = with_rope(query, upcast(arguments.q), arguments.positions_q, false);
  const Tensor k = with_rope(query, upcast(arguments.k), arguments.positions_kv, false);
  const Tensor v = upcast(arguments.v), d_out = upcast(arguments.d_out);
  const auto shape =
      shape_of(query, {arguments.cu_seqlens_q, query.tokens_q, query.max_seqlen_q}, arguments.cu_seqlens_kv);
  MergedAttention merged;
  if (is_partial(query)) merged = {upcast(arguments.out), torch_tensor(arguments.saved[0])};
  auto [d_q, d_k, d_v] = gradients(shape, q, k, v, d_out, merged);
  store(torch_tensor(arguments.d_q), with_rope(query, d_q, arguments.positions_q, true));
  if (query.queries_alone) return;
  if (query.guests && arguments.guest_q) {
    constexpr int64_t longest = 1; // a query for each segment of keys
    const auto deferred_shape =
        shape_of(query, {arguments.guest_cu_seqlens, arguments.guest_q->shape[0], longest}, arguments.cu_seqlens_kv);
    const auto [unused, more_k, more_v] =
        gradients(deferred_shape, upcast(arguments.guest_q), k, v, upcast(arguments.guest_d_out));
    d_k += more_k;
    d_v += more_v;
  }
  store(torch_tensor(arguments.d_k), with_rope(query, d_k, arguments.positions_kv, true));
  store(torch_tensor(arguments.d_v), d_v);
}

} // namespace fvlm::ops::reference
