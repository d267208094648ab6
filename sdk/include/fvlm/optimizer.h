/* fvlm/optimizer.h: one step over flat buffers. Kind "fvlm.optimizer/1:ALGORITHM", one table per algorithm.
 *
 * Parameters, gradients, master weights and states each are one flat buffer of `elements` (the arenas). A segment is a
 * parameter slice of them: a range that belongs to one parameter group and is one matrix (rows x cols, row-major) or
 * one vector (rows = 1). Of a parameter with more dimensions the first is rows and the product of the others is cols.
 * Slices do not overlap; they come in any order and may be empty. Nothing outside them is read or written. All tensors
 * are contiguous. Hyperparameters, the step count, the gradient's scale and the skip flag are tensors in device memory,
 * so that a captured CUDA graph sees new values at each replay.
 *
 * How the numbers of a recipe are passed
 *  - By name, each per group: lr, weight_decay and the moments' settings of adamw may differ. One that the recipe omits
 *    has the table's default (`fallback`). A recipe that sets one which the table does not list, or one out of bounds,
 * is refused. fvlm.adamw and fvlm.muon always set weight_decay (0.01 by default), fvlm.optimizer "NAME" only where the
 *    recipe does.
 *  - `lr` is the learning rate of this step, after the schedule: it starts at 0 where there is a warm-up, so its
 * minimum
 *    (`least`) is 0.
 *  - `moments = "bf16"` is passed as state_dtype; what states() then declares is what is allocated and passed.
 *  - Gradients are not clipped and, in float16, contain the loss scale: `scale` corrects both.
 *  - `step` is the number of steps that were applied before this one, plus 1. It is 1 at the first step of each stage,
 *    for which all states are 0 again. A skipped step does not count: the next one has the same number. A resumed run
 *    continues with the number and the states of its checkpoint, and another instance.
 *
 * Algorithms that recipes know by name. A plugin with one of these names takes these hyperparameters, in this order,
 * and may append others whose defaults change nothing:
 *  - adamw, as torch.optim.AdamW: lr, beta1, beta2, eps, weight_decay. States "m", "v".
 *  - muon, as torch.optim.Muon: lr, momentum, nesterov (0 or 1), weight_decay, eps. State "momentum". The update is
 *    multiplied by sqrt(max(1, rows / cols)). The 5 Newton-Schulz steps run in float32, or with every intermediate
 *    result rounded to bfloat16 as in PyTorch; the reason of supports() says which. In float32 the step equals
 * PyTorch's without its cast to bfloat16 to within 1e-6 over 50 steps. In bfloat16 no implementation can be held to
 * that, PyTorch's included: the result depends on the order of its sums. bench/LOG.md has the differences. Matrices
 * only: supports() refuses a query with a vector, and the engine passes vectors to another optimizer of the stage. */
#ifndef FVLM_OPTIMIZER_H
#define FVLM_OPTIMIZER_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_OPTIMIZER_KIND(algorithm) "fvlm.optimizer/1:" algorithm

/* A parameter slice of the flat buffers. Used inside arrays, so it never grows. */
typedef struct fvlm_optimizer_segment {
  int64_t offset; /* of the first element */
  int64_t rows, cols;
  int64_t group; /* index of the parameter group */
} fvlm_optimizer_segment;

/* A hyperparameter, as recipes name it. Used inside arrays, so it never grows. */
typedef struct fvlm_hyperparameter {
  const char* name;   /* the first is "lr" */
  double fallback;    /* the default, where the recipe sets none */
  double least, most; /* min and max, inclusive: a recipe outside them is refused */
} fvlm_hyperparameter;

/* A state buffer of `elements` values that starts at 0 in each stage. Used inside arrays, so it never grows. */
typedef struct fvlm_optimizer_state {
  const char* name; /* "m", "v": its name in a checkpoint */
  fvlm_dtype dtype;
} fvlm_optimizer_state;

typedef struct fvlm_optimizer_query {
  uint32_t struct_size;
  fvlm_device device;
  fvlm_dtype gradient_dtype;
  fvlm_dtype parameter_dtype; /* of the copy that the model computes with; float32: the master weights are that copy */
  fvlm_dtype state_dtype;     /* the recipe's `moments`: float32 or bfloat16; states() has the last word */
  int64_t elements;
  int64_t segment_count;
  int64_t group_count;                    /* parameter groups: segment.group is 0 to group_count - 1 */
  const fvlm_optimizer_segment* segments; /* host memory, valid during the call */
} fvlm_optimizer_query;

#define FVLM_MAX_STATES 4

typedef struct fvlm_optimizer_step {
  uint32_t struct_size;
  fvlm_tensor* master;                 /* master weights, float32 [elements] */
  fvlm_tensor* parameter;              /* [elements], the rounded copy to write; NULL when parameter_dtype is float32 */
  const fvlm_tensor* gradient;         /* [elements]; 0 for a parameter that no sample of the batch used */
  fvlm_tensor* state[FVLM_MAX_STATES]; /* [elements] each */
  const fvlm_tensor* segments;         /* int64 [segment_count, 4]: the query's segments in device memory */
  const fvlm_tensor* hyper;            /* float32 [group_count, hyperparameter_count], in the table's order */
  const fvlm_tensor* step;             /* int64 [1]: steps applied in this stage before this one, plus 1 */
  const fvlm_tensor* scale;            /* float32 [1]: multiplies each gradient (clip, loss scale) */
  const fvlm_tensor* skip; /* int32 [1]: if not 0, change nothing; gradient and scale may then be NaN or infinite */
} fvlm_optimizer_step;

typedef struct fvlm_optimizer_v1 {
  fvlm_table base;
  const char* algorithm; /* "adamw", "muon": the kind's variant, which a recipe names */
  const fvlm_hyperparameter* hyperparameters;
  int32_t hyperparameter_count;

  /* Whether steps of this class are supported, and how well. [any thread] */
  void (*supports)(const fvlm_optimizer_query* query, fvlm_support* support);

  /* Fills states[0] to states[count - 1] and returns count (0 to FVLM_MAX_STATES), the same each time. Another count, a
   * state without a name, or one of an unknown dtype, is a defect of the plugin. [any thread] */
  int32_t (*states)(const fvlm_optimizer_query* query, fvlm_optimizer_state* states);

  /* An optimizer asks for forward_workspace only. [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_optimizer_query* query,
                              fvlm_requirements* requirements, fvlm_error* error);

  /* Builds plans and picks algorithms for this query before its first step. May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query);

  /* Updates master, parameter and state in place, unless skip is set. [step thread] */
  fvlm_status (*step)(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query,
                      const fvlm_optimizer_step* arguments);
} fvlm_optimizer_v1;

#ifdef __cplusplus
}
#endif
#endif
