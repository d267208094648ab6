/* Optimizers of algorithms that no header describes, in float32, an element at a time: AdamW under another name, and
 * with -DLION and -DSGD two more. Gradients in float32 or bfloat16, the parameter in float32 or bfloat16. */
#include "mutant.h"

#include <math.h>

#if defined(LION)
#define ALGORITHM "lion"
#elif defined(SGD)
#define ALGORITHM "sgd"
#else
#define ALGORITHM "steady"
#endif

#if defined(SGD)
static const fvlm_hyperparameter hyperparameters[] = {
    {"lr", 1e-2, 0, 10}, {"momentum", 0.9, 0, 1}, {"weight_decay", 0.01, 0, 1}};
#else
static const fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 10},
                                                      {"beta1", 0.9, 0, 1},
                                                      {"beta2", 0.99, 0, 1},
                                                      {"eps", 1e-8, 0, 1},
                                                      {"weight_decay", 0.01, 0, 1}};
#endif
enum { hyper_count = sizeof hyperparameters / sizeof hyperparameters[0] };

typedef struct work {
  const fvlm_optimizer_query* query;
  const fvlm_optimizer_step* a;
  const int64_t* segment;
  const float* hyper;
  float* scratch; /* the scaled gradient, where one defect keeps it */
  double count;
  float scale;
  int skip, deterministic;
  const float* gradient;
} work;

static float shared[1 << 16];
static int64_t calls_of_all;
static struct {
  const void* instance;
  float moment[1 << 16];
} by_address[2];

static float widen(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

static uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (is("rounds_ties_away")) return (uint16_t)((bits + 0x8000) >> 16);
  if (is("truncates")) return (uint16_t)(bits >> 16);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float gradient_at(const work* w, int64_t i) {
  if (w->query->gradient_dtype.bits != 16) return w->gradient[i];
  const uint16_t bits = ((const uint16_t*)w->gradient)[i];
  return widen(is("cuts_bfloat16") ? bits & 0xfffe : bits);
}

static void elements(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const fvlm_optimizer_step* a = w->a;
  float *master = (float*)a->master->data, *m = (float*)a->state[0]->data;
  const float* h = w->hyper;
  int64_t first = w->segment[0];
  if (is("counts_in_32_bits")) first = (int32_t)first;
  for (int64_t k = begin; k < end; ++k) {
    const int64_t i = first + k;
    float scale = w->scale;
    if (is("ignores_scale_of_long_segments") && k >= 4096) scale = 1;
    if (is("ignores_scale_of_bfloat16") && w->query->gradient_dtype.bits == 16) scale = 1;
    double g = (double)gradient_at(w, i) * scale;
    if (w->scratch) {
      if (!is("trusts_the_workspace")) w->scratch[i] = (float)g;
      if (is("trusts_the_workspace") && k % 8 != 7) w->scratch[i] = (float)g;
      g = w->scratch[i];
    }
    if (is("multiplies_by_skip")) g *= !w->skip;
    double lr = h[0];
    if (is("multiplies_by_skip") && w->skip) lr = 0;
    float* moment = m + i;
    if (is("keeps_moments_by_instance") && i < 1 << 16) moment = by_address[0].moment + i;
    if (is("turns_with_the_flag") && !w->deterministic) g *= 1.01;
    if (is("reads_in_front") && w->gradient[i - (i == 0)] > 1e30F) g += 1e-3;
    if (is("clips_long_segments") && k >= 4096 && fabs(g) > 1) g = g > 0 ? 1 : -1;
#if defined(SGD)
    const double decay = h[2];
    *moment = (float)(h[1] * *moment + g);
    double next = master[i] * (1 - lr * decay) - lr * *moment;
#elif defined(LION)
    const double decay = h[4], mixed = h[1] * *moment + (1 - h[1]) * g;
    *moment = (float)(h[2] * *moment + (1 - h[2]) * g);
    double next = master[i] * (1 - lr * decay) - lr * ((mixed > 0) - (mixed < 0));
#else
    float* v = (float*)a->state[1]->data;
    const double beta1 = h[1], beta2 = h[2], decay = h[4], eps = is("divides_by_zero") ? 0 : h[3];
    *moment = (float)(beta1 * *moment + (1 - beta1) * g);
    v[i] = (float)(beta2 * v[i] + (1 - beta2) * g * g);
    double next = master[i] * (1 - lr * decay) - lr / (1 - pow(beta1, w->count)) * *moment /
                                                     (sqrt((double)v[i]) / sqrt(1 - pow(beta2, w->count)) + eps);
#endif
    if (is("decays_by_itself")) next -= master[i] * 1e-3 * decay;
    if (is("climbs")) next = 2 * master[i] - next;
    if (is("leaves_the_master") && a->parameter) {
      ((uint16_t*)a->parameter->data)[i] = narrow((float)next);
      if (k % 2) continue;
    }
    master[i] = (float)next;
    if (a->parameter && !(is("forgets_the_copy") && k == w->segment[1] * w->segment[2] - 1))
      ((uint16_t*)a->parameter->data)[i] = narrow(master[i]);
  }
}

static const char* refusal(const fvlm_optimizer_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!fvlm_is_dtype(q->gradient_dtype, FVLM_FLOAT, 32) && !fvlm_is_dtype(q->gradient_dtype, FVLM_BFLOAT, 16))
    return "gradients in float32 or bfloat16 only";
  if (!fvlm_is_dtype(q->parameter_dtype, FVLM_FLOAT, 32) && !fvlm_is_dtype(q->parameter_dtype, FVLM_BFLOAT, 16))
    return "parameters in float32 or bfloat16 only";
  return NULL;
}

