/* AdamW, an element at a time; gradients and masters in float32, the parameter in float32 or bfloat16. */
#include "common.h"

#include <math.h>

static const fvlm_hyperparameter hyperparameters[] = {
#ifdef SABOTAGE_EXCLUDES_A_RATE_OF_0
    {"lr", 1e-3, 1e-9, 10},
#else
    {"lr", 1e-3, 0, 10},
#endif
    {"beta1", 0.9, 0, 1},         {"beta2", 0.999, 0, 1},
#ifdef SABOTAGE_BOUNDS_EXCLUDE_FALLBACK
    {"eps", 1e-8, 1e-6, 1},
#else
    {"eps", 1e-8, 0, 1},
#endif
    {"weight_decay", 0.01, 0, 1},
};
enum { hyper_count = sizeof hyperparameters / sizeof hyperparameters[0] };

static const char* refusal(const fvlm_optimizer_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->gradient_dtype, FVLM_FLOAT, 32)) return "gradients in float32 only";
  if (!same_dtype(q->parameter_dtype, FVLM_FLOAT, 32) && !same_dtype(q->parameter_dtype, FVLM_BFLOAT, 16))
    return "parameters in float32 or bfloat16 only";
  return NULL;
}

static void supports(const fvlm_optimizer_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, segments) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "an element at a time");
}

static int32_t states(const fvlm_optimizer_query* query, fvlm_optimizer_state* out) {
  (void)query;
  const fvlm_dtype float32 = {FVLM_FLOAT, 32, 1};
  out[0] = (fvlm_optimizer_state){"m", float32};
  out[1] = (fvlm_optimizer_state){"v", float32};
  return 2;
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_optimizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, segments, error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  out->forward_workspace = out->backward_workspace = 0;
  out->saved_count = 0;
  return FVLM_OK;
}

static uint16_t bfloat16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
#ifdef SABOTAGE_ROUNDS_DOWN
  return (uint16_t)(bits >> 16);
#else
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}

static fvlm_status step(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query,
                        const fvlm_optimizer_step* a) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, segments, call->error);
  NEED(a, skip, call->error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
#ifndef SABOTAGE_IGNORES_SKIP
  if (*(const int32_t*)a->skip->data) return FVLM_OK;
#endif
  float scale = *(const float*)a->scale->data;
#ifdef SABOTAGE_IGNORES_SCALE
  scale = 1;
#endif
#ifdef SABOTAGE_COUNTS_ITSELF
  const double count = 1;
#else
  const double count = (double)*(const int64_t*)a->step->data;
#endif
  float *master = (float*)a->master->data, *m = (float*)a->state[0]->data, *v = (float*)a->state[1]->data;
  const float* gradient = (const float*)a->gradient->data;
  const int64_t* segments = (const int64_t*)a->segments->data;
  for (int64_t s = 0; s < query->segment_count; ++s) {
    const int64_t* segment = segments + 4 * s;
    int64_t begin = segment[0], end = begin + segment[1] * segment[2], group = segment[3];
#ifdef SABOTAGE_TOUCHES_GAPS
    if (s == query->segment_count - 1) end = query->elements;
#endif
#ifdef SABOTAGE_IGNORES_GROUPS
    group = 0;
#endif
    const float* h = (const float*)a->hyper->data + group * hyper_count;
#ifdef SABOTAGE_KEEPS_THE_RATES
    static __thread float kept[8][hyper_count]; /* of the first step */
    if (count == 1) memcpy(kept[group], h, sizeof kept[group]);
    h = kept[group];
#endif
    const double lr = h[0], beta1 = h[1], beta2 = h[2], eps = h[3], decay = h[4];
    const double first = 1 - pow(beta1, count), second = sqrt(1 - pow(beta2, count));
    for (int64_t i = begin; i < end; ++i) {
      const double g = (double)gradient[i] * scale;
      m[i] = (float)(beta1 * m[i] + (1 - beta1) * g);
      v[i] = (float)(beta2 * v[i] + (1 - beta2) * g * g);
      master[i] = (float)(master[i] * (1 - lr * decay) - lr / first * m[i] / (sqrt((double)v[i]) / second + eps));
      if (a->parameter) ((uint16_t*)a->parameter->data)[i] = bfloat16_of(master[i]);
    }
  }
  return FVLM_OK;
}

static const fvlm_optimizer_v1 optimizer = {{sizeof optimizer, create_instance, destroy_instance},
                                            "adamw",
                                            hyperparameters,
                                            hyper_count,
                                            supports,
                                            states,
                                            requirements,
                                            NULL,
                                            step};

PLUGIN("optimizer", FVLM_OPTIMIZER_KIND("adamw"), optimizer)
