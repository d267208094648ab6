/* fvlm/instance.h: what the engine asks before it calls (supports, requirements), and how instances are made. */
#ifndef FVLM_INSTANCE_H
#define FVLM_INSTANCE_H

#include <fvlm/host.h>
#include <fvlm/status.h>
#include <fvlm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A plugin's answer to supports(), the same for the same query: no to what it does not know or no call can mean. */
typedef struct fvlm_support {
  uint32_t struct_size;
  int32_t score; /* 0 (not supported) to 1000; other values are refused. The highest score is chosen: the reference has
                    1, portable code about 100, a vendor's library 200, tuned code 300 */
  char reason[240]; /* why not, as a user reads it: "head_dim 80 not supported"; or, if supported, how */
} fvlm_support;

/* Answers a supports() call: `fvlm_answer(support, 0, "needs sm_90")`. [any thread] */
FVLM_PRINTF(3, 4)
static inline void fvlm_answer(fvlm_support* support, int32_t score, const char* format, ...) {
  va_list arguments;
  support->score = score;
  va_start(arguments, format);
  (void)vsnprintf(support->reason, sizeof support->reason, format, arguments);
  va_end(arguments);
}

#define FVLM_MAX_SAVED 4

/* What the engine allocates for a plugin before it calls. It is the same each time for the same query. */
typedef struct fvlm_requirements {
  uint32_t struct_size;
  uint32_t saved_count;       /* number of saved[] tensors that forward fills and backward reads */
  uint64_t forward_workspace; /* bytes */
  uint64_t backward_workspace;
  fvlm_tensor_spec saved[FVLM_MAX_SAVED]; /* contiguous, uninitialized before forward */
  uint64_t prepare_workspace; /* bytes that prepare() can use, to measure for example; where memory is short it gets
                                 only the larger of the two above. 0: no more than these. Appended to version 1.0: check
                                 FVLM_HAS before writing it */
  uint64_t deterministic_workspace; /* bytes that backward needs in calls with FVLM_DETERMINISTIC, where these are more
                                       than backward_workspace. Appended as the one above */
} fvlm_requirements;

/* An instance (a handle, in cuDNN's words) holds what is expensive to make for one device: library handles, plans,
 * autotuning results. Opaque to the engine. It holds no state that later results depend on: a resumed run has another
 * instance. */
typedef struct fvlm_instance fvlm_instance;

typedef struct fvlm_instance_config {
  uint32_t struct_size;
  fvlm_device device;
  const fvlm_host* host;
} fvlm_instance_config;

/* The beginning of every kind's table. */
typedef struct fvlm_table {
  uint32_t struct_size; /* of the whole table */

  /* Makes an instance for config->device. [setup] */
  fvlm_status (*create)(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error);

  /* Frees an instance; does nothing for NULL. [setup] */
  void (*destroy)(fvlm_instance* instance);
} fvlm_table;

#ifdef __cplusplus
}
#endif
#endif
