/* fvlm/kernels.h: the small operations between attentions. Kind "fvlm.kernels/1". Each operation is optional: a plugin
 * fills in those it has and leaves the other pointers NULL; but a forward comes with its backward, if there is one.
 *
 * Rows are tokens. There may be none: outputs are then empty, and gradients of parameters are set to 0, or left
 * unchanged where they are accumulated.
 *
 * Strides: the last dimension of every tensor is contiguous. Tensors of [rows, ...] may be strided: the row stride may
 * be larger than the width (views of a shared buffer) and may differ from tensor to tensor. Parameters (weight, bias,
 * scale), their gradients, d_x_sums, positions and saved tensors are contiguous, but for FVLM_STRIDED_WEIGHT;
 * scaled_rows has a rule of its own. An output may alias an input only where its comment says so, and then has the same
 * strides.
 *
 * Gradients of parameters have the query's gradient_dtype. They are overwritten, or added to where `accumulate` is 1; a
 * gradient that is NULL is not required (its parameter is frozen). Statistics and sums are kept in float32, or in
 * float64 where the dtype is float64. */
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
  FVLM_OP_SCALED_ROWS = 8,
  FVLM_OP_FOLD_ROW_SCALE = FVLM_OP_SCALED_ROWS, /* the same by its plain name */
  FVLM_OP_SHORT_CONVOLUTION = 9,
  FVLM_OP_DELTA_RULE = 10,
  FVLM_OP_EXPERTS = 11
};

/* Bits of fvlm_kernels_query.options: which optional tensors the calls have. */
enum {
  FVLM_WITH_BACKWARD = 1u << 0,
  FVLM_WITH_RESIDUAL = 1u << 1, /* rmsnorm, layernorm, linear; not together with gelu */
  FVLM_WITH_BIAS = 1u << 2,     /* linear, bias_gelu, short_convolution, experts */
  FVLM_WITH_GELU = 1u << 3,     /* linear */
  FVLM_WITH_SUMS = 1u << 4,     /* layernorm, layerscale_residual, linear: backward also gives the column sums of d_x,
                                   which are a d_bias */
  FVLM_WITH_REST = 1u << 5,     /* rmsnorm, layernorm, linear, with a residual: compensated summation (Kahan). What the
                                   sum loses by rounding is kept in a tensor of its own, the compensation */
  FVLM_QUICK_GELU = 1u << 7,    /* bias_gelu, linear: x sigmoid(1.702 x) in place of the exact gelu */
  FVLM_GELU_TANH = 1u << 8,     /* bias_gelu, linear: the approximation with tanh, x sigmoid(2 sqrt(2/pi) (x + 0.044715
                                   x^3)), in place of the exact gelu; not together with the one above. swiglu: this
                                   gelu of the gate in place of silu, which makes it GeGLU */
  FVLM_PER_HEAD = 1u << 9,      /* rmsnorm, without a residual: the columns are heads of head_dim each, normalized by
                                   themselves; weight and d_weight are [head_dim], one for all heads */
  FVLM_WITH_NORM = 1u << 10,    /* linear, forward alone: x is normalized first, as rmsnorm does */
  FVLM_WITH_SWIGLU = 1u << 11,  /* linear, its forward, without gelu and residual: the weight is [2 width, inner], the
                                   rows of the gate before those of up, and y = silu(gate) * up; so the bias. With
                                   backward also gives pre_activation, whose gradients a plain linear computes */
  FVLM_STRIDED_WEIGHT = 1u << 12, /* linear: the rows of the weight may be strided, as those of x */
  FVLM_BOTH_GRADIENTS = 1u << 13, /* linear, with backward, without bias, residual and gelu: linear_weight_gradient also
                                     gives d_x, for which d_y is read once */
  FVLM_WITH_OUTPUT = 1u << 14,    /* swiglu: backward also gives y, which was not kept; linear, with
                                     FVLM_SWIGLU_INPUT: so does its input gradient, where SwiGLU's y is called x */
  FVLM_WITH_FP8 = 1u << 15,       /* linear: the operands of its products are rounded to e4m3; not together with gelu,
                                     norm, column sums, compensation, and with swiglu only where a backward follows */
  FVLM_SWIGLU_INPUT = 1u << 16,   /* linear, its input gradient, without options but fp8, or strided_weight and
                                     output: x = silu(gate) * up of a pre_activation [rows, 2 inner], gate before up,
                                     whose gradient is d_x */
  FVLM_BFLOAT16_WEIGHT = 1u << 17, /* linear of float32, forward alone: the weight is bfloat16, and its numbers are
                                      multiplied as float32 */
  FVLM_WITH_COLUMN_SUMS = FVLM_WITH_SUMS, /* the same two by their plain names */
  FVLM_COMPENSATED = FVLM_WITH_REST,
  FVLM_FP8_PAIRS = 1u << 18,   /* linear with fp8, its input gradient where a backward follows and else, or with swiglu,
                                  its forward: the query's `pairs` is read */
  FVLM_WITH_STATES = 1u << 19, /* short_convolution, delta_rule, forward alone: segments continue others, whose states
                                  are read and replaced */
  FVLM_WITH_GATE = 1u << 20,   /* rmsnorm with FVLM_PER_HEAD: y is multiplied by silu(gate) */
  FVLM_SIGMOID_ROUTER = 1u << 21,    /* experts: scores are sigmoids in place of a softmax */
  FVLM_NORMALIZED_ROUTER = 1u << 22, /* experts: the scores of a row's experts are divided by their sum */
  FVLM_INT8_WEIGHTS = 1u << 23,   /* experts: gate_up and down are codes, with scales, as fvlm/quantizer.h has those */
  FVLM_INT4_WEIGHTS = 1u << 24,   /* of int8 and of int4; not both */
  FVLM_WITH_FREQUENCIES = 1u << 6 /* rope: the angles are those of a table of frequencies in place of rope_theta's */
};

