/* rmsnorm and swiglu in float32 and bfloat16, rows in pieces; an rmsnorm's weight gradient columns in pieces. */
#include "mutant.h"

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
  if (is("rounds_half_up")) return (uint16_t)((bits + 0x8000) >> 16);
  if (is("truncates")) return (uint16_t)(bits >> 16);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float get(const fvlm_tensor* t, int64_t r, int64_t c) {
  const int64_t at = t->ndim == 1 ? c : offset_of(r, t->strides[0]) + c;
  return t->dtype.bits == 16 ? widen(((const uint16_t*)t->data)[at]) : ((const float*)t->data)[at];
}
static void put(const fvlm_tensor* t, int64_t r, int64_t c, float value) {
  const int64_t at = t->ndim == 1 ? c : offset_of(r, t->strides[0]) + c;
  if (t->dtype.bits == 16)
    ((uint16_t*)t->data)[at] = narrow(value);
  else
    ((float*)t->data)[at] = value;
}

static const char* refusal(const fvlm_kernels_query* q) {
  const uint32_t known = FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | (is("takes_any_option") ? ~0x3fu : 0);
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!fvlm_is_dtype(q->dtype, FVLM_FLOAT, 32) && !fvlm_is_dtype(q->dtype, FVLM_BFLOAT, 16)) return "another type";
  if (!fvlm_is_dtype(q->gradient_dtype, FVLM_FLOAT, 32) &&
      !(fvlm_is_dtype(q->gradient_dtype, FVLM_BFLOAT, 16) && q->dtype.bits == 16))
    return "gradients of another type";
  if (q->op != FVLM_OP_RMSNORM && q->op != FVLM_OP_SWIGLU) return "rmsnorm and swiglu only";
  if (q->options & ~known) return "an option is not known here";
  return NULL;
}

static void supports(const fvlm_kernels_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, rope_theta) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

static uint64_t workspace_of(const fvlm_kernels_query* query) {
  return query->op == FVLM_OP_RMSNORM ? (uint64_t)query->rows * 2 * sizeof(float) : 0;
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, rope_theta, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  if (is("leaks_for_one_query") && query->op == FVLM_OP_SWIGLU && query->width % 2 == 1) {
    static char* volatile kept; /* the compiler may leave out memory that nobody sees */
    kept = (char*)malloc(24), kept[0] = 1;
  }
  out->forward_workspace = out->backward_workspace = workspace_of(query);
  out->saved_count = 0;
  return FVLM_OK;
}

static fvlm_kernels_query plan; /* which one defect keeps for all its instances */

static fvlm_status prepare(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, rope_theta, call->error);
  (void)instance;
  return FVLM_OK;
}

typedef struct work {
  const fvlm_kernels_query* query;
  const fvlm_norm_forward* norm;
  const fvlm_norm_backward* norm_backward;
  const fvlm_swiglu_forward* swiglu;
  const fvlm_swiglu_backward* swiglu_backward;
  float* spreads; /* of rows, and what d_y holds along them */
} work;

static float spread_of(const work* w, const fvlm_tensor* s, int64_t r) {
  const int64_t n = w->query->width;
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += (double)get(s, r, c) * get(s, r, c);
  return (float)(1 / sqrt(sum / (double)n + w->query->epsilon));
}

static void norm_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_norm_forward* a = w->norm;
  for (int64_t r = begin; r < end; ++r) {
    const fvlm_tensor* s = a->residual ? a->sum : a->x;
    for (int64_t c = 0; a->residual && c < w->query->width; ++c)
      put(a->sum, r, c, get(a->x, r, c) + get(a->residual, r, c));
    const float spread = w->spreads[r] != 0 ? w->spreads[r] : spread_of(w, s, r);
    w->spreads[r] = spread;
    for (int64_t c = 0; c < w->query->width; ++c) {
      if (is("knows_2048_weights") && c >= 2048 + 64) break;
      const int unrounded = is("normalizes_before_rounding") && a->residual;
      const float value = unrounded ? get(a->x, r, c) + get(a->residual, r, c) : get(s, r, c);
      put(a->y, r, c, value * spread * get(a->weight, 0, c));
    }
  }
}

static void norm_backward_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_norm_backward* a = w->norm_backward;
  const int64_t n = w->query->width;
  for (int64_t r = begin; r < end; ++r) {
    const double spread = spread_of(w, a->s, r);
    double along = 0;
    for (int64_t c = 0; c < n; ++c) along += (double)get(a->d_y, r, c) * get(a->weight, 0, c) * get(a->s, r, c);
    along *= spread * spread * spread / (double)n;
    for (int64_t c = 0; c < n; ++c) {
      const double d = get(a->d_y, r, c) * get(a->weight, 0, c) * spread - along * get(a->s, r, c);
      if (is("adds_across_pieces") && a->d_weight)
        put(a->d_weight, 0, c, get(a->d_weight, 0, c) + (float)(get(a->d_y, r, c) * get(a->s, r, c) * spread));
      put(a->d_x, r, c, (float)d + (a->d_sum ? get(a->d_sum, r, c) : 0));
    }
  }
}

static void norm_weight_columns(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_norm_backward* a = w->norm_backward;
  for (int64_t c = begin; c < end; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < w->query->rows; ++r) sum += (double)get(a->d_y, r, c) * get(a->s, r, c) * w->spreads[r];
    put(a->d_weight, 0, c, (float)sum + (a->accumulate ? get(a->d_weight, 0, c) : 0));
  }
}

static float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