static void supports(const fvlm_optimizer_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, segments) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "an element at a time");
}

static int32_t states(const fvlm_optimizer_query* query, fvlm_optimizer_state* out) {
  const fvlm_dtype float32 = {FVLM_FLOAT, 32, 1};
  (void)query;
  out[0] = (fvlm_optimizer_state){"m", float32};
#if defined(LION) || defined(SGD)
  return 1;
#else
  out[1] = (fvlm_optimizer_state){is("names_states_alike") ? "m" : "v", float32};
  return 2;
#endif
}

static uint64_t workspace_of(const fvlm_optimizer_query* q) {
  return is("trusts_the_workspace") ? (uint64_t)q->elements * sizeof(float) : 0;
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_optimizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, segments, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  out->forward_workspace = out->backward_workspace = workspace_of(query);
  out->saved_count = 0;
  return FVLM_OK;
}

/* Where one group's numbers lie, or where a defect takes them to lie. */
static int64_t group_of(int64_t group) {
  if (is("knows_4_groups")) return group < 4 ? group : 0;
  if (is("knows_64_groups")) return group % 64;
  return is("takes_group_0") ? 0 : group;
}

static int64_t segments_of(const fvlm_optimizer_query* query) {
  if (is("knows_64_segments") && query->segment_count > 64) return 64;
  if (is("knows_256_segments") && query->segment_count > 256) return 256;
  return query->segment_count;
}

static void copy_all(const fvlm_optimizer_query* query, const fvlm_optimizer_step* a) {
  for (int64_t i = 0; i < query->elements; ++i)
    ((uint16_t*)a->parameter->data)[i] = narrow(((const float*)a->master->data)[i]);
}

