/* fvlm/kernels.h: the small operations between attentions. Kind "fvlm.kernels/1". Each is optional: a plugin gives
 * those it has and leaves the other pointers NULL; but a forward comes with its backward.
 *
 * Rows are tokens. There may be none: outputs are then empty, and gradients of parameters are set to 0, or left as they
 * are where they are added to.
 *
 * Strides: the last dimension of every tensor is contiguous. Tensors of [rows, ...] may be strided: the row stride may
 * be larger than the width (views of a shared buffer) and may differ from tensor to tensor. Parameters (weight, bias,
 * scale), their gradients, d_x_sums, positions and saved tensors are contiguous; scaled_rows has a rule of its own. An
 * output takes the memory of an input only where its comment says so, and then with the same strides.
 *
 * Gradients of parameters have the query's gradient_dtype and are overwritten, or added to where `accumulate` is 1.
 * Statistics and sums are kept in float32, or in float64 where the dtype is float64. */
#ifndef FVLM_KERNELS_H
#define FVLM_KERNELS_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_KERNELS_KIND "fvlm.kernels/1"

enum {
  FVLM_OP_RMSNORM = 1,
  FVLM_OP_LAYERNORM = 2,
  FVLM_OP_ROPE = 3,
  FVLM_OP_SWIGLU = 4,
  FVLM_OP_BIAS_GELU = 5,
  FVLM_OP_LAYERSCALE_RESIDUAL = 6,
  FVLM_OP_LINEAR = 7,
  FVLM_OP_SCALED_ROWS = 8 /* fold_row_scale */
};

/* Bits of fvlm_kernels_query.options: which optional tensors the calls will carry. */
enum {
  FVLM_WITH_BACKWARD = 1u << 0,
  FVLM_WITH_RESIDUAL = 1u << 1, /* rmsnorm, layernorm, linear; not together with gelu */
  FVLM_WITH_BIAS = 1u << 2,     /* linear, bias_gelu */
  FVLM_WITH_GELU = 1u << 3,     /* linear */
  FVLM_WITH_SUMS = 1u << 4,     /* layernorm, layerscale_residual, linear: d_x with its column sums (a d_bias) */
  FVLM_WITH_REST = 1u << 5 /* compensation, as in Kahan's sum: rmsnorm, layernorm, linear, with a residual: what the
                              sum loses by rounding is kept in a tensor of its own */
};

typedef struct fvlm_kernels_query {
  uint32_t struct_size;
  int32_t op; /* FVLM_OP_* */
  fvlm_device device;
  fvlm_dtype dtype;          /* of activations and parameters */
  fvlm_dtype gradient_dtype; /* of parameters' gradients: dtype or float32 */
  uint32_t options;
  int64_t rows;                        /* tokens; scaled_rows: matrices */
  int64_t width;                       /* features of the output; rope: heads * head_dim */
  int64_t inner;                       /* linear, scaled_rows: features of the input */
  int32_t heads, head_dim, rotary_dim; /* rope */
  float epsilon;                       /* norms */
  float rope_theta;
} fvlm_kernels_query;

/* rmsnorm: y = s * rsqrt(mean(s^2) + epsilon) * weight; layernorm: y = (s - mean) * rsqrt(var + epsilon) * weight +
 * bias; where s = x, or with a residual s = x + residual, written to sum (which may be the memory of x or residual).
 * With FVLM_WITH_REST (compensation) s = x + residual + rest before it is rounded, and what rounding takes from it goes
 * to sum_rest. So a sum of many terms is rounded once, not every time. y and backward are of s as rounded. */
typedef struct fvlm_norm_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *residual;  /* [rows, width]; residual NULL without FVLM_WITH_RESIDUAL, and then sum too */
  const fvlm_tensor *weight, *bias; /* [width]; bias NULL for rmsnorm */
  fvlm_tensor *y, *sum;
  fvlm_tensor* saved[FVLM_MAX_SAVED];
  const fvlm_tensor* rest; /* the residual's compensation [rows, width]: what it lost by rounding; NULL: nothing */
  fvlm_tensor* sum_rest;   /* the sum's, may be the memory of rest; NULL without FVLM_WITH_REST */
} fvlm_norm_forward;

