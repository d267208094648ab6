// abi_layout_loss_test.cpp: abi_layout_test.cpp, for the kind loss.
#include "abi_layout.h"

namespace {

VALUE(FVLM_LOSS_SOFTCAP, 1);

SIZE(fvlm_loss_query, 64);
FIELD(fvlm_loss_query, struct_size, 0, uint32_t);
FIELD(fvlm_loss_query, needs_d_hidden, 4, int32_t);
FIELD(fvlm_loss_query, needs_d_weight, 8, int32_t);
FIELD(fvlm_loss_query, device, 12, fvlm_device);
FIELD(fvlm_loss_query, dtype, 20, fvlm_dtype);
FIELD(fvlm_loss_query, gradient_dtype, 24, fvlm_dtype);
FIELD(fvlm_loss_query, tokens, 32, int64_t);
FIELD(fvlm_loss_query, width, 40, int64_t);
FIELD(fvlm_loss_query, vocab, 48, int64_t);
FIELD(fvlm_loss_query, softcap, 56, float);

SIZE(fvlm_loss_forward, 72);
FIELD(fvlm_loss_forward, struct_size, 0, uint32_t);
FIELD(fvlm_loss_forward, hidden, 8, const fvlm_tensor*);
FIELD(fvlm_loss_forward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_loss_forward, targets, 24, const fvlm_tensor*);
FIELD(fvlm_loss_forward, losses, 32, fvlm_tensor*);
FIELD(fvlm_loss_forward, saved, 40, fvlm_tensor* [4]);

SIZE(fvlm_loss_backward, 88);
FIELD(fvlm_loss_backward, struct_size, 0, uint32_t);
FIELD(fvlm_loss_backward, accumulate_d_weight, 4, int32_t);
FIELD(fvlm_loss_backward, hidden, 8, const fvlm_tensor*);
FIELD(fvlm_loss_backward, weight, 16, const fvlm_tensor*);
FIELD(fvlm_loss_backward, targets, 24, const fvlm_tensor*);
FIELD(fvlm_loss_backward, d_losses, 32, const fvlm_tensor*);
FIELD(fvlm_loss_backward, saved, 40, const fvlm_tensor* [4]);
FIELD(fvlm_loss_backward, d_hidden, 72, fvlm_tensor*);
FIELD(fvlm_loss_backward, d_weight, 80, fvlm_tensor*);

SIZE(fvlm_loss_fused, 64);
FIELD(fvlm_loss_fused, struct_size, 0, uint32_t);
FIELD(fvlm_loss_fused, accumulate_d_weight, 4, int32_t);
FIELD(fvlm_loss_fused, hidden, 8, const fvlm_tensor*);
FIELD(fvlm_loss_fused, weight, 16, const fvlm_tensor*);
FIELD(fvlm_loss_fused, targets, 24, const fvlm_tensor*);
FIELD(fvlm_loss_fused, d_losses, 32, const fvlm_tensor*);
FIELD(fvlm_loss_fused, losses, 40, fvlm_tensor*);
FIELD(fvlm_loss_fused, d_hidden, 48, fvlm_tensor*);
FIELD(fvlm_loss_fused, d_weight, 56, fvlm_tensor*);

SIZE(fvlm_loss_v1, 80);
FIELD(fvlm_loss_v1, base, 0, fvlm_table);
FIELD(fvlm_loss_v1, supports, 24, void (*)(const fvlm_loss_query*, fvlm_support*));
FIELD(fvlm_loss_v1, requirements, 32,
      fvlm_status (*)(fvlm_instance*, const fvlm_loss_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_loss_v1, prepare, 40, fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_loss_query*));
FIELD(fvlm_loss_v1, forward, 48,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_loss_query*, const fvlm_loss_forward*));
FIELD(fvlm_loss_v1, backward, 56,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_loss_query*, const fvlm_loss_backward*));
FIELD(fvlm_loss_v1, fused, 64,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_loss_query*, const fvlm_loss_fused*));
FIELD(fvlm_loss_v1, features, 72, uint32_t);

} // namespace
