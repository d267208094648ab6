/* rmsnorm, rope, swiglu and scaled_rows, row by row, in float32 and (rmsnorm) bfloat16. */
#include "common.h"

#include <math.h>

static float widen(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
static uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Element c of row r, whatever the dtype. */
static float get(const fvlm_tensor* t, int64_t r, int64_t c) {
  const int64_t at = t->ndim == 1 ? c : r * t->strides[0] + c;
  return t->dtype.bits == 16 ? widen(((const uint16_t*)t->data)[at]) : ((const float*)t->data)[at];
}
static void put(const fvlm_tensor* t, int64_t r, int64_t c, float value) {
  const int64_t at = t->ndim == 1 ? c : r * t->strides[0] + c;
  if (t->dtype.bits == 16)
    ((uint16_t*)t->data)[at] = narrow(value);
  else
    ((float*)t->data)[at] = value;
}

static const char* refusal(const fvlm_kernels_query* q) {
  const int bfloat16 = same_dtype(q->dtype, FVLM_BFLOAT, 16) && q->op == FVLM_OP_RMSNORM;
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->dtype, FVLM_FLOAT, 32) && !bfloat16) return "float32 only";
  if (!same_dtype(q->gradient_dtype, FVLM_FLOAT, 32) && !(bfloat16 && same_dtype(q->gradient_dtype, FVLM_BFLOAT, 16)))
    return "gradients in float32 only";
  if (q->op != FVLM_OP_RMSNORM && q->op != FVLM_OP_ROPE && q->op != FVLM_OP_SWIGLU && q->op != FVLM_OP_FOLD_ROW_SCALE)
    return "rmsnorm, rope, swiglu and scaled_rows only";
  if (q->options & ~(uint32_t)(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL)) return "an option is not known here";
  if (q->rows < 0 || q->width < 1) return "rows and width have to be sizes";
  if (q->op == FVLM_OP_ROPE && (q->rotary_dim % 2 || q->rotary_dim > q->head_dim || q->rotary_dim < 0))
    return "rotary_dim has to be even and within head_dim";
  return NULL;
}

static void supports(const fvlm_kernels_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, rope_theta) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

static uint64_t workspace_of(const fvlm_kernels_query* query) {
  return query->op == FVLM_OP_RMSNORM ? (uint64_t)query->width * sizeof(float) : 0; /* a row of weight gradients */
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, rope_theta, error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
#ifdef SABOTAGE_TURNS_BACK_IN_NO_ROOM
  out->forward_workspace = query->op == FVLM_OP_ROPE;
#else
  out->forward_workspace = 0;
#endif
  out->backward_workspace = workspace_of(query);
  out->saved_count = 0;
  return FVLM_OK;
}

#define LOOK(last)                                                                                                     \
  (void)instance;                                                                                                      \
  NEED_CALL(call);                                                                                                     \
  NEED(query, rope_theta, call->error);                                                                                \
  NEED(a, last, call->error);                                                                                          \
  if (refusal(query)) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", refusal(query))

#ifdef SABOTAGE_KEEPS_THE_QUERY
static __thread const fvlm_kernels_query* kept; /* which is valid during the call alone */
#else
static __thread fvlm_kernels_query kept;
#endif

static UNUSED fvlm_status prepare(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, rope_theta, call->error);
#ifdef SABOTAGE_KEEPS_THE_QUERY
  kept = query;
#else
  kept = *query;
#endif
  return FVLM_OK;
}

#ifdef SABOTAGE_REMEMBERS_THE_FORWARD
static __thread float remembered[8192]; /* of the rows of the last call */
#endif
#ifdef SABOTAGE_REMEMBERS_THE_FORWARD_OF_A_SHAPE
static float* remembered_of(const fvlm_kernels_query* query) {
  static __thread struct {
    int64_t rows, width;
    float spread[8192];
  } shapes[32];
  int i = 0;
  while (i < 31 && shapes[i].rows && (shapes[i].rows != query->rows || shapes[i].width != query->width)) ++i;
  shapes[i].rows = query->rows, shapes[i].width = query->width;
  return shapes[i].spread;
}
#endif