typedef struct fvlm_kernels_query {
  uint32_t struct_size;
  int32_t op; /* FVLM_OP_* */
  fvlm_device device;
  fvlm_dtype dtype;          /* of activations and parameters */
  fvlm_dtype gradient_dtype; /* of parameters' gradients: dtype or float32 */
  uint32_t options;
  int64_t rows;                        /* tokens; scaled_rows: number of matrices */
  int64_t width;                       /* features of the output; rope: heads * head_dim */
  int64_t inner;                       /* linear, scaled_rows: features of the input */
  int32_t heads, head_dim, rotary_dim; /* rope; the first two also with FVLM_PER_HEAD: width = heads * head_dim */
  float epsilon;                       /* norms; linear with FVLM_WITH_NORM */
  float rope_theta;
  int64_t pairs;    /* with FVLM_FP8_PAIRS: of the features that the product sums over, how many of the last are rounded
                       to two numbers each */
  int64_t segments; /* short_convolution, delta_rule: how many, and the upper bound of their rows */
  int32_t max_seqlen;
  int32_t taps;               /* short_convolution */
  int32_t key_heads, key_dim; /* delta_rule: of queries and of keys; `heads` and `head_dim` are those of values, and
                                 width = heads * head_dim */
  int32_t experts, chosen;    /* experts: how many there are, and how many of them a row goes to */
  float router_scale;         /* experts: a factor of their weights. `epsilon` is added to the sum of scores */
} fvlm_kernels_query;

/* rmsnorm: y = s * rsqrt(mean(s^2) + epsilon) * weight; layernorm: y = (s - mean) * rsqrt(var + epsilon) * weight +
 * bias; where s = x, or with a residual s = x + residual, written to sum (which may alias x or residual). With
 * FVLM_COMPENSATED s = x + residual + rest before it is rounded, and the rounding error goes to sum_rest: a sum of many
 * terms is then rounded once instead of once per term. y and backward use the rounded s. With FVLM_WITH_GATE y is
 * multiplied by silu(gate) before it is rounded. */
typedef struct fvlm_norm_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *residual;  /* [rows, width]; residual NULL without FVLM_WITH_RESIDUAL, and then sum too */
  const fvlm_tensor *weight, *bias; /* [width]; bias NULL for rmsnorm */
  fvlm_tensor *y, *sum;
  fvlm_tensor* saved[FVLM_MAX_SAVED];
  const fvlm_tensor* rest; /* compensation of the residual [rows, width]: its rounding error; NULL: 0 */
  fvlm_tensor* sum_rest;   /* compensation of the sum, may alias rest; NULL without FVLM_COMPENSATED */
  const fvlm_tensor* gate; /* [rows, width]; NULL without FVLM_WITH_GATE */
} fvlm_norm_forward;

typedef struct fvlm_norm_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *d_y, *d_sum; /* d_sum: the gradient of s from its other uses, added to d_x; NULL: 0 */
  const fvlm_tensor *s, *weight;  /* s as above: sum, or x without a residual */
  const fvlm_tensor* saved[FVLM_MAX_SAVED];
  fvlm_tensor* d_x;               /* the gradient of x and of residual alike; may alias d_y or d_sum */
  fvlm_tensor *d_weight, *d_bias; /* NULL: not required; d_bias is NULL for rmsnorm */
  fvlm_tensor* d_x_sums; /* [width]: column sums of d_x, which are the d_bias of a bias that was added to make x; NULL:
                            not required, or without FVLM_WITH_COLUMN_SUMS */
  const fvlm_tensor* gate; /* of the forward; NULL without FVLM_WITH_GATE, and then d_gate too */
  fvlm_tensor* d_gate;     /* [rows, width] */
} fvlm_norm_backward;

