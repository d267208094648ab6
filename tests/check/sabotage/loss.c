/* Linear head and cross-entropy, a token at a time, in float32. */
#include "common.h"

#include <math.h>

static const char* refusal(const fvlm_loss_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->dtype, FVLM_FLOAT, 32) || !same_dtype(q->gradient_dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->tokens < 0 || q->width < 1 || q->vocab < 1) return "tokens, width and vocab have to be sizes";
  return NULL;
}

static void supports(const fvlm_loss_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, vocab) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "a token at a time");
}

static uint64_t scratch_bytes(const fvlm_loss_query* query) {
  return (uint64_t)query->vocab * sizeof(float);
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_loss_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, vocab, error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  out->forward_workspace = out->backward_workspace = scratch_bytes(query);
  out->saved_count = 1; /* the logarithms of the sums */
  out->saved[0] = (fvlm_tensor_spec){{FVLM_FLOAT, 32, 1}, 1, {query->tokens}};
  return FVLM_OK;
}

static fvlm_status look(const fvlm_call* call, const fvlm_loss_query* query) {
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (call->workspace_size < scratch_bytes(query)) return fvlm_fail(call->error, FVLM_ERROR_WORKSPACE, "too little");
  return FVLM_OK;
}

/* The logits of token i, and the logarithm of the sum of their exponentials. */
static float logits_of(const fvlm_loss_query* query, const fvlm_tensor* hidden, const fvlm_tensor* weight, int64_t i,
                       float* logits) {
  float most = -INFINITY, sum = 0;
  for (int64_t w = 0; w < query->vocab; ++w) {
    const float *row = row_of(weight, w), *h = row_of(hidden, i);
    logits[w] = 0;
    for (int64_t d = 0; d < query->width; ++d) logits[w] += h[d] * row[d];
    if (logits[w] > most) most = logits[w];
  }
#ifdef SABOTAGE_OVERFLOWS
  most = 0;
#endif
  for (int64_t w = 0; w < query->vocab; ++w) sum += expf(logits[w] - most);
  return most + logf(sum);
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                           const fvlm_loss_forward* arguments) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, vocab, call->error);
  NEED(arguments, saved, call->error);
  fvlm_status status = look(call, query);
  if (status != FVLM_OK) return status;
  const int64_t* targets = (const int64_t*)arguments->targets->data;
  float *losses = (float*)arguments->losses->data, *saved = NULL;
#ifndef SABOTAGE_SAVES_ALWAYS
  if (query->needs_d_hidden || query->needs_d_weight)
#endif
    saved = (float*)arguments->saved[0]->data;
  float* logits = (float*)call->workspace;
  for (int64_t i = 0; i < query->tokens; ++i) {
    losses[i] = 0;
    if (saved) saved[i] = 0;
    if (targets[i] < 0) continue;
    const float log_sum = logits_of(query, arguments->hidden, arguments->weight, i, logits);
    if (saved) saved[i] = log_sum;
    losses[i] = log_sum - logits[targets[i]];
  }
  return FVLM_OK;
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                            const fvlm_loss_backward* arguments) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, vocab, call->error);
  NEED(arguments, d_weight, call->error);
  fvlm_status status = look(call, query);
  if (status != FVLM_OK) return status;
  const int64_t* targets = (const int64_t*)arguments->targets->data;
  const float *d_losses = (const float*)arguments->d_losses->data, *saved = (const float*)arguments->saved[0]->data;
  const fvlm_tensor *d_hidden = arguments->d_hidden, *d_weight = arguments->d_weight;
  float* logits = (float*)call->workspace;
  int clear = !arguments->accumulate_d_weight;
#ifdef SABOTAGE_IGNORES_ACCUMULATE
  clear = 1;
#endif
  for (int64_t w = 0; d_weight && clear && w < query->vocab; ++w)
    memset(row_of(d_weight, w), 0, (size_t)query->width * sizeof(float));
  for (int64_t i = 0; i < query->tokens; ++i) {
    if (d_hidden) memset(row_of(d_hidden, i), 0, (size_t)query->width * sizeof(float));
    float each = d_losses[i];
#ifdef SABOTAGE_IGNORES_D_LOSSES
    each = d_losses[0];
#endif
    int64_t target = targets[i];
#ifdef SABOTAGE_LEAKS_NAN
    if (target < 0) target = 0, each *= 0;
#endif
    if (target < 0) continue;
    const float log_sum = logits_of(query, arguments->hidden, arguments->weight, i, logits);
    (void)saved;
    for (int64_t w = 0; w < query->vocab; ++w) {
      const float d_logit = each * (expf(logits[w] - log_sum) - (w == target ? 1.0f : 0.0f));
      for (int64_t d = 0; d < query->width; ++d) {
        if (d_hidden) row_of(d_hidden, i)[d] += d_logit * row_of(arguments->weight, w)[d];
        if (d_weight) row_of(d_weight, w)[d] += d_logit * row_of(arguments->hidden, i)[d];
      }
    }
  }
  return FVLM_OK;
}

static const fvlm_loss_v1 loss = {
    {sizeof loss, create_instance, destroy_instance}, supports, requirements, NULL, forward, backward, NULL, 0};

PLUGIN("loss", FVLM_LOSS_KIND, loss)