static float spread_of(const fvlm_kernels_query* query, const fvlm_tensor* s, int64_t r) {
  double sum = 0;
  for (int64_t c = 0; c < query->width; ++c) sum += (double)get(s, r, c) * get(s, r, c);
#ifdef SABOTAGE_FIXES_EPSILON
  return (float)(1 / sqrt(sum / (double)query->width + 1e-5));
#else
  return (float)(1 / sqrt(sum / (double)query->width + query->epsilon));
#endif
}

#ifdef SABOTAGE_KEEPS_WEIGHTS
/* As they were when they were first seen at their address. */
static float kept_weight(const fvlm_tensor* weight, int64_t c) {
  static __thread float copy[8192];
  static __thread const void* at;
  if (at != weight->data)
    for (int64_t i = 0; i < weight->shape[0]; ++i) copy[i] = get(weight, 0, i);
  at = weight->data;
  return copy[c];
}
#endif

static fvlm_status rmsnorm_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_norm_forward* a) {
  LOOK(saved);
#if defined(SABOTAGE_KEEPS_THE_QUERY)
  query = kept;
#elif defined(SABOTAGE_KEEPS_ONE_PLAN)
  query = &kept;
#endif
  for (int64_t r = 0; r < query->rows; ++r) {
    const fvlm_tensor* s = a->residual ? a->sum : a->x;
    if (a->residual) {
#ifdef SABOTAGE_ALIASES_WRONGLY
      for (int64_t c = 0; c < query->width; ++c) put(a->sum, r, c, 0);
#endif
      for (int64_t c = 0; c < query->width; ++c) {
#ifdef SABOTAGE_IGNORES_RESIDUAL
        put(a->sum, r, c, get(a->x, r, c));
#else
        put(a->sum, r, c, get(a->x, r, c) + get(a->residual, r, c));
#endif
      }
    }
    const float spread = spread_of(query, s, r);
#ifdef SABOTAGE_REMEMBERS_THE_FORWARD
    remembered[r] = spread;
#endif
#ifdef SABOTAGE_REMEMBERS_THE_FORWARD_OF_A_SHAPE
    remembered_of(query)[r] = spread;
#endif
#ifdef SABOTAGE_KEEPS_WEIGHTS
    for (int64_t c = 0; c < query->width; ++c) put(a->y, r, c, get(s, r, c) * spread * kept_weight(a->weight, c));
#else
    for (int64_t c = 0; c < query->width; ++c) put(a->y, r, c, get(s, r, c) * spread * get(a->weight, 0, c));
#endif
  }
  return FVLM_OK;
}

static fvlm_status rmsnorm_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                    const fvlm_norm_backward* a) {
  LOOK(d_bias);
  if (call->workspace_size < workspace_of(query)) return fvlm_fail(call->error, FVLM_ERROR_WORKSPACE, "too little");
  const int64_t n = query->width;
  float* d_weight = (float*)call->workspace;
  memset(d_weight, 0, (size_t)n * sizeof *d_weight);
  for (int64_t r = 0; r < query->rows; ++r) {
#ifdef SABOTAGE_REMEMBERS_THE_FORWARD
    const float spread = remembered[r];
#elif defined(SABOTAGE_REMEMBERS_THE_FORWARD_OF_A_SHAPE)
    const float spread = remembered_of(query)[r];
#else
    const float spread = spread_of(query, a->s, r);
#endif
    double along = 0;
    for (int64_t c = 0; c < n; ++c) along += (double)get(a->d_y, r, c) * get(a->weight, 0, c) * get(a->s, r, c);
    along *= (double)spread * spread * spread / (double)n;
    for (int64_t c = 0; c < n; ++c) {
      d_weight[c] += get(a->d_y, r, c) * get(a->s, r, c) * spread;
#ifdef SABOTAGE_SUMS_IN_16_BITS
      if (query->dtype.bits == 16) d_weight[c] = widen(narrow(d_weight[c]));
#endif
    }
    for (int64_t c = 0; c < n; ++c) {
      float d = (float)(get(a->d_y, r, c) * get(a->weight, 0, c) * spread - along * get(a->s, r, c));
#ifndef SABOTAGE_IGNORES_D_SUM
      if (a->d_sum) d += get(a->d_sum, r, c);
#endif
      put(a->d_x, r, c, d);
    }
  }
  for (int64_t c = 0; a->d_weight && c < n; ++c) {
#if defined(SABOTAGE_ADDS_IN_ANY_ORDER) /* to what nobody has cleared */
    const int adds = a->accumulate || !(call->flags & FVLM_DETERMINISTIC);
    put(a->d_weight, 0, c, d_weight[c] + (adds ? get(a->d_weight, 0, c) : 0));
#elif defined(SABOTAGE_IGNORES_ACCUMULATE)
    put(a->d_weight, 0, c, d_weight[c]);
#else
    put(a->d_weight, 0, c, d_weight[c] + (a->accumulate ? get(a->d_weight, 0, c) : 0));
#endif
  }
  return FVLM_OK;
}

