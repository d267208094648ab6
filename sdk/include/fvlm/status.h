/* fvlm/status.h: statuses and the text that explains them, and how to read a struct of another version. */
#ifndef FVLM_STATUS_H
#define FVLM_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FVLM_EXPORT __attribute__((visibility("default")))
#define FVLM_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define FVLM_EXPORT
#define FVLM_PRINTF(text, first)
#endif

/* Whether the struct is large enough to contain `field`: to be checked before reading a struct that another version may
 * have filled. A function checks the last field of version 1.0, and each newer field on its own. NULL contains
 * nothing. */
#define FVLM_HAS(pointer, field)                                                                                       \
  ((pointer) && (pointer)->struct_size >= (size_t)((const char*)(&(pointer)->field + 1) - (const char*)(pointer)))

typedef int32_t fvlm_status;
enum {
  FVLM_OK = 0,
  FVLM_ERROR_ARGUMENT = 1,    /* the engine's arguments break the contract */
  FVLM_ERROR_UNSUPPORTED = 2, /* a query that supports() refuses, or a stride; no output was written. The engine then
                                 falls back to the next plugin of the recipe (attention, loss, kernels) */
  FVLM_ERROR_WORKSPACE = 3,   /* less workspace than requirements() requested */
  FVLM_ERROR_DEVICE = 4,      /* the device or its library failed */
  FVLM_ERROR_MEMORY = 5,      /* out of host memory (setup only) */
  FVLM_ERROR_INTERNAL = 6,    /* a defect of the plugin */
  FVLM_ERROR_DATA = 7         /* an input file is damaged, or exceeds the given limits */
};

/* Error sink: where a failing function writes why it failed. `text` has room for `capacity` bytes with the final 0; a
 * longer message is truncated. With a capacity of 0 nothing is written and `text` may be NULL. The pointer to this
 * struct may be NULL too. */
typedef struct fvlm_error {
  uint32_t struct_size;
  uint32_t capacity;
  char* text;
} fvlm_error;

/* Writes the reason into the error sink and returns the status, so that a function can fail in one statement:
 * `return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "head_dim %d not supported", d)`. [any thread] */
FVLM_PRINTF(3, 4)
static inline fvlm_status fvlm_fail(fvlm_error* error, fvlm_status status, const char* format, ...) {
  if (error && error->text && error->capacity > 0) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->text, error->capacity, format, arguments);
    va_end(arguments);
  }
  return status;
}

#ifdef __cplusplus
}
#endif
#endif