/* Rotates the first rotary_dim dimensions of each head as Llama does: with half = rotary_dim / 2 and the angle
 * positions[row] * theta^(-2i / rotary_dim), out[i] = x[i] cos - x[i + half] sin and out[i + half] = x[i + half] cos +
 * x[i] sin; the other dimensions are copied. Its backward is the same function with inverse = 1 and backward_workspace.
 * With FVLM_WITH_FREQUENCIES the angle is positions[row] * frequencies[i]: scaled rotary embedding (linear, Llama 3,
 * YaRN). Decoders that rotate the other way set inverse in their forward. */
typedef struct fvlm_rope_apply {
  uint32_t struct_size;
  int32_t inverse;
  const fvlm_tensor* x;           /* [rows, heads, head_dim], row and head strides free */
  const fvlm_tensor* positions;   /* int32 [rows] */
  fvlm_tensor* out;               /* as x; may alias x */
  const fvlm_tensor* frequencies; /* float64 [rotary_dim / 2]; NULL without FVLM_WITH_FREQUENCIES */
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
  fvlm_tensor *d_gate, *d_up; /* may alias gate and up */
  fvlm_tensor* y;             /* of the forward; may alias d_y; NULL without FVLM_WITH_OUTPUT */
} fvlm_swiglu_backward;

/* y = gelu(x + bias), the exact gelu (with erf), or the one that an option names */
typedef struct fvlm_bias_gelu_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *bias; /* bias [width]; NULL without FVLM_WITH_BIAS */
  fvlm_tensor* y;
} fvlm_bias_gelu_forward;

typedef struct fvlm_bias_gelu_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *x, *bias, *d_y;
  fvlm_tensor* d_x;    /* may alias d_y */
  fvlm_tensor* d_bias; /* NULL: not required */
} fvlm_bias_gelu_backward;

/* y = residual + scale * x; the residual's gradient is d_y itself */
typedef struct fvlm_layerscale_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *scale, *residual; /* scale [width] */
  fvlm_tensor* y;                          /* may alias residual */
} fvlm_layerscale_forward;

typedef struct fvlm_layerscale_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *x, *scale, *d_y;
  fvlm_tensor* d_x;
  fvlm_tensor* d_scale;  /* NULL: not required */
  fvlm_tensor* d_x_sums; /* [width]: column sums of d_x (a d_bias), as above */
} fvlm_layerscale_backward;

/* y = x weight^T + bias; with FVLM_WITH_GELU that goes to pre_activation and y = gelu of it; with FVLM_WITH_RESIDUAL
 * the residual is added before y is rounded, and the gradient of the residual is d_y itself. With FVLM_COMPENSATED, not
 * together with gelu, rest is added too, and the rounding error of y goes to y_rest.
 *
 * With FVLM_WITH_NORM, x * rsqrt(mean(x^2) + epsilon) * norm_weight stands in place of x; whether that is rounded is
 * the plugin's choice.
 *
 * With FVLM_WITH_FP8, x and weight are rounded to e4m3 (8 bits, at most 448, to nearest, ties to even) before they are
 * multiplied, each row with a scale of its own: the least power of two by which the row's largest magnitude is at most
 * 448, of magnitudes of 2^-100 at least. So nothing saturates, and what was rounded is a number of 16 bits again. A row
 * that is not finite gives results that are not. The input gradient rounds d_y by its rows and the weight by its
 * columns. The weight gradient rounds nothing without FVLM_BOTH_GRADIENTS, and with it d_y and x by their rows: where
 * row i has the scales a_i and b_i, and c is the largest a_i b_i, but 2^-126 at least, a_i b_i / c times that row of
 * the rounded d_y is rounded to e4m3 again, and c is the scale of the product. Sums are of float32, or of the device's
 * own products of e4m3.
 *
 * With FVLM_FP8_PAIRS, a number of the last features that are summed over (columns of x and of weight; of d_y, and rows
 * of weight) stands as the sum of two with the scale of its row: itself rounded to e4m3, and what that rounding left,
 * rounded likewise. So it keeps as many bits as a bfloat16 has, down to 2^-18 of the row's largest. */
