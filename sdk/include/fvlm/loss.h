/* fvlm/loss.h: linear head + cross-entropy, without materializing all logits where the plugin can. Kind "fvlm.loss/1".
 *
 * logits = hidden weight^T, or softcap * tanh(hidden weight^T / softcap) in float32 where the query has a softcap;
 * losses[i] = logsumexp(logits[i]) - logits[i][targets[i]]. A negative target (ignore_index) has no loss: its entry in
 * losses is 0, its gradient row 0, and its hidden and d_losses rows may hold anything. Losses are per token, not
 * reduced: the engine weighs them over micro-batches and ranks, and DPO needs them per sample.
 *
 * Shapes: hidden, d_hidden [tokens, width]; weight, d_weight [vocab, width]; targets int64 [tokens], below vocab;
 * losses, d_losses float32 [tokens] (float64 where dtype is float64). `tokens` may be 0: d_weight is then set to 0, or
 * left unchanged where it is accumulated.
 *
 * Strides: rows of hidden, weight and d_hidden are contiguous and may be strided (the row stride may be larger than
 * width). d_weight, targets, losses, d_losses and saved tensors are contiguous. No output aliases an input. */
#ifndef FVLM_LOSS_H
#define FVLM_LOSS_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_LOSS_KIND "fvlm.loss/1"

typedef struct fvlm_loss_query {
  uint32_t struct_size;
  int32_t needs_d_hidden; /* which gradients will be required */
  int32_t needs_d_weight; /* 0 where the head is frozen */
  fvlm_device device;
  fvlm_dtype dtype;          /* of hidden, weight and d_hidden */
  fvlm_dtype gradient_dtype; /* of d_weight: dtype or float32 */
  int64_t tokens, width, vocab;
  float softcap; /* bound of the logits; 0: none. Only plugins with FVLM_LOSS_SOFTCAP are asked for another */
} fvlm_loss_query;

/* Bits of fvlm_loss_v1.features. */
enum { FVLM_LOSS_SOFTCAP = 1u << 0 /* the plugin reads softcap: supports() refuses it, or the functions apply it */ };

typedef struct fvlm_loss_forward {
  uint32_t struct_size;
  const fvlm_tensor *hidden, *weight, *targets;
  fvlm_tensor* losses;
  fvlm_tensor* saved[FVLM_MAX_SAVED]; /* requested by requirements(); NULL where the query needs neither gradient */
} fvlm_loss_forward;

typedef struct fvlm_loss_backward {
  uint32_t struct_size;
  int32_t accumulate_d_weight; /* 0: overwrite, 1: add to what d_weight holds */
  const fvlm_tensor *hidden, *weight, *targets;
  const fvlm_tensor* d_losses; /* the gradient of the objective with respect to losses */
  const fvlm_tensor* saved[FVLM_MAX_SAVED];
  fvlm_tensor *d_hidden, *d_weight; /* NULL: not required */
} fvlm_loss_backward;

/* Forward and backward in one call, for a d_losses that is known beforehand (a mean over a known count). It is cheaper,
 * as logits are computed once. The result equals that of the two calls; nothing is saved. */
typedef struct fvlm_loss_fused {
  uint32_t struct_size;
  int32_t accumulate_d_weight;
  const fvlm_tensor *hidden, *weight, *targets, *d_losses;
  fvlm_tensor *losses, *d_hidden, *d_weight;
} fvlm_loss_fused;

typedef struct fvlm_loss_v1 {
  fvlm_table base;

  /* Whether calls of this class are supported, and how well. [any thread] */
  void (*supports)(const fvlm_loss_query* query, fvlm_support* support);

  /* Workspace and saved tensors; backward_workspace covers backward and fused alike. [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_loss_query* query, fvlm_requirements* requirements,
                              fvlm_error* error);

  /* Builds plans and picks algorithms for this query before its first call. May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query);

  /* Writes losses, and saved[] where the query needs a gradient. [step thread] */
  fvlm_status (*forward)(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                         const fvlm_loss_forward* arguments);

  /* Writes the gradients that are not NULL. [step thread] */
  fvlm_status (*backward)(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                          const fvlm_loss_backward* arguments);

  /* May be NULL: the engine then calls forward and backward. [step thread] */
  fvlm_status (*fused)(fvlm_instance* instance, const fvlm_call* call, const fvlm_loss_query* query,
                       const fvlm_loss_fused* arguments);

  /* FVLM_LOSS_*: fields of the query that were appended since the first plugins and that this one knows. The engine
   * does not ask a plugin without the bit, or with a shorter table, for a problem that needs the field. */
  uint32_t features;
} fvlm_loss_v1;

#ifdef __cplusplus
}
#endif
#endif
