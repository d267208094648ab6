/* Linear head and cross-entropy in float32: tokens in pieces, the weight's gradient words in pieces. */
#include "mutant.h"

#include <math.h>

typedef struct work {
  const fvlm_loss_query* query;
  const fvlm_tensor *hidden, *weight, *d_hidden, *d_weight;
  const int64_t* targets;
  const float* d_losses;
  float *losses, *sums; /* sums: the logarithm of each token's sum */
  int backward, accumulate;
} work;

static const float* row_of(const fvlm_tensor* t, int64_t row) {
  return (const float*)t->data + offset_of(row, t->strides[0]);
}

static float logit(const work* w, int64_t token, int64_t word) {
  const float *h = row_of(w->hidden, token), *row = row_of(w->weight, word);
  int64_t n = w->query->width;
  if (is("knows_4096_features") && n > 4096) n = 4096;
  float sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += h[d] * row[d];
  if (is("reads_whole_vectors") && n % 8 && row[(n + 7) / 8 * 8 - 1] > 1e30F) sum += 1e-20F;
  if (is("reads_in_front") && h[-1] > 1e30F) sum += 1e-20F;
  return sum;
}

static int64_t target_of(const work* w, int64_t token) {
  return is("keeps_targets_in_16_bits") && w->targets[token] >= 0 ? (uint16_t)w->targets[token] : w->targets[token];
}

/* 1 for the target; one defect takes the first of the largest logits for it where the target's is as large. */
static float chosen_word(const work* w, int64_t token, int64_t word, float largest) {
  const int64_t target = target_of(w, token);
  if (is("takes_the_first_largest") && logit(w, token, target) == largest) {
    for (int64_t other = 0; other <= target; ++other)
      if (logit(w, token, other) == largest) return word == other;
  }
  return word == target;
}

static void token_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t token = begin; token < end; ++token) {
    int64_t words = w->query->vocab;
    if (is("sums_32768_words") && words > 32768) words = 32768;
    float largest = -INFINITY;
    if (w->losses) w->losses[token] = 0;
    float* d_hidden = w->d_hidden ? (float*)row_of(w->d_hidden, token) : NULL;
    if (d_hidden) memset(d_hidden, 0, (size_t)w->query->width * sizeof(float));
    if (target_of(w, token) < 0 || (is("knows_8192_tokens") && token >= 8192)) continue;
    for (int64_t word = 0; word < words; ++word) largest = fmaxf(largest, logit(w, token, word));
    double sum = 0;
    for (int64_t word = 0; word < words; ++word) sum += expf(logit(w, token, word) - largest);
    w->sums[2 * token] = largest + (float)log(sum), w->sums[2 * token + 1] = largest;
    if (w->losses) w->losses[token] = w->sums[2 * token] - logit(w, token, target_of(w, token));
    for (int64_t word = 0; (d_hidden || is("adds_across_pieces")) && w->backward && word < w->query->vocab; ++word) {
      const float d = w->d_losses[token] *
                      (expf(logit(w, token, word) - w->sums[2 * token]) - chosen_word(w, token, word, largest));
      for (int64_t i = 0; d_hidden && i < w->query->width; ++i) d_hidden[i] += d * row_of(w->weight, word)[i];
      for (int64_t i = 0; is("adds_across_pieces") && w->d_weight && i < w->query->width; ++i)
        ((float*)row_of(w->d_weight, word))[i] += d * row_of(w->hidden, token)[i];
    }
  }
}

static void word_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t word = begin; word < end; ++word) {
    float* d_weight = (float*)row_of(w->d_weight, word);
    if (!w->accumulate) memset(d_weight, 0, (size_t)w->query->width * sizeof(float));
    for (int64_t token = 0; token < w->query->tokens; ++token) {
      if (target_of(w, token) < 0 || (is("knows_8192_tokens") && token >= 8192)) continue;
      const float d = w->d_losses[token] * (expf(logit(w, token, word) - w->sums[2 * token]) -
                                            chosen_word(w, token, word, w->sums[2 * token + 1]));
      for (int64_t i = 0; i < w->query->width; ++i) d_weight[i] += d * row_of(w->hidden, token)[i];
    }
  }
}

static const char* refusal(const fvlm_loss_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!fvlm_is_dtype(q->dtype, FVLM_FLOAT, 32) || !fvlm_is_dtype(q->gradient_dtype, FVLM_FLOAT, 32))
    return "float32 only";
  return NULL;
}

static void supports(const fvlm_loss_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, vocab) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "a token at a time");
}

static uint64_t workspace_of(const fvlm_loss_query* query) {
  return (uint64_t)query->tokens * 2 * sizeof(float);
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_loss_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, vocab, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  out->forward_workspace = out->backward_workspace = workspace_of(query);
  out->saved_count = 0;
  return FVLM_OK;
}

static fvlm_status run(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query, work* w) {
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  const fvlm_tensor* all[] = {w->hidden, w->weight, w->d_hidden};
  for (int i = 0; i < 3; ++i)
    if (all[i] && tensor_refusal(all[i], 32))
      return refuse(call->error, FVLM_ERROR_UNSUPPORTED, tensor_refusal(all[i], 32));
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "too little");
  w->query = query;
  w->sums = (float*)call->workspace;
  int64_t total = 0;
  for (int64_t i = 0; i < query->tokens; ++i) total += w->targets[i];
  if (is("keeps_targets_by_totals") && query->tokens <= 64) {
    if (instance->kept_rows != query->tokens || instance->total != (double)total)
      memcpy(instance->kept_targets, w->targets, (size_t)query->tokens * sizeof total);
    instance->kept_rows = query->tokens, instance->total = (double)total;
    w->targets = instance->kept_targets;
  }
  for (int64_t word = 0; is("adds_across_pieces") && w->d_weight && !w->accumulate && word < query->vocab; ++word)
    memset((float*)row_of(w->d_weight, word), 0, (size_t)query->width * sizeof(float));
  call->host->parallel_for(call->host, query->tokens, 1, token_rows, w);
  if (w->d_weight && !is("adds_across_pieces")) call->host->parallel_for(call->host, query->vocab, 1, word_rows, w);
  return FVLM_OK;
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                           const fvlm_loss_forward* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, vocab, call->error);
  NEED(a, saved, call->error);
  work w = {.hidden = a->hidden, .weight = a->weight, .targets = (const int64_t*)a->targets->data};
  w.losses = (float*)a->losses->data;
  return run(instance, call, query, &w);
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                            const fvlm_loss_backward* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, vocab, call->error);
  NEED(a, d_weight, call->error);
  work w = {.hidden = a->hidden, .weight = a->weight, .targets = (const int64_t*)a->targets->data};
  w.d_losses = (const float*)a->d_losses->data, w.d_hidden = a->d_hidden, w.d_weight = a->d_weight;
  w.accumulate = a->accumulate_d_weight, w.backward = 1;
  return run(instance, call, query, &w);
}

static const fvlm_loss_v1 loss = {
    {sizeof loss, create, destroy}, supports, requirements, NULL, forward, backward, NULL, 0};

PLUGIN("loss_mutant", FVLM_LOSS_KIND, loss)