typedef struct fvlm_norm_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *d_y, *d_sum; /* d_sum: what reaches s by other ways, added to d_x; NULL: nothing */
  const fvlm_tensor *s, *weight;  /* s as above: sum, or x without a residual */
  const fvlm_tensor* saved[FVLM_MAX_SAVED];
  fvlm_tensor* d_x;               /* the gradient of x and of residual alike; may be the memory of d_y or d_sum */
  fvlm_tensor *d_weight, *d_bias; /* NULL: not wanted (frozen); d_bias NULL for rmsnorm */
  fvlm_tensor* d_x_sums; /* [width]: column sums of d_x, the gradient (d_bias) of a bias that was added to make x; NULL:
                            not wanted, or without FVLM_WITH_SUMS */
} fvlm_norm_backward;

/* Rotates the first rotary_dim dimensions of each head as Llama does: with half = rotary_dim / 2 and the angle
 * positions[row] * theta^(-2i / rotary_dim), out[i] = x[i] cos - x[i + half] sin and out[i + half] = x[i + half] cos +
 * x[i] sin; the rest is copied. Its backward is itself with inverse = 1, in the workspace asked for backward. */
typedef struct fvlm_rope_apply {
  uint32_t struct_size;
  int32_t inverse;
  const fvlm_tensor* x;         /* [rows, heads, head_dim], row and head strides free */
  const fvlm_tensor* positions; /* int32 [rows] */
  fvlm_tensor* out;             /* as x; may be the memory of x */
} fvlm_rope_apply;

/* y = silu(gate) * up */
typedef struct fvlm_swiglu_forward {
  uint32_t struct_size;
  const fvlm_tensor *gate, *up; /* [rows, width] */
  fvlm_tensor* y;
} fvlm_swiglu_forward;

typedef struct fvlm_swiglu_backward {
  uint32_t struct_size;
  const fvlm_tensor *gate, *up, *d_y;
  fvlm_tensor *d_gate, *d_up; /* may be the memory of gate and up */
} fvlm_swiglu_backward;

/* y = gelu(x + bias), gelu with erf */
typedef struct fvlm_bias_gelu_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *bias; /* bias [width]; NULL without FVLM_WITH_BIAS */
  fvlm_tensor* y;
} fvlm_bias_gelu_forward;

typedef struct fvlm_bias_gelu_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *x, *bias, *d_y;
  fvlm_tensor* d_x;    /* may be the memory of d_y */
  fvlm_tensor* d_bias; /* NULL: not wanted */
} fvlm_bias_gelu_backward;

/* y = residual + scale * x; the residual's gradient is d_y itself */
typedef struct fvlm_layerscale_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *scale, *residual; /* scale [width] */
  fvlm_tensor* y;                          /* may be the memory of residual */
} fvlm_layerscale_forward;

typedef struct fvlm_layerscale_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *x, *scale, *d_y;
  fvlm_tensor* d_x;
  fvlm_tensor* d_scale;  /* NULL: not wanted */
  fvlm_tensor* d_x_sums; /* [width]: column sums of d_x, as above; NULL: not wanted, or without FVLM_WITH_SUMS */
} fvlm_layerscale_backward;

/* y = x weight^T + bias; with FVLM_WITH_GELU that sum goes to pre_activation and y = gelu of it; with
 * FVLM_WITH_RESIDUAL the residual is added before y is rounded. The residual's gradient is d_y itself. With
 * FVLM_WITH_REST (compensation), not together with gelu, rest is added too, and what y loses by rounding goes to
 * y_rest. */
typedef struct fvlm_linear_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *weight, *bias; /* [rows, inner], [width, inner], [width] or NULL */
  fvlm_tensor* y;                       /* [rows, width] */
  fvlm_tensor* pre_activation;          /* [rows, width]; NULL without FVLM_WITH_GELU, or where no backward follows */
  const fvlm_tensor* residual;          /* [rows, width], may be the memory of y; NULL without FVLM_WITH_RESIDUAL */
  const fvlm_tensor* rest;              /* the residual's compensation [rows, width]; NULL: nothing */
  fvlm_tensor* y_rest;                  /* that of y, may be the memory of rest; NULL without FVLM_WITH_REST */
} fvlm_linear_forward;

