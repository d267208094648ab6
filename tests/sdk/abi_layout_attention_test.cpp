// abi_layout_attention_test.cpp: abi_layout_test.cpp, for the kind attention.
#include "abi_layout.h"

namespace {

SIZE(fvlm_attention_query, 104);
FIELD(fvlm_attention_query, struct_size, 0, uint32_t);
FIELD(fvlm_attention_query, causal, 4, int32_t);
FIELD(fvlm_attention_query, device, 8, fvlm_device);
FIELD(fvlm_attention_query, dtype, 16, fvlm_dtype);
FIELD(fvlm_attention_query, heads_q, 20, int32_t);
FIELD(fvlm_attention_query, heads_kv, 24, int32_t);
FIELD(fvlm_attention_query, head_dim, 28, int32_t);
FIELD(fvlm_attention_query, max_seqlen_q, 32, int32_t);
FIELD(fvlm_attention_query, max_seqlen_kv, 36, int32_t);
FIELD(fvlm_attention_query, rotary_dim, 40, int32_t);
FIELD(fvlm_attention_query, tokens_q, 48, int64_t);
FIELD(fvlm_attention_query, tokens_kv, 56, int64_t);
FIELD(fvlm_attention_query, segments, 64, int64_t);
FIELD(fvlm_attention_query, scale, 72, float);
FIELD(fvlm_attention_query, rope_theta, 76, float);
FIELD(fvlm_attention_query, needs_backward, 80, int32_t);
FIELD(fvlm_attention_query, even, 84, int32_t);
FIELD(fvlm_attention_query, guests, 88, int32_t);
FIELD(fvlm_attention_query, queries_alone, 92, int32_t);
FIELD(fvlm_attention_query, partial, 96, int32_t);
FIELD(fvlm_attention_query, window, 100, int32_t);

SIZE(fvlm_attention_forward, 104);
FIELD(fvlm_attention_forward, struct_size, 0, uint32_t);
FIELD(fvlm_attention_forward, q, 8, const fvlm_tensor*);
FIELD(fvlm_attention_forward, k, 16, const fvlm_tensor*);
FIELD(fvlm_attention_forward, v, 24, const fvlm_tensor*);
FIELD(fvlm_attention_forward, cu_seqlens_q, 32, const fvlm_tensor*);
FIELD(fvlm_attention_forward, cu_seqlens_kv, 40, const fvlm_tensor*);
FIELD(fvlm_attention_forward, positions_q, 48, const fvlm_tensor*);
FIELD(fvlm_attention_forward, positions_kv, 56, const fvlm_tensor*);
FIELD(fvlm_attention_forward, out, 64, fvlm_tensor*);
FIELD(fvlm_attention_forward, saved, 72, fvlm_tensor* [4]);

SIZE(fvlm_attention_backward, 160);
FIELD(fvlm_attention_backward, struct_size, 0, uint32_t);
FIELD(fvlm_attention_backward, q, 8, const fvlm_tensor*);
FIELD(fvlm_attention_backward, k, 16, const fvlm_tensor*);
FIELD(fvlm_attention_backward, v, 24, const fvlm_tensor*);
FIELD(fvlm_attention_backward, out, 32, const fvlm_tensor*);
FIELD(fvlm_attention_backward, d_out, 40, const fvlm_tensor*);
FIELD(fvlm_attention_backward, cu_seqlens_q, 48, const fvlm_tensor*);
FIELD(fvlm_attention_backward, cu_seqlens_kv, 56, const fvlm_tensor*);
FIELD(fvlm_attention_backward, positions_q, 64, const fvlm_tensor*);
FIELD(fvlm_attention_backward, positions_kv, 72, const fvlm_tensor*);
FIELD(fvlm_attention_backward, saved, 80, const fvlm_tensor* [4]);
FIELD(fvlm_attention_backward, d_q, 112, fvlm_tensor*);
FIELD(fvlm_attention_backward, d_k, 120, fvlm_tensor*);
FIELD(fvlm_attention_backward, d_v, 128, fvlm_tensor*);
FIELD(fvlm_attention_backward, guest_q, 136, const fvlm_tensor*);
FIELD(fvlm_attention_backward, guest_d_out, 144, const fvlm_tensor*);
FIELD(fvlm_attention_backward, guest_cu_seqlens, 152, const fvlm_tensor*);

SIZE(fvlm_attention_v1, 104);
FIELD(fvlm_attention_v1, base, 0, fvlm_table);
FIELD(fvlm_attention_v1, supports, 24, void (*)(const fvlm_attention_query*, fvlm_support*));
FIELD(fvlm_attention_v1, requirements, 32,
      fvlm_status (*)(fvlm_instance*, const fvlm_attention_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_attention_v1, prepare, 40, fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_attention_query*));
FIELD(fvlm_attention_v1, forward, 48,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_attention_query*, const fvlm_attention_forward*));
FIELD(fvlm_attention_v1, backward, 56,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_attention_query*, const fvlm_attention_backward*));
FIELD(fvlm_attention_v1, supports_paged, 64, void (*)(const fvlm_paged_attention_query*, fvlm_support*));
FIELD(fvlm_attention_v1, requirements_paged, 72,
      fvlm_status (*)(fvlm_instance*, const fvlm_paged_attention_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_attention_v1, prepare_paged, 80,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_paged_attention_query*));
