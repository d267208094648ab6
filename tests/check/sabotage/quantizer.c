/* Eight bits a weight and a scale a row, in float32: "int8" as the ABI writes it, and "clip8", which clips what is
 * larger than half of a row's largest weight. */
#include "common.h"

#include <math.h>

typedef enum { int8_scheme, clip8_scheme } scheme;

static const char* refusal(const fvlm_quantizer_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->rows < 1 || q->cols < 1 || q->tokens < 0) return "rows, cols and tokens have to be sizes";
  return NULL;
}

static void supports(const fvlm_quantizer_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, tokens) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "a weight at a time");
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_quantizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, tokens, error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  out->forward_workspace = out->backward_workspace = 0;
  out->saved_count = 2;
  out->saved[0] = (fvlm_tensor_spec){{FVLM_INT, 8, 1}, 2, {query->rows, query->cols}};
  out->saved[1] = (fvlm_tensor_spec){{FVLM_FLOAT, 32, 1}, 1, {query->rows}};
  return FVLM_OK;
}

#define LOOK(last)                                                                                                     \
  (void)instance;                                                                                                      \
  NEED_CALL(call);                                                                                                     \
  NEED(query, tokens, call->error);                                                                                    \
  NEED(a, last, call->error);                                                                                          \
  if (refusal(query)) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", refusal(query))

static float scale_of(scheme which, const float* row, int64_t cols) {
  float most = 0;
  for (int64_t c = 0; c < cols; ++c)
    if (fabsf(row[c]) > most) most = fabsf(row[c]);
  return (which == clip8_scheme ? most / 2 : most) / 127;
}

static int8_t code_of(float weight, float scale) {
#ifndef SABOTAGE_DIVIDES_BY_ZERO
  if (scale == 0) return 0;
#endif
#ifdef SABOTAGE_TRUNCATES
  const float code = truncf(weight / scale);
#else
  const float code = rintf(weight / scale);
#endif
  return (int8_t)(code < -127 ? -127 : code > 127 ? 127 : code);
}

static fvlm_status pack_as(scheme which, fvlm_instance* instance, const fvlm_call* call,
                           const fvlm_quantizer_query* query, const fvlm_quantizer_pack* a) {
  LOOK(packed);
  for (int64_t r = 0; r < query->rows; ++r) {
    const float* row = row_of(a->weight, r);
    const float scale = ((float*)a->packed[1]->data)[r] = scale_of(which, row, query->cols);
    for (int64_t c = 0; c < query->cols; ++c)
      ((int8_t*)a->packed[0]->data)[r * query->cols + c] = code_of(row[c], scale);
  }
  return FVLM_OK;
}

static float weight_of(fvlm_tensor* const* packed, int64_t r, int64_t c, int64_t cols) {
  const float scale = ((const float*)packed[1]->data)[r];
#ifdef SABOTAGE_DIVIDES_BY_ZERO
  if (scale == 0) return NAN;
#endif
  return scale * (float)((const int8_t*)packed[0]->data)[r * cols + c];
}

static fvlm_status unpack(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_unpack* a) {
  LOOK(weight);
  for (int64_t r = 0; r < query->rows; ++r)
    for (int64_t c = 0; c < query->cols; ++c)
      row_of(a->weight, r)[c] = weight_of((fvlm_tensor* const*)a->packed, r, c, query->cols);
  return FVLM_OK;
}

static fvlm_status linear(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_linear* a) {
  LOOK(y);
  for (int64_t t = 0; t < a->x->shape[0]; ++t)
    for (int64_t r = 0; r < query->rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < query->cols; ++c)
        sum += row_of(a->x, t)[c] * weight_of((fvlm_tensor* const*)a->packed, r, c, query->cols);
#ifdef SABOTAGE_NEEDS_A_BIAS
      row_of(a->y, t)[r] = sum + (a->bias ? ((const float*)a->bias->data)[r] : 1);
#else
      row_of(a->y, t)[r] = sum + (a->bias ? ((const float*)a->bias->data)[r] : 0);
#endif
    }
  return FVLM_OK;
}

