/* mutant.h: right plugins that turn wrong, each in one way, when FVLM_MUTANT names it as they are opened: one library a
 * kind instead of one a defect. mutants_test.cpp says which row of plugin check has to find which. */
#ifndef FVLM_TESTS_MUTANT_H
#define FVLM_TESTS_MUTANT_H

#include <fvlm/fvlm.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))

static const char* chosen = "";
__attribute__((constructor)) static void choose(void) {
  if (getenv("FVLM_MUTANT")) chosen = getenv("FVLM_MUTANT");
}
static UNUSED int is(const char* defect) {
  return strcmp(chosen, defect) == 0;
}

/* Why a call failed; defects leave the text without its end where the sink is short, or rely on the sink. */
static UNUSED fvlm_status refuse(fvlm_error* error, fvlm_status status, const char* why) {
  if (is("cuts_the_text") && error && error->text) {
    strncpy(error->text, why, error->capacity); /* NOLINT */
    return status;
  }
  if (is("overruns_the_sink_for_workspace") && status == FVLM_ERROR_WORKSPACE && error && error->text) {
    memcpy(error->text, why, strlen(why) + 1);
    return status;
  }
  if (is("needs_a_sink_for_workspace") && status == FVLM_ERROR_WORKSPACE)
    *(volatile uint32_t*)&error->struct_size; /* NOLINT */
  return fvlm_fail(error, status, "%s", why);
}

/* Where an element lies that is so many rows of so many elements away. */
static UNUSED int64_t offset_of(int64_t row, int64_t stride) {
  return is("counts_in_32_bits") ? (int64_t)(int32_t)((uint32_t)row * (uint32_t)stride) : row * stride;
}

/* What tensors may look like. NULL: it may. */
static UNUSED const char* tensor_refusal(const fvlm_tensor* t, int bits) {
  if (!t || t->dtype.bits != bits || (t->shape[t->ndim - 1] > 1 && t->strides[t->ndim - 1] != 1))
    return "another type, or gaps between elements";
  int64_t row = 1;
  for (int d = 1; d < t->ndim; ++d) row *= t->shape[d];
  if (is("refuses_strides") && t->ndim > 1 && t->shape[0] > 1 && t->strides[0] != row) return "rows have to be dense";
  if (is("refuses_odd_strides") && t->ndim > 1 && t->shape[0] > 1 && t->strides[0] != row && t->strides[0] % 4 != 0)
    return "rows have to be aligned";
  if (is("refuses_head_strides") && t->ndim > 2 && t->shape[1] > 1 && t->strides[1] != t->shape[2])
    return "heads have to be dense";
  if (is("refuses_unaligned") && (uintptr_t)t->data % 16 != 0) return "data has to be aligned";
  return NULL;
}

struct fvlm_instance {
  int64_t tokens, segments; /* of the cuts that one defect keeps */
  int32_t cuts[64];
  double total; /* of the numbers whose results others keep */
  int64_t kept_rows;
  float kept[64];
  int64_t kept_targets[64];
  fvlm_kernels_query planned;
  const void* pointer;
  int64_t calls, listed[32];
};

static UNUSED fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return refuse(error, FVLM_ERROR_ARGUMENT, "config is too short");
  *instance = (fvlm_instance*)calloc(1, sizeof **instance);
  return *instance ? FVLM_OK : refuse(error, FVLM_ERROR_MEMORY, "no memory");
}
static UNUSED void destroy(fvlm_instance* instance) {
  free(instance);
}

#define NEED(pointer, last, sink)                                                                                      \
  if (!FVLM_HAS(pointer, last)) return refuse(sink, FVLM_ERROR_ARGUMENT, #pointer " ends before " #last)

#define PLUGIN(plugin_name, kind_name, kind_table)                                                                     \
  static const void* table_of(const char* kind) {                                                                      \
    return strcmp(kind, kind_name) == 0 ? &(kind_table) : NULL;                                                        \
  }                                                                                                                    \
  static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, plugin_name, "1.0", table_of};     \
  FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {                                         \
    return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;                     \
  }

#endif
