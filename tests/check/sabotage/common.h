/* common.h: what the plugins of these tests share. Each .c beside it is a whole, correct, slow plugin; compiled with
 * -DSABOTAGE_<something> it has one defect, which `plugin check` has to find and name. */
#ifndef SABOTAGE_COMMON_H
#define SABOTAGE_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fvlm/fvlm.h>

#ifdef SABOTAGE_CREATE_FLUSHES_TO_ZERO
#include <xmmintrin.h>
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))

/* A struct that ends before `last` is refused. */
#ifdef SABOTAGE_TAKES_ANY_SIZE
#define NEED(pointer, last, sink)
#elif defined(SABOTAGE_WANTS_ITS_OWN_SIZE)
#define NEED(pointer, last, sink)                                                                                      \
  if ((pointer)->struct_size != sizeof *(pointer))                                                                     \
  return fvlm_fail(sink, FVLM_ERROR_ARGUMENT, "%s has another size than mine", #pointer)
#elif defined(SABOTAGE_SAYS_NOTHING)
#define NEED(pointer, last, sink)                                                                                      \
  if (!FVLM_HAS(pointer, last)) return FVLM_ERROR_ARGUMENT
#elif defined(SABOTAGE_TRUSTS_THE_SINK)
#define NEED(pointer, last, sink)                                                                                      \
  if (!FVLM_HAS(pointer, last)) return strcpy((sink)->text, "too short"), FVLM_ERROR_ARGUMENT
#else
#define NEED(pointer, last, sink)                                                                                      \
  if (!FVLM_HAS(pointer, last)) return fvlm_fail(sink, FVLM_ERROR_ARGUMENT, "%s ends before %s", #pointer, #last)
#endif

#define NEED_CALL(call)                                                                                                \
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT

static UNUSED int same_dtype(fvlm_dtype a, int code, int bits) {
  return a.code == code && a.bits == bits && a.lanes == 1;
}

/* Row `i` of a tensor of two dimensions, head `h` of row `i` of one of three. */
static UNUSED float* row_of(const fvlm_tensor* tensor, int64_t i) {
  return (float*)tensor->data + i * tensor->strides[0];
}
static UNUSED float* head_of(const fvlm_tensor* tensor, int64_t i, int64_t h) {
#ifdef SABOTAGE_IGNORES_STRIDES
  return (float*)tensor->data + (i * tensor->shape[1] + h) * tensor->shape[2];
#else
  return (float*)tensor->data + i * tensor->strides[0] + h * tensor->strides[1];
#endif
}

static UNUSED int instance_of_no_state;

static UNUSED fvlm_status create_instance(const fvlm_instance_config* config, fvlm_instance** instance,
                                          fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "config is too short");
#ifdef SABOTAGE_CREATE_FLUSHES_TO_ZERO
  _mm_setcsr(_mm_getcsr() | 0x8000);
#endif
  *instance = (fvlm_instance*)malloc(16);
  return *instance ? FVLM_OK : fvlm_fail(error, FVLM_ERROR_MEMORY, "no memory");
}
static UNUSED void destroy_instance(fvlm_instance* instance) {
  free(instance);
}

/* The entry of a plugin with one table. */
#define PLUGIN(plugin_name, kind_name, kind_table)                                                                     \
  static const void* table_of(const char* kind) {                                                                      \
    return strcmp(kind, kind_name) == 0 ? &(kind_table) : NULL;                                                        \
  }                                                                                                                    \
  static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, plugin_name, "1.0", table_of};     \
  FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {                                         \
    if (!FVLM_HAS(host, parallel_threads) || host->abi_major != FVLM_ABI_MAJOR) return NULL;                           \
    return &plugin;                                                                                                    \
  }

#endif