static fvlm_status linear_gradient(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                                   const fvlm_quantizer_linear_gradient* a) {
  LOOK(d_x);
  for (int64_t t = 0; t < a->d_y->shape[0]; ++t)
    for (int64_t c = 0; c < query->cols; ++c) {
      float sum = 0;
      for (int64_t r = 0; r < query->rows; ++r)
        sum += row_of(a->d_y, t)[r] * weight_of((fvlm_tensor* const*)a->packed, r, c, query->cols);
      row_of(a->d_x, t)[c] = sum;
    }
  return FVLM_OK;
}

static fvlm_status fake_forward_as(scheme which, fvlm_instance* instance, const fvlm_call* call,
                                   const fvlm_quantizer_query* query, const fvlm_fake_quantize_forward* a) {
  LOOK(out);
  for (int64_t r = 0; r < query->rows; ++r) {
    const float scale = scale_of(which, row_of(a->weight, r), query->cols);
    for (int64_t c = 0; c < query->cols; ++c) {
      row_of(a->out, r)[c] = scale * (float)code_of(row_of(a->weight, r)[c], scale);
#ifdef SABOTAGE_FAKES_DIFFERENTLY
      row_of(a->out, r)[c] *= 1.001f;
#endif
    }
  }
  return FVLM_OK;
}

static fvlm_status fake_backward_as(scheme which, fvlm_instance* instance, const fvlm_call* call,
                                    const fvlm_quantizer_query* query, const fvlm_fake_quantize_backward* a) {
  LOOK(d_weight);
  for (int64_t r = 0; r < query->rows; ++r) {
    const float scale = scale_of(which, row_of(a->weight, r), query->cols);
    for (int64_t c = 0; c < query->cols; ++c) {
      int passes = fabsf(row_of(a->weight, r)[c]) <= 127.5f * scale;
#ifdef SABOTAGE_PASSES_EVERYTHING
      passes = 1;
      (void)scale;
#endif
      row_of(a->d_weight, r)[c] = passes ? row_of(a->d_out, r)[c] : 0;
    }
  }
  return FVLM_OK;
}

#define SCHEME(name)                                                                                                   \
  static fvlm_status name##_pack(fvlm_instance* i, const fvlm_call* c, const fvlm_quantizer_query* q,                  \
                                 const fvlm_quantizer_pack* a) {                                                       \
    return pack_as(name##_scheme, i, c, q, a);                                                                         \
  }                                                                                                                    \
  static fvlm_status name##_fake_forward(fvlm_instance* i, const fvlm_call* c, const fvlm_quantizer_query* q,          \
                                         const fvlm_fake_quantize_forward* a) {                                        \
    return fake_forward_as(name##_scheme, i, c, q, a);                                                                 \
  }                                                                                                                    \
  static fvlm_status name##_fake_backward(fvlm_instance* i, const fvlm_call* c, const fvlm_quantizer_query* q,         \
                                          const fvlm_fake_quantize_backward* a) {                                      \
    return fake_backward_as(name##_scheme, i, c, q, a);                                                                \
  }                                                                                                                    \
  static const fvlm_quantizer_v1 name##_table = {{sizeof name##_table, create_instance, destroy_instance},             \
                                                 #name,                                                                \
                                                 8,                                                                    \
                                                 supports,                                                             \
                                                 requirements,                                                         \
                                                 NULL,                                                                 \
                                                 name##_pack,                                                          \
                                                 unpack,                                                               \
                                                 linear,                                                               \
                                                 linear_gradient,                                                      \
                                                 name##_fake_forward,                                                  \
                                                 name##_fake_backward,                                                 \
                                                 0};
SCHEME(int8)
SCHEME(clip8)

static const void* table_of(const char* kind) {
  if (strcmp(kind, FVLM_QUANTIZER_KIND("int8")) == 0) return &int8_table;
  return strcmp(kind, FVLM_QUANTIZER_KIND("clip8")) == 0 ? &clip8_table : NULL;
}
static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "quantizer", "1.0", table_of};
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
