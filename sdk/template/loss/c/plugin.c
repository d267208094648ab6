/* @NAME@: linear head and cross-entropy in plain C; logits are computed when they are needed and never stored. Correct,
 * short and slow: a starting point. fvlm/loss.h specifies each function. */
#include <fvlm/loss.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a task of parallel_for reads and writes. */
typedef struct work {
  int64_t tokens, width, vocab;
  const fvlm_tensor *hidden, *weight;
  const int64_t* targets;
  const float* d_losses;
  float *losses, *logsumexp; /* logsumexp is saved by forward for backward, or NULL */
  fvlm_tensor *d_hidden, *d_weight;
  int accumulate;
} work;

static float* row_of(const fvlm_tensor* tensor, int64_t row) {
  return (float*)tensor->data + row * tensor->strides[0];
}

static float logit(const work* w, int64_t token, int64_t word) {
  const float *hidden = row_of(w->hidden, token), *weight = row_of(w->weight, word);
  float sum = 0;
  for (int64_t i = 0; i < w->width; ++i) sum += hidden[i] * weight[i];
  return sum;
}

/* The gradient of the objective with respect to a logit: (softmax - one-hot) d_loss. */
static float d_logit(const work* w, int64_t token, int64_t word) {
  const float p = expf(logit(w, token, word) - w->logsumexp[token]);
  return (p - (word == w->targets[token] ? 1 : 0)) * w->d_losses[token];
}

static void add_scaled(float* sum, float factor, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

/* Online softmax: the sum of exp(logit - largest) is rescaled whenever a larger logit comes. */
static void forward_tokens(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t token = begin; token < end; ++token) {
    w->losses[token] = 0;
    if (w->logsumexp) w->logsumexp[token] = 0;
    if (w->targets[token] < 0) continue;
    float largest = -INFINITY, sum = 0, target_logit = 0;
    for (int64_t word = 0; word < w->vocab; ++word) {
      const float value = logit(w, token, word);
      if (word == w->targets[token]) target_logit = value;
      if (value > largest) {
        sum *= expf(largest - value);
        largest = value;
      }
      sum += expf(value - largest);
    }
    w->losses[token] = largest + logf(sum) - target_logit;
    if (w->logsumexp) w->logsumexp[token] = largest + logf(sum);
  }
}

static void backward_tokens(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t token = begin; token < end; ++token) {
    float* d_hidden = row_of(w->d_hidden, token);
    memset(d_hidden, 0, (size_t)w->width * sizeof *d_hidden);
    if (w->targets[token] < 0) continue;
    for (int64_t word = 0; word < w->vocab; ++word) {
      add_scaled(d_hidden, d_logit(w, token, word), row_of(w->weight, word), w->width);
    }
  }
}

static void backward_words(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t word = begin; word < end; ++word) {
    float* d_weight = row_of(w->d_weight, word);
    if (!w->accumulate) memset(d_weight, 0, (size_t)w->width * sizeof *d_weight);
    for (int64_t token = 0; token < w->tokens; ++token) {
      if (w->targets[token] < 0) continue;
      add_scaled(d_weight, d_logit(w, token, word), row_of(w->hidden, token), w->width);
    }
  }
}

static int is_matrix(const fvlm_tensor* tensor) {
  return fvlm_is_rows(tensor, FVLM_FLOAT, 32, 2);
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
static const char* refusal(const fvlm_loss_query* query) {
  if (query->device.type != FVLM_CPU) return "runs on the CPU only";
  if (!fvlm_is_dtype(query->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (!fvlm_is_dtype(query->gradient_dtype, FVLM_FLOAT, 32)) return "float32 gradients only";
  return NULL;
}

static void supports(const fvlm_loss_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  const char* no = FVLM_HAS(query, vocab) ? refusal(query) : "query: struct_size is too small";
  if (no) {
    fvlm_answer(support, 0, "%s", no);
  } else {
    fvlm_answer(support, 10, "plain loops"); /* the reference has 1; raise it as this gets faster */
  }
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_loss_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, vocab) || !FVLM_HAS(out, saved)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
  }
  const fvlm_tensor_spec logsumexp = {{FVLM_FLOAT, 32, 1}, 1, {query->tokens, 0, 0, 0}};
  out->forward_workspace = 0;
  out->backward_workspace = 0;
  out->saved_count = query->needs_d_hidden || query->needs_d_weight ? 1 : 0;
  out->saved[0] = logsumexp;
  return FVLM_OK;
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                           const fvlm_loss_forward* arguments) {
  (void)instance;
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, vocab) || !FVLM_HAS(arguments, saved)) {
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "forward: struct_size is too small");
  }
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (!is_matrix(arguments->hidden) || !is_matrix(arguments->weight)) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "forward: float32 with contiguous rows only");
  }
  work w = {0};
  w.tokens = query->tokens;
  w.width = query->width;
  w.vocab = query->vocab;
  w.hidden = arguments->hidden;
  w.weight = arguments->weight;
  w.targets = (const int64_t*)arguments->targets->data;
  w.losses = (float*)arguments->losses->data;
  w.logsumexp = arguments->saved[0] ? (float*)arguments->saved[0]->data : NULL;
  call->host->parallel_for(call->host, w.tokens, 1, forward_tokens, &w);
  return FVLM_OK;
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                            const fvlm_loss_backward* arguments) {
  (void)instance;
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, vocab) || !FVLM_HAS(arguments, d_weight)) {
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "backward: struct_size is too small");
  }
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (!is_matrix(arguments->hidden) || !is_matrix(arguments->weight) ||
      (arguments->d_hidden && !is_matrix(arguments->d_hidden)) ||
      (arguments->d_weight && !is_matrix(arguments->d_weight))) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "backward: float32 with contiguous rows only");
  }
  work w = {0};
  w.tokens = query->tokens;
  w.width = query->width;
  w.vocab = query->vocab;
  w.hidden = arguments->hidden;
  w.weight = arguments->weight;
  w.targets = (const int64_t*)arguments->targets->data;
  w.d_losses = (const float*)arguments->d_losses->data;
  w.logsumexp = (float*)arguments->saved[0]->data;
  w.d_hidden = arguments->d_hidden;
  w.d_weight = arguments->d_weight;
  w.accumulate = arguments->accumulate_d_weight;
  if (w.d_hidden) call->host->parallel_for(call->host, w.tokens, 1, backward_tokens, &w);
  if (w.d_weight) call->host->parallel_for(call->host, w.vocab, 16, backward_words, &w);
  return FVLM_OK;
}

static const fvlm_loss_v1 table = {
    .base = {sizeof(fvlm_loss_v1), create, destroy},
    .supports = supports,
    .requirements = requirements,
    .forward = forward,
    .backward = backward,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_LOSS_KIND) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