typedef struct fvlm_linear_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *weight, *bias; /* [rows, inner], [width, inner], [width] or NULL */
  fvlm_tensor* y;                       /* [rows, width] */
  fvlm_tensor* pre_activation;          /* [rows, width], with FVLM_WITH_SWIGLU [rows, 2 width]; NULL without both and
                                           FVLM_WITH_GELU, or where no backward follows */
  const fvlm_tensor* residual;          /* [rows, width], may alias y; NULL without FVLM_WITH_RESIDUAL */
  const fvlm_tensor* rest;              /* compensation of the residual [rows, width]; NULL: 0 */
  fvlm_tensor* y_rest;                  /* compensation of y, may alias rest; NULL without FVLM_COMPENSATED */
  const fvlm_tensor* norm_weight;       /* [inner]; NULL without FVLM_WITH_NORM */
} fvlm_linear_forward;

/* d_x = d_y weight. With pre_activation, where x = gelu(pre_activation), d_x is multiplied by gelu's derivative at it:
 * the backward of gelu is fused into the GEMM. FVLM_QUICK_GELU and FVLM_GELU_TANH name the form of that gelu, with or
 * without FVLM_WITH_GELU, which is about the forward. With FVLM_SWIGLU_INPUT the same of SwiGLU's derivatives: d_x
 * holds those of gate and of up, and may alias pre_activation. */
typedef struct fvlm_linear_input_gradient {
  uint32_t struct_size;
  const fvlm_tensor *d_y, *weight;
  const fvlm_tensor* pre_activation; /* [rows, inner] or NULL; with FVLM_SWIGLU_INPUT [rows, 2 inner] */
  fvlm_tensor* d_x;                  /* as pre_activation, if there is one */
  int32_t accumulate;                /* of d_x_sums */
  fvlm_tensor* d_x_sums; /* [inner]: column sums of d_x, which are the d_bias of a bias that was added to make x, or to
                            make pre_activation; NULL: not required, or without FVLM_WITH_COLUMN_SUMS */
  fvlm_tensor* x;        /* [rows, inner]; NULL without FVLM_WITH_OUTPUT */
} fvlm_linear_input_gradient;

/* d_weight (+)= d_y^T x, d_bias (+)= column sums of d_y. With FVLM_BOTH_GRADIENTS also d_x = d_y weight: for a linear
 * of few input features, such as the second one of a low-rank adapter, whose gradients cost what reading d_y costs. */
typedef struct fvlm_linear_weight_gradient {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *d_y, *x;
  fvlm_tensor *d_weight, *d_bias; /* d_bias NULL: not required */
  const fvlm_tensor* weight;      /* [width, inner]; NULL without FVLM_BOTH_GRADIENTS */
  fvlm_tensor* d_x;               /* [rows, inner]; NULL without FVLM_BOTH_GRADIENTS, or in fp8: not required */
} fvlm_linear_weight_gradient;

/* fold_row_scale: folds a scale per output row (LayerScale) into the linear before it: scaled_weight = diag(scale)
 * weight, scaled_bias = scale * bias, for a batch of `rows` linears of one shape. The last dimension of every tensor,
 * gradients too, is contiguous and all other strides are free. */
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
  fvlm_tensor *d_scale, *d_weight, *d_bias; /* NULL: not required. d_scaled_weight is NULL where neither d_scale
                                               nor d_weight is required, d_scaled_bias where neither d_scale nor d_bias
                                               is */
} fvlm_scaled_rows_backward;

/* short_convolution and delta_rule go from row to row of each segment of a packed buffer. Rows of segment i are those
 * from cu_seqlens[i] to cu_seqlens[i + 1] - 1; a segment may have none, and a bound behind the last row counts as the
 * number of rows. Rows behind the last segment are padding: y, and in backward the gradients of what rows hold, are 0.
 *
 * Without FVLM_WITH_STATES a segment begins with a state of zeros. With it, segment i continues from state slots[i], or
 * from zeros where starts[i] is not 0, and the state after its last row replaces that one. Segments with rows have
 * different slots; one without rows changes no state. slots, starts and states are NULL without FVLM_WITH_STATES. */

/* y = silu(c), c[row] = bias + the sum over distance < taps of weight[:, taps - 1 - distance] * x[row - distance],
 * where rows before those of the segment are those of the state [slots, taps - 1, width], in the dtype, the last one
 * before the segment last. Sums are kept in float32. */
typedef struct fvlm_convolution_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *weight, *bias; /* [rows, width], [width, taps], [width] or NULL without FVLM_WITH_BIAS */
  const fvlm_tensor *cu_seqlens, *slots, *starts; /* int32 [segments + 1], [segments], [segments] */
  fvlm_tensor* states;
  fvlm_tensor* y; /* [rows, width] */
} fvlm_convolution_forward;