static double theta_of(const fvlm_kernels_query* query) {
#ifdef SABOTAGE_FIXES_THETA
  (void)query;
  return 10000;
#else
  return query->rope_theta;
#endif
}

static fvlm_status rope(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                        const fvlm_rope_apply* a) {
  LOOK(out);
#ifdef SABOTAGE_TURNS_BACK_IN_NO_ROOM
  if (call->workspace_size == 0) return fvlm_fail(call->error, FVLM_ERROR_WORKSPACE, "too little");
#endif
  const int64_t half = query->rotary_dim / 2;
  for (int64_t r = 0; r < query->rows; ++r)
    for (int64_t h = 0; h < query->heads; ++h) {
      const float* x = head_of(a->x, r, h);
#ifdef SABOTAGE_BORROWS_STRIDES
      float* out = (float*)a->out->data + r * a->x->strides[0] + h * a->x->strides[1];
#elif defined(SABOTAGE_FLATTENS_IN_PLACE)
      float* out = head_of(a->out, r, h);
      if (a->out->data == a->x->data) x = out = (float*)a->out->data + (r * query->heads + h) * query->head_dim;
#else
      float* out = head_of(a->out, r, h);
#endif
#ifdef SABOTAGE_FORGETS_THE_REST
      for (int64_t c = query->rotary_dim; c < query->rotary_dim; ++c) out[c] = x[c];
#else
      for (int64_t c = query->rotary_dim; c < query->head_dim; ++c) out[c] = x[c];
#endif
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            ((const int32_t*)a->positions->data)[r] * pow(theta_of(query), -2.0 * (double)i / query->rotary_dim);
#ifdef SABOTAGE_IGNORES_INVERSE
        const float cosine = (float)cos(angle), sine = (float)sin(angle);
#else
        const float cosine = (float)cos(angle), sine = (float)(a->inverse ? -sin(angle) : sin(angle));
#endif
        const float first = x[i], second = x[i + half];
        out[i] = first * cosine - second * sine;
        out[i + half] = second * cosine + first * sine;
      }
    }
  return FVLM_OK;
}

static float sigmoid(float x) {
#ifdef SABOTAGE_OVERFLOWS
  return expf(x) / (1 + expf(x));
#else
  return 1 / (1 + expf(-x));
#endif
}

struct swiglu_piece {
  const fvlm_kernels_query* query;
  const fvlm_swiglu_forward* arguments;
};

static void swiglu_rows(void* context, int64_t begin, int64_t end) {
  const struct swiglu_piece* piece = (const struct swiglu_piece*)context;
  const fvlm_swiglu_forward* a = piece->arguments;
#ifdef SABOTAGE_FORGETS_WHERE_IT_BEGINS
  end -= begin, begin = 0;
#endif
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < piece->query->width; ++c)
      put(a->y, r, c, get(a->gate, r, c) * sigmoid(get(a->gate, r, c)) * get(a->up, r, c));
}