static void swiglu_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_swiglu_forward* a = w->swiglu;
  for (int64_t each = begin; each < end; ++each) {
    const int64_t r = is("counts_rows_in_16_bits") ? (uint16_t)each : each;
    for (int64_t c = 0; c < w->query->width; ++c) {
      if (is("knows_1024_columns") && c >= 1024) break;
      if (is("knows_a_million") && r * w->query->width + c >= 1 << 20) break;
      put(a->y, r, c, get(a->gate, r, c) * sigmoid(get(a->gate, r, c)) * get(a->up, r, c));
    }
    if (is("reads_whole_vectors") && w->query->width % 8 && get(a->gate, r, (w->query->width + 7) / 8 * 8 - 1) > 1e30F)
      put(a->y, r, 0, get(a->y, r, 0));
    if (is("reads_in_front") && get(a->gate, r, -1) > 1e30F) put(a->y, r, 0, get(a->y, r, 0));
  }
}

static void swiglu_backward_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_swiglu_backward* a = w->swiglu_backward;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < w->query->width; ++c) {
      const float gate = get(a->gate, r, c), up = get(a->up, r, c), d_y = get(a->d_y, r, c), s = sigmoid(gate);
      put(a->d_gate, r, c, d_y * up * s * (1 + gate * (1 - s)));
      put(a->d_up, r, c, d_y * gate * s);
    }
}

#define BEGIN(last)                                                                                                    \
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;                                                              \
  NEED(query, rope_theta, call->error);                                                                                \
  NEED(a, last, call->error);                                                                                          \
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));                              \
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "too little");      \
  if (is("keeps_one_plan")) {                                                                                          \
    if (memcmp(&instance->planned, query, sizeof *query) != 0) plan = instance->planned = *query;                      \
    query = &plan;                                                                                                     \
  }                                                                                                                    \
  work w = {.query = query, .spreads = (float*)call->workspace}

#define LOOK(tensor)                                                                                                   \
  if (tensor_refusal(tensor, query->dtype.bits))                                                                       \
  return refuse(call->error, FVLM_ERROR_UNSUPPORTED, tensor_refusal(tensor, query->dtype.bits))

static fvlm_status rmsnorm_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_norm_forward* a) {
  BEGIN(saved);
  LOOK(a->x);
  LOOK(a->y);
  w.norm = a;
  memset(w.spreads, 0, (size_t)query->rows * sizeof(float));
  if (is("keeps_by_totals") && query->rows <= 64 && !a->residual) {
    /* The spreads of numbers with the same sum are those of the same numbers. */
    double total = 0;
    for (int64_t r = 0; r < query->rows; ++r)
      for (int64_t c = 0; c < query->width; ++c) total += rint(get(a->x, r, c) * 1048576);
    if (query->rows == instance->kept_rows && total == instance->total)
      memcpy(w.spreads, instance->kept, (size_t)query->rows * sizeof(float));
    instance->kept_rows = query->rows, instance->total = total;
  }
  call->host->parallel_for(call->host, query->rows, 1, norm_rows, &w);
  if (is("keeps_by_totals") && query->rows <= 64)
    memcpy(instance->kept, w.spreads, (size_t)query->rows * sizeof(float));
  if (is("turns_after_512_rows") && query->rows > 512) {
    static int turn;
    put(a->y, 0, 0, get(a->y, 0, 0) * (1 + 3e-7F * (float)(turn++ % 3)));
  }
  return FVLM_OK;
}

static fvlm_status rmsnorm_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                    const fvlm_norm_backward* a) {
  BEGIN(d_bias);
  LOOK(a->d_y);
  LOOK(a->s);
  LOOK(a->d_x);
  w.norm_backward = a;
  for (int64_t r = 0; r < query->rows; ++r) w.spreads[r] = spread_of(&w, a->s, r);
  if (a->d_weight && is("adds_across_pieces")) {
    for (int64_t c = 0; c < query->width && !a->accumulate; ++c) put(a->d_weight, 0, c, 0);
  } else if (a->d_weight) {
    call->host->parallel_for(call->host, query->width, 1, norm_weight_columns, &w);
  }
  call->host->parallel_for(call->host, query->rows, 1, norm_backward_rows, &w);
  return FVLM_OK;
}

static fvlm_status swiglu_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                  const fvlm_swiglu_forward* a) {
  BEGIN(y);
  LOOK(a->gate);
  LOOK(a->up);
  LOOK(a->y);
  w.swiglu = a;
  call->host->parallel_for(call->host, query->rows, 1, swiglu_rows, &w);
  return FVLM_OK;
}

static fvlm_status swiglu_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_swiglu_backward* a) {
  BEGIN(d_up);
  LOOK(a->gate);
  LOOK(a->up);
  LOOK(a->d_y);
  LOOK(a->d_gate);
  LOOK(a->d_up);
  w.swiglu_backward = a;
  call->host->parallel_for(call->host, query->rows, 1, swiglu_backward_rows, &w);
  return FVLM_OK;
}

static const fvlm_kernels_v1 kernels = {.base = {sizeof kernels, create, destroy},
                                        .supports = supports,
                                        .requirements = requirements,
                                        .prepare = prepare,
                                        .rmsnorm_forward = rmsnorm_forward,
                                        .rmsnorm_backward = rmsnorm_backward,
                                        .swiglu_forward = swiglu_forward,
                                        .swiglu_backward = swiglu_backward};

PLUGIN("kernels_mutant", FVLM_KERNELS_KIND, kernels)
