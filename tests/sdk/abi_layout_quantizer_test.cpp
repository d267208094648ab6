// abi_layout_quantizer_test.cpp: abi_layout_test.cpp, for the kind quantizer.
#include "abi_layout.h"

namespace {

VALUE(FVLM_QUANTIZED_RESIDUAL, 1);
VALUE(FVLM_QUANTIZED_NORM, 2);
VALUE(FVLM_QUANTIZED_SWIGLU, 4);

SIZE(fvlm_quantizer_query, 48);
FIELD(fvlm_quantizer_query, struct_size, 0, uint32_t);
FIELD(fvlm_quantizer_query, device, 4, fvlm_device);
FIELD(fvlm_quantizer_query, dtype, 12, fvlm_dtype);
FIELD(fvlm_quantizer_query, rows, 16, int64_t);
FIELD(fvlm_quantizer_query, cols, 24, int64_t);
FIELD(fvlm_quantizer_query, tokens, 32, int64_t);
FIELD(fvlm_quantizer_query, options, 40, uint32_t);
FIELD(fvlm_quantizer_query, epsilon, 44, float);
SIZE(fvlm_quantizer_pack, 56);
FIELD(fvlm_quantizer_pack, struct_size, 0, uint32_t);
FIELD(fvlm_quantizer_pack, weight, 8, const fvlm_tensor*);
FIELD(fvlm_quantizer_pack, packed, 16, fvlm_tensor* [4]);
FIELD(fvlm_quantizer_pack, importance, 48, const fvlm_tensor*);

SIZE(fvlm_quantizer_unpack, 48);
FIELD(fvlm_quantizer_unpack, struct_size, 0, uint32_t);
FIELD(fvlm_quantizer_unpack, packed, 8, const fvlm_tensor* [4]);
FIELD(fvlm_quantizer_unpack, weight, 40, fvlm_tensor*);

SIZE(fvlm_quantizer_linear, 80);
FIELD(fvlm_quantizer_linear, struct_size, 0, uint32_t);
FIELD(fvlm_quantizer_linear, packed, 8, const fvlm_tensor* [4]);
FIELD(fvlm_quantizer_linear, x, 40, const fvlm_tensor*);
FIELD(fvlm_quantizer_linear, bias, 48, const fvlm_tensor*);
FIELD(fvlm_quantizer_linear, y, 56, fvlm_tensor*);
FIELD(fvlm_quantizer_linear, residual, 64, const fvlm_tensor*);
FIELD(fvlm_quantizer_linear, norm_weight, 72, const fvlm_tensor*);

SIZE(fvlm_quantizer_linear_gradient, 56);
FIELD(fvlm_quantizer_linear_gradient, struct_size, 0, uint32_t);
FIELD(fvlm_quantizer_linear_gradient, packed, 8, const fvlm_tensor* [4]);
FIELD(fvlm_quantizer_linear_gradient, d_y, 40, const fvlm_tensor*);
FIELD(fvlm_quantizer_linear_gradient, d_x, 48, fvlm_tensor*);

SIZE(fvlm_fake_quantize_forward, 24);
FIELD(fvlm_fake_quantize_forward, struct_size, 0, uint32_t);
FIELD(fvlm_fake_quantize_forward, weight, 8, const fvlm_tensor*);
FIELD(fvlm_fake_quantize_forward, out, 16, fvlm_tensor*);

SIZE(fvlm_fake_quantize_backward, 32);
FIELD(fvlm_fake_quantize_backward, struct_size, 0, uint32_t);
FIELD(fvlm_fake_quantize_backward, weight, 8, const fvlm_tensor*);
FIELD(fvlm_fake_quantize_backward, d_out, 16, const fvlm_tensor*);
FIELD(fvlm_fake_quantize_backward, d_weight, 24, fvlm_tensor*);

SIZE(fvlm_quantizer_v1, 120);
FIELD(fvlm_quantizer_v1, base, 0, fvlm_table);
FIELD(fvlm_quantizer_v1, scheme, 24, const char*);
FIELD(fvlm_quantizer_v1, bits, 32, int32_t);
FIELD(fvlm_quantizer_v1, supports, 40, void (*)(const fvlm_quantizer_query*, fvlm_support*));
FIELD(fvlm_quantizer_v1, requirements, 48,
      fvlm_status (*)(fvlm_instance*, const fvlm_quantizer_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_quantizer_v1, prepare, 56, fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*));
FIELD(fvlm_quantizer_v1, pack, 64,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_pack*));
FIELD(fvlm_quantizer_v1, unpack, 72,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_unpack*));
FIELD(fvlm_quantizer_v1, linear, 80,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_linear*));
FIELD(fvlm_quantizer_v1, linear_gradient, 88,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                      const fvlm_quantizer_linear_gradient*));
FIELD(fvlm_quantizer_v1, fake_quantize_forward, 96,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                      const fvlm_fake_quantize_forward*));
FIELD(fvlm_quantizer_v1, fake_quantize_backward, 104,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                      const fvlm_fake_quantize_backward*));
FIELD(fvlm_quantizer_v1, features, 112, uint32_t);

} // namespace