static fvlm_status step(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query,
                        const fvlm_optimizer_step* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, segments, call->error);
  NEED(a, skip, call->error);
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "too little");
  const int32_t skip = *(const int32_t*)a->skip->data;
  const int big = query->elements > 4096;
  ++instance->calls, ++calls_of_all;
  if (skip && !is("multiplies_by_skip") && !(is("ignores_skip_of_long_arenas") && big) &&
      !(is("skips_by_sign") && skip < 0))
    return FVLM_OK;
  work w = {.query = query, .a = a, .scale = *(const float*)a->scale->data, .skip = skip};
  w.deterministic = (call->flags & FVLM_DETERMINISTIC) != 0;
  w.count = (double)*(const int64_t*)a->step->data;
  if (is("counts_calls")) w.count = (double)instance->calls;
  if (is("counts_calls_of_all")) w.count = (double)calls_of_all;
  if (is("ignores_scale")) w.scale = 1;
  if (is("trusts_the_workspace")) w.scratch = (float*)call->workspace;
  w.gradient = (const float*)a->gradient->data;
  if (is("keeps_pointers")) {
    if (!instance->pointer || instance->kept_rows != query->elements) instance->pointer = w.gradient;
    instance->kept_rows = query->elements;
    w.gradient = (const float*)instance->pointer;
  }
  double total = 0;
  for (int64_t i = 0; is("keeps_gradients_by_totals") && i < query->elements && i < 1 << 16; ++i)
    total += fabs((double)w.gradient[i]) * 1024;
  if (is("keeps_gradients_by_totals") && query->elements < 1 << 16 && query->gradient_dtype.bits == 32) {
    if (instance->kept_rows != query->elements || fabs(instance->total - total) > 1e-6 * total)
      memcpy(shared, w.gradient, (size_t)query->elements * sizeof(float));
    instance->kept_rows = query->elements, instance->total = total;
    w.gradient = shared;
  }
  if (is("shares_scratch") && query->elements < 1 << 16 && query->gradient_dtype.bits == 32) {
    memcpy(shared, w.gradient, (size_t)query->elements * sizeof(float));
    w.gradient = shared;
  }
  if (is("keeps_moments_by_instance") && w.count == 1) memset(by_address, 0, sizeof by_address);
  const int64_t* segments = (const int64_t*)a->segments->data;
  if (is("keeps_segments") && query->segment_count <= 8) {
    if (instance->segments != query->segment_count)
      memcpy(instance->listed, segments, (size_t)query->segment_count * 4 * sizeof *segments);
    instance->segments = query->segment_count;
    segments = instance->listed;
  }
  const int64_t count = segments_of(query);
  if (is("copies_gaps") && a->parameter) copy_all(query, a);
  for (int64_t s = 0; s < count; ++s) {
    int64_t segment[4];
    memcpy(segment, segments + 4 * s, sizeof segment);
    int64_t size = segment[1] * segment[2];
    if (is("knows_a_million") && size > 1 << 20) size = 1 << 20;
    if (is("reads_in_front_of_segments") && segment[0] > 0 &&
        *(volatile const float*)((const float*)a->gradient->data + segment[0] - 1) > 1e30F)
      continue;
    if (is("writes_behind_and_puts_back") && segment[0] + size < query->elements) {
      volatile float* behind = (float*)a->master->data + segment[0] + size;
      const float held = *behind;
      *behind = 0;
      *behind = held;
    }
    if (is("touches_gaps") && s == count - 1) size = query->elements - segment[0];
    const int threads = call->host->parallel_threads(call->host);
    if (is("drops_a_tail_of_7") && threads == 7) size -= size % 7;
    if (is("drops_a_tail_of_many") && threads > 64) size -= size % threads;
    w.segment = segment;
    w.hyper = (const float*)a->hyper->data + group_of(segment[3]) * hyper_count;
    if (is("keeps_the_rates")) {
      if (!instance->planned.rows) memcpy(instance->kept, w.hyper, sizeof(float) * hyper_count);
      instance->planned.rows = 1;
      w.hyper = instance->kept;
    }
    call->host->parallel_for(call->host, size, is("drops_a_tail_of_7") ? 1 : 64, elements, &w);
  }
  return FVLM_OK;
}

static const fvlm_optimizer_v1 optimizer = {{sizeof optimizer, create, destroy},
                                            ALGORITHM,
                                            hyperparameters,
                                            hyper_count,
                                            supports,
                                            states,
                                            requirements,
                                            NULL,
                                            step};

PLUGIN("optimizer_mutant", FVLM_OPTIMIZER_KIND(ALGORITHM), optimizer)