FIELD(fvlm_attention_v1, forward_paged, 88,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_paged_attention_query*,
                      const fvlm_paged_attention*));
FIELD(fvlm_attention_v1, features, 96, uint32_t);

SIZE(fvlm_paged_attention_query, 104);
FIELD(fvlm_paged_attention_query, struct_size, 0, uint32_t);
FIELD(fvlm_paged_attention_query, device, 4, fvlm_device);
FIELD(fvlm_paged_attention_query, dtype, 12, fvlm_dtype);
FIELD(fvlm_paged_attention_query, heads_q, 16, int32_t);
FIELD(fvlm_paged_attention_query, heads_kv, 20, int32_t);
FIELD(fvlm_paged_attention_query, head_dim, 24, int32_t);
FIELD(fvlm_paged_attention_query, page_rows, 28, int32_t);
FIELD(fvlm_paged_attention_query, scale, 32, float);
FIELD(fvlm_paged_attention_query, rows, 40, int64_t);
FIELD(fvlm_paged_attention_query, sequences, 48, int64_t);
FIELD(fvlm_paged_attention_query, pages, 56, int64_t);
FIELD(fvlm_paged_attention_query, max_pages, 64, int64_t);
FIELD(fvlm_paged_attention_query, appends, 72, int32_t);
FIELD(fvlm_paged_attention_query, rotary_dim, 76, int32_t);
FIELD(fvlm_paged_attention_query, has_frequencies, 80, int32_t);
FIELD(fvlm_paged_attention_query, inverse, 84, int32_t);
FIELD(fvlm_paged_attention_query, qk_norm, 88, int32_t);
FIELD(fvlm_paged_attention_query, rope_theta, 92, float);
FIELD(fvlm_paged_attention_query, epsilon, 96, float);
FIELD(fvlm_paged_attention_query, window, 100, int32_t);

SIZE(fvlm_paged_attention, 104);
FIELD(fvlm_paged_attention, struct_size, 0, uint32_t);
FIELD(fvlm_paged_attention, q, 8, const fvlm_tensor*);
FIELD(fvlm_paged_attention, k_pages, 16, const fvlm_tensor*);
FIELD(fvlm_paged_attention, v_pages, 24, const fvlm_tensor*);
FIELD(fvlm_paged_attention, page_table, 32, const fvlm_tensor*);
FIELD(fvlm_paged_attention, sequences, 40, const fvlm_tensor*);
FIELD(fvlm_paged_attention, lengths, 48, const fvlm_tensor*);
FIELD(fvlm_paged_attention, out, 56, fvlm_tensor*);
FIELD(fvlm_paged_attention, k, 64, const fvlm_tensor*);
FIELD(fvlm_paged_attention, v, 72, const fvlm_tensor*);
FIELD(fvlm_paged_attention, q_norm, 80, const fvlm_tensor*);
FIELD(fvlm_paged_attention, k_norm, 88, const fvlm_tensor*);
FIELD(fvlm_paged_attention, frequencies, 96, const fvlm_tensor*);

} // namespace
