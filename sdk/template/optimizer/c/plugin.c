/* @NAME@: AdamW in plain C, as torch.optim.AdamW computes it. fvlm/optimizer.h specifies each function. For an
 * algorithm of your own, change ALGORITHM here and the kind in plugin.toml, then hyperparameters, states and update. */
#include <fvlm/optimizer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHM "adamw"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, HYPERPARAMETERS };

static const fvlm_hyperparameter hyperparameters[HYPERPARAMETERS] = {
    {"lr", 1e-3, 0, 10}, {"beta1", 0.9, 0, 1},         {"beta2", 0.999, 0, 1},
    {"eps", 1e-8, 0, 1}, {"weight_decay", 0.01, 0, 1},
};

/* One parameter slice of the flat buffers. */
typedef struct work {
  float *master, *m, *v;
  const float* gradient;
  float lr, beta1, beta2, eps, weight_decay, scale;
  float step_size, sqrt_bias_correction2; /* lr / (1 - beta1^t), sqrt(1 - beta2^t) */
} work;

static void update(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = w->gradient[i] * w->scale;
    w->m[i] += (1 - w->beta1) * (gradient - w->m[i]);
    w->v[i] = w->beta2 * w->v[i] + (1 - w->beta2) * gradient * gradient;
    const float denominator = sqrtf(w->v[i]) / w->sqrt_bias_correction2 + w->eps;
    w->master[i] -= w->lr * w->weight_decay * w->master[i];
    w->master[i] -= w->step_size * w->m[i] / denominator;
  }
}

/* The functions of the table. */

struct fvlm_instance {
  fvlm_device device;
};

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "config: struct_size is too small");
  if (config->device.type != FVLM_CPU) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  *instance = (fvlm_instance*)calloc(1, sizeof **instance);
  if (!*instance) return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory");
  (*instance)->device = config->device;
  return FVLM_OK;
}

static void destroy(fvlm_instance* instance) {
  free(instance);
}

/* The reason why this class is not supported; NULL if it is. */
static const char* refusal(const fvlm_optimizer_query* query) {
  if (query->device.type != FVLM_CPU) return "runs on the CPU only";
  if (!fvlm_is_dtype(query->gradient_dtype, FVLM_FLOAT, 32)) return "float32 gradients only";
  if (!fvlm_is_dtype(query->parameter_dtype, FVLM_FLOAT, 32)) return "float32 parameters only";
  return NULL;
}

static void supports(const fvlm_optimizer_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  const char* no = FVLM_HAS(query, segments) ? refusal(query) : "query: struct_size is too small";
  if (no) {
    fvlm_answer(support, 0, "%s", no);
  } else {
    fvlm_answer(support, 10, "plain loops"); /* the reference has 1; raise it as this gets faster */
  }
}

static int32_t states(const fvlm_optimizer_query* query, fvlm_optimizer_state* out) {
  const fvlm_optimizer_state m = {"m", {FVLM_FLOAT, 32, 1}}, v = {"v", {FVLM_FLOAT, 32, 1}};
  (void)query;
  out[0] = m;
  out[1] = v;
  return 2;
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_optimizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, segments) || !FVLM_HAS(out, saved)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
  }
  out->forward_workspace = 0;
  out->backward_workspace = 0;
  out->saved_count = 0;
  return FVLM_OK;
}

static fvlm_status step(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query,
                        const fvlm_optimizer_step* arguments) {
  (void)instance;
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, segments) || !FVLM_HAS(arguments, skip)) {
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "step: struct_size is too small");
  }
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (!fvlm_is_rows(arguments->master, FVLM_FLOAT, 32, 1) || !fvlm_is_rows(arguments->gradient, FVLM_FLOAT, 32, 1) ||
      !fvlm_is_rows(arguments->state[0], FVLM_FLOAT, 32, 1) || !fvlm_is_rows(arguments->state[1], FVLM_FLOAT, 32, 1)) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "step: contiguous float32 arenas only");
  }
  if (*(const int32_t*)arguments->skip->data) return FVLM_OK;
  const double t = (double)*(const int64_t*)arguments->step->data;

  for (int64_t s = 0; s < query->segment_count; ++s) {
    const fvlm_optimizer_segment* segment = &query->segments[s];
    const float* hyper = (const float*)arguments->hyper->data + segment->group * arguments->hyper->strides[0];
    work w;
    w.master = (float*)arguments->master->data + segment->offset;
    w.gradient = (const float*)arguments->gradient->data + segment->offset;
    w.m = (float*)arguments->state[0]->data + segment->offset;
    w.v = (float*)arguments->state[1]->data + segment->offset;
    w.lr = hyper[LR];
    w.beta1 = hyper[BETA1];
    w.beta2 = hyper[BETA2];
    w.eps = hyper[EPS];
    w.weight_decay = hyper[WEIGHT_DECAY];
    w.scale = *(const float*)arguments->scale->data;
    w.step_size = (float)(hyper[LR] / (1 - pow(hyper[BETA1], t)));
    w.sqrt_bias_correction2 = (float)sqrt(1 - pow(hyper[BETA2], t));
    call->host->parallel_for(call->host, segment->rows * segment->cols, 4096, update, &w);
  }
  return FVLM_OK;
}

static const fvlm_optimizer_v1 table = {
    .base = {sizeof(fvlm_optimizer_v1), create, destroy},
    .algorithm = ALGORITHM,
    .hyperparameters = hyperparameters,
    .hyperparameter_count = HYPERPARAMETERS,
    .supports = supports,
    .states = states,
    .requirements = requirements,
    .step = step,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_OPTIMIZER_KIND(ALGORITHM)) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