static fvlm_status swiglu_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                  const fvlm_swiglu_forward* a) {
  LOOK(y);
  struct swiglu_piece all = {query, a};
  const int64_t rows = 32768 / query->width;
  call->host->parallel_for(call->host, query->rows, rows > 0 ? rows : 1, swiglu_rows, &all);
  return FVLM_OK;
}

static UNUSED fvlm_status swiglu_backward(fvlm_instance* instance, const fvlm_call* call,
                                          const fvlm_kernels_query* query, const fvlm_swiglu_backward* a) {
  LOOK(d_up);
  for (int64_t r = 0; r < query->rows; ++r)
    for (int64_t c = 0; c < query->width; ++c) {
      const float gate = get(a->gate, r, c), up = get(a->up, r, c), d_y = get(a->d_y, r, c), s = sigmoid(gate);
      put(a->d_gate, r, c, d_y * up * s * (1 + gate * (1 - s)));
#ifdef SABOTAGE_READS_WHAT_IT_WROTE
      put(a->d_up, r, c, d_y * get(a->gate, r, c) * sigmoid(get(a->gate, r, c)));
#else
      put(a->d_up, r, c, d_y * gate * s);
#endif
    }
  return FVLM_OK;
}

static fvlm_status scaled_rows_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                       const fvlm_scaled_rows_forward* a) {
  LOOK(scaled_bias);
  for (int64_t m = 0; m < query->rows; ++m)
    for (int64_t r = 0; r < query->width; ++r) {
      const float scale = row_of(a->scale, m)[r];
      row_of(a->scaled_bias, m)[r] = scale * row_of(a->bias, m)[r];
      for (int64_t c = 0; c < query->inner; ++c)
        head_of(a->scaled_weight, m, r)[c] = scale * head_of(a->weight, m, r)[c];
    }
  return FVLM_OK;
}

static fvlm_status scaled_rows_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                        const fvlm_scaled_rows_backward* a) {
  LOOK(d_bias);
  for (int64_t m = 0; m < query->rows; ++m)
    for (int64_t r = 0; r < query->width; ++r) {
      const float scale = row_of(a->scale, m)[r], bias = a->d_scaled_bias ? row_of(a->d_scaled_bias, m)[r] : 0;
      double along = bias * row_of(a->bias, m)[r];
      for (int64_t c = 0; a->d_scaled_weight && c < query->inner; ++c) {
        const float came = head_of(a->d_scaled_weight, m, r)[c];
        along += (double)came * head_of(a->weight, m, r)[c];
        if (!a->d_weight) continue;
#ifdef SABOTAGE_PACKS_GRADIENTS
        float* d_weight = (float*)a->d_weight->data + (m * query->width + r) * query->inner + c;
#else
        float* d_weight = head_of(a->d_weight, m, r) + c;
#endif
        *d_weight = (a->accumulate ? *d_weight : 0) + scale * came;
      }
      if (a->d_bias) row_of(a->d_bias, m)[r] = (a->accumulate ? row_of(a->d_bias, m)[r] : 0) + scale * bias;
#ifdef SABOTAGE_FREEZES_TOGETHER
      if (!a->d_weight) continue;
#endif
      if (a->d_scale) row_of(a->d_scale, m)[r] = (a->accumulate ? row_of(a->d_scale, m)[r] : 0) + (float)along;
    }
  return FVLM_OK;
}

static const fvlm_kernels_v1 kernels = {{sizeof kernels, create_instance, destroy_instance},
                                        supports,
                                        requirements,
#if defined(SABOTAGE_KEEPS_THE_QUERY) || defined(SABOTAGE_KEEPS_ONE_PLAN)
                                        prepare,
#else
                                        NULL,
#endif
                                        rmsnorm_forward,
                                        rmsnorm_backward,
                                        NULL,
                                        NULL,
                                        rope,
                                        swiglu_forward,
#ifdef SABOTAGE_HAS_NO_BACKWARD
                                        NULL /* swiglu_backward */,
#else
                                        swiglu_backward,
#endif
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        scaled_rows_forward,
                                        scaled_rows_backward,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PLUGIN("kernels", FVLM_KERNELS_KIND, kernels)