typedef struct fvlm_convolution_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *x, *weight, *bias, *cu_seqlens, *d_y;
  fvlm_tensor* d_x;
  fvlm_tensor *d_weight, *d_bias; /* NULL: not required */
} fvlm_convolution_backward;

/* The gated delta rule: each head of values carries a state S [key_dim, head_dim]. For each row
 *
 *   S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   y = S^T q
 *
 * `qkv` holds in each row the heads of q, then those of k (key_heads each), then those of v (heads); head h reads q and
 * k of the key head h / (heads / key_heads). q and k are divided by the root of the sum of their squares and 1e-6, and
 * q by the root of key_dim besides. `gates` holds b, then a of each head: beta = sigmoid(b) and
 * g = -exp(log_decay) softplus(a + step_bias). States [slots, heads, key_dim, head_dim] are float32, or float64 where
 * the dtype is. In 16-bit types a plugin may round the operands of products to the dtype, but not states. */
typedef struct fvlm_delta_rule_forward {
  uint32_t struct_size;
  const fvlm_tensor *qkv, *gates;           /* [rows, 2 key_heads * key_dim + width], [rows, 2 heads] */
  const fvlm_tensor *log_decay, *step_bias; /* [heads] */
  const fvlm_tensor *cu_seqlens, *slots, *starts;
  fvlm_tensor* states;
  fvlm_tensor* y; /* [rows, width] */
  fvlm_tensor* saved[FVLM_MAX_SAVED];
} fvlm_delta_rule_forward;

typedef struct fvlm_delta_rule_backward {
  uint32_t struct_size;
  int32_t accumulate;
  const fvlm_tensor *qkv, *gates, *log_decay, *step_bias, *cu_seqlens, *d_y;
  const fvlm_tensor* saved[FVLM_MAX_SAVED];
  fvlm_tensor *d_qkv, *d_gates;
  fvlm_tensor *d_log_decay, *d_step_bias; /* NULL: not required */
} fvlm_delta_rule_backward;

/* A mixture of experts, forward alone. The scores of a row are the softmax of its logits, or with FVLM_SIGMOID_ROUTER
 * their sigmoids, in float32 or wider. The row goes to the `chosen` experts with the largest scores, to which with
 * FVLM_WITH_BIAS the bias is added for this choice alone; of equals the first ones are chosen. Their weights are the
 * scores, with FVLM_NORMALIZED_ROUTER divided by the sum of the chosen ones and epsilon, times router_scale, and
 *
 *   y = the sum over the chosen experts of weight * down (silu(gate x) * up x)
 *
 * where gate_up of an expert has the rows of its gate, then those of up. Sums are of float32; silu(gate) * up may be
 * rounded to the dtype, and so may a weight be that is a code times its scale. A plugin may refuse more than a few
 * rows: the engine then computes in another way. */
typedef struct fvlm_experts_forward {
  uint32_t struct_size;
  const fvlm_tensor *x, *logits;     /* [rows, width], [rows, experts] */
  const fvlm_tensor* bias;           /* [experts]; NULL without FVLM_WITH_BIAS */
  const fvlm_tensor *gate_up, *down; /* [experts, 2 inner, width], [experts, width, inner], contiguous; of codes the
                                        last size is that of a row of codes */
  fvlm_tensor* y;                    /* [rows, width] */
  /* float32 [experts, 2 inner, groups of width], [experts, width, groups of inner], contiguous, of int8 one group; NULL
   * without codes */
  const fvlm_tensor *gate_up_scales, *down_scales;
} fvlm_experts_forward;

typedef struct fvlm_kernels_v1 {
  fvlm_table base;

  /* Refuses an op whose pointers are NULL, and bits of options that it does not know. [any thread] */
  void (*supports)(const fvlm_kernels_query* query, fvlm_support* support);

  /* Workspace and saved tensors of query->op. backward_workspace suffices for each backward call of the op.
   * [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* requirements,
                              fvlm_error* error);

  /* Builds plans and picks algorithms for this query before its first call. May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query);

  /* The operations, as their argument structs describe them. All: [step thread] */
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
  fvlm_status (*short_convolution_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                           const fvlm_convolution_forward*);
  fvlm_status (*short_convolution_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                            const fvlm_convolution_backward*);
  fvlm_status (*delta_rule_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                    const fvlm_delta_rule_forward*);
  fvlm_status (*delta_rule_backward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                     const fvlm_delta_rule_backward*);
  fvlm_status (*experts_forward)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                 const fvlm_experts_forward*);
} fvlm_kernels_v1;

#ifdef __cplusplus
}
#endif
#endif
