/* fvlm/quantizer.h: weights in few bits, and quantization-aware training. Kind "fvlm.quantizer/1:SCHEME".
 *
 * A weight is [rows, cols] = [output features, input features]. pack quantizes it, unpack dequantizes it. The packed
 * (quantized) form is up to FVLM_MAX_SAVED tensors that the plugin declares (codes, scales, ...): it is what an
 * exported model stores. Shapes: weight, out [rows, cols]; x, d_x [tokens, cols]; y, d_y [tokens, rows]; bias [rows]. A
 * linear has any number of tokens from 0 to the query's.
 *
 * Strides: the engine passes contiguous tensors. Should x, y, d_x or d_y be strided anyway, a plugin computes the right
 * result or refuses them as unsupported.
 *
 * Schemes that recipes know by name. A plugin with one of these names quantizes as specified here, so that one plugin
 * reads what another wrote.
 *
 * int8, symmetric per output feature: packed[0] = codes int8 [rows, cols], packed[1] = scales float32 [rows]; scale =
 * max |w| of the row / 127 in float32, code = w / scale rounded half to even and clamped to -127 .. 127. A row with
 * scale 0 has codes 0.
 *
 * w8a8, since 1.1: weights as int8 has them. linear quantizes each row of x as well: scale = max |x| of the row / 127.5
 * in float32, code = x / scale rounded half to even and clamped to -128 .. 127 (0 where the scale is 0), which are the
 * dynamic activations of compressed-tensors; y = scale of x * scale of the weight * sum of the products of codes.
 * linear_gradient does not know of it.
 *
 * int4, symmetric per group of input features. A group has 128, 64 or 32 columns, the most that divide cols into at
 * least four groups; else 32 where that divides cols, else all. packed[0] = codes uint8 [rows, 4 ceil(cols / 8)]: the
 * code of column c, with 8 added, is in bits 4 (c mod 2) and up of byte c / 2, and bits of no column are 0. packed[1] =
 * scales float32 [rows, groups]. scale = m / d, where m is max |w| of the group and d that of 7, 7.25, ..., 10 with the
 * least sum of importance (w - scale code)^2, the first among equals; code = w / scale rounded half to even and clamped
 * to -8 .. 7, which are the codes of scale 0 too, as w / 1. Plugins may add the squares in another order, so that two
 * of them may choose another d where sums are nearly equal. As 32-bit little-endian words, packed[0] is what
 * compressed-tensors calls weight_packed. */
#ifndef FVLM_QUANTIZER_H
#define FVLM_QUANTIZER_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_QUANTIZER_KIND(scheme) "fvlm.quantizer/1:" scheme

/* What linear does besides, for few tokens in passes without gradients: bits of fvlm_quantizer_query.options, and of
 * fvlm_quantizer_v1.features, which says what is understood at all. Since 1.1. */
enum {
  FVLM_QUANTIZED_RESIDUAL = 1u << 0, /* the residual is added before y is rounded */
  FVLM_QUANTIZED_NORM = 1u << 1,     /* x rsqrt(mean(x^2) + epsilon) norm_weight stands in place of x; whether that is
                                        rounded is the plugin's choice */
  FVLM_QUANTIZED_SWIGLU = 1u << 2    /* the rows of the weight are those of a gate, then as many of up, and y
                                        [tokens, rows / 2] = silu(gate) * up, without residual */
};

typedef struct fvlm_quantizer_query {
  uint32_t struct_size;
  fvlm_device device;
  fvlm_dtype dtype; /* of weight, x, y, bias and gradients */
  int64_t rows, cols;
  int64_t tokens;   /* of the largest linear call; 0 where only weights are converted */
  uint32_t options; /* FVLM_QUANTIZED_*, of linear alone. Since 1.1 */
  float epsilon;    /* with FVLM_QUANTIZED_NORM */
} fvlm_quantizer_query;

/* Quantize: packed = quantized weight. */
typedef struct fvlm_quantizer_pack {
  uint32_t struct_size;
  const fvlm_tensor* weight;
  fvlm_tensor* packed[FVLM_MAX_SAVED];
  /* float32 [cols]: how much an error of each input feature matters, such as the mean square of its activations. int8
   * does not read it. NULL: all alike. */
  const fvlm_tensor* importance;
} fvlm_quantizer_pack;

/* Dequantize: weight = dequantized packed. */
typedef struct fvlm_quantizer_unpack {
  uint32_t struct_size;
  const fvlm_tensor* packed[FVLM_MAX_SAVED];
  fvlm_tensor* weight;
} fvlm_quantizer_unpack;

typedef struct fvlm_quantizer_linear {
  uint32_t struct_size;
  const fvlm_tensor* packed[FVLM_MAX_SAVED];
  const fvlm_tensor* x;
  const fvlm_tensor* bias; /* NULL: none */
  fvlm_tensor* y;          /* x unpack(packed)^T + bias */
  /* Since 1.1 */
  const fvlm_tensor* residual;    /* [tokens, rows], may alias y; NULL without FVLM_QUANTIZED_RESIDUAL */
  const fvlm_tensor* norm_weight; /* [cols]; NULL without FVLM_QUANTIZED_NORM */
} fvlm_quantizer_linear;

typedef struct fvlm_quantizer_linear_gradient {
  uint32_t struct_size;
  const fvlm_tensor* packed[FVLM_MAX_SAVED];
  const fvlm_tensor* d_y;
  fvlm_tensor* d_x; /* d_y unpack(packed) */
} fvlm_quantizer_linear_gradient;

/* Fake quantization: out = unpack(pack(weight)), with a straight-through estimator for its gradient: d_out passes where
 * the weight is within the range of its codes, and the gradient is 0 where the weight was clipped. */
typedef struct fvlm_fake_quantize_forward {
  uint32_t struct_size;
  const fvlm_tensor* weight;
  fvlm_tensor* out;
} fvlm_fake_quantize_forward;

typedef struct fvlm_fake_quantize_backward {
  uint32_t struct_size;
  const fvlm_tensor *weight, *d_out;
  fvlm_tensor* d_weight; /* overwritten */
} fvlm_fake_quantize_backward;

typedef struct fvlm_quantizer_v1 {
  fvlm_table base;
  const char* scheme; /* "int8", "int4": the kind's variant, which a recipe names */
  int32_t bits;       /* per stored weight, without scales */

  /* Whether weights like these are supported, and how well. [any thread] */
  void (*supports)(const fvlm_quantizer_query* query, fvlm_support* support);

  /* saved[] are the packed tensors; forward_workspace covers pack, unpack, linear and fake quantization, forward and
   * backward. [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_quantizer_query* query,
                              fvlm_requirements* requirements, fvlm_error* error);

  /* Builds plans and picks algorithms for this query before its first call. May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query);

  /* Quantize, dequantize, and compute, as their argument structs describe it. All: [step thread] */
  fvlm_status (*pack)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_pack*);
  fvlm_status (*unpack)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_unpack*);
  fvlm_status (*linear)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*, const fvlm_quantizer_linear*);
  fvlm_status (*linear_gradient)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                                 const fvlm_quantizer_linear_gradient*);
  fvlm_status (*fake_quantize_forward)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                                       const fvlm_fake_quantize_forward*);
  fvlm_status (*fake_quantize_backward)(fvlm_instance*, const fvlm_call*, const fvlm_quantizer_query*,
                                        const fvlm_fake_quantize_backward*);
  uint32_t features; /* FVLM_QUANTIZED_* that queries may have; supports() still decides. Since 1.1 */
} fvlm_quantizer_v1;

#ifdef __cplusplus
}
#endif
#endif