/* d_x = d_y weight. With pre_activation, from which x was made by gelu, d_x is multiplied by gelu's derivative there:
 * the backward of gelu is fused into the GEMM. */
typedef struct fvlm_linear_input_gradient {
  uint32_t struct_size;
  const fvlm_tensor *d_y, *weight;
  const fvlm_tensor* pre_activation; /* [rows, inner] or NULL */
  fvlm_tensor* d_x;                  /* [rows, inner] */
  int32_t accumulate;                /* of d_x_sums */
  fvlm_tensor* d_x_sums; /* [inner]: column sums of d_x, the gradient (d_bias) of a bias that was added to make x, or
                            to make pre_activation; NULL: not wanted, or without FVLM_WITH_SUMS */
} fvlm_linear_input_gradient;

/* d_weight (+)= d_y^T x, d_bias (+)= column sums of d_y */
typedef struct fvlm_linear_weight_gradient {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *d_y, *x;
  fvlm_tensor *d_weight, *d_bias; /* d_bias NULL: not wanted */
} fvlm_linear_weight_gradient;

/* Folds a scale of each output row (LayerScale) into the linear before it (fold_row_scale): scaled_weight = diag(scale)
 * weight, scaled_bias = scale * bias. `rows` linears of one shape at once. Of every tensor, gradients too, the last
 * dimension is contiguous and all other strides are free. */
typedef struct fvlm_scaled_rows_forward {
  uint32_t struct_size;
  const fvlm_tensor *scale, *weight, *bias; /* [rows, width], [rows, width, inner], [rows, width] */
  fvlm_tensor *scaled_weight, *scaled_bias;
} fvlm_scaled_rows_forward;

/* d_scale (+)= sum over inner of d_scaled_weight * weight, plus d_scaled_bias * bias; d_weight (+)= diag(scale)
 * d_scaled_weight; d_bias (+)= scale * d_scaled_bias. d_scaled_weight and d_scaled_bias are float32, or float64 where
 * the dtype is. */
typedef struct fvlm_scaled_rows_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *scale, *weight, *bias;
  const fvlm_tensor *d_scaled_weight, *d_scaled_bias;
  fvlm_tensor *d_scale, *d_weight, *d_bias; /* NULL: not wanted. d_scaled_weight is NULL where neither d_scale nor
                                               d_weight is wanted, d_scaled_bias where neither d_scale nor d_bias is */
} fvlm_scaled_rows_backward;

typedef struct fvlm_kernels_v1 {
  fvlm_table base;

  /* Says no to an op whose pointers are NULL, and to bits of options that it does not know. [any thread] */
  void (*supports)(const fvlm_kernels_query* query, fvlm_support* support);

  /* backward_workspace is enough for each of an op's backward calls. [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* requirements,
                              fvlm_error* error);

  /* May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query);

  /* All of these: [step thread] */
  fvlm_status (*rmsnorm_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_norm_forward*);
  fvlm_status (*rmsnorm_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                  const fvlm_norm_backward*);
  fvlm_status (*layernorm_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                   const fvlm_norm_forward*);
  fvlm_status (*layernorm_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                    const fvlm_norm_backward*);
  fvlm_status (*rope)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const fvlm_rope_apply*);
  fvlm_status (*swiglu_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                const fvlm_swiglu_forward*);
  fvlm_status (*swiglu_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                 const fvlm_swiglu_backward*);
  fvlm_status (*bias_gelu_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                   const fvlm_bias_gelu_forward*);
  fvlm_status (*bias_gelu_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                    const fvlm_bias_gelu_backward*);
  fvlm_status (*layerscale_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                    const fvlm_layerscale_forward*);
  fvlm_status (*layerscale_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                     const fvlm_layerscale_backward*);
  fvlm_status (*linear_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                const fvlm_linear_forward*);
  fvlm_status (*linear_input_gradient)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                       const fvlm_linear_input_gradient*);
  fvlm_status (*linear_weight_gradient)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                        const fvlm_linear_weight_gradient*);
  fvlm_status (*scaled_rows_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                     const fvlm_scaled_rows_forward*);
  fvlm_status (*scaled_rows_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                      const fvlm_scaled_rows_backward*);
} fvlm_kernels_v1;

#ifdef __cplusplus
}
#endif
#endif
