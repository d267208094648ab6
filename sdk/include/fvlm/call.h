/* fvlm/call.h: the circumstances of one call: device, stream, workspace, random numbers, error sink. */
#ifndef FVLM_CALL_H
#define FVLM_CALL_H

#include <fvlm/host.h>
#include <fvlm/status.h>
#include <fvlm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of fvlm_call.flags. */
enum {
  FVLM_DETERMINISTIC = 1u << 0, /* same inputs, same bits: no atomics whose order varies */
  FVLM_CAPTURING = 1u << 1      /* call->stream is being captured into a CUDA graph */
};

/* Calls of one instance may be enqueued on several streams, where they run concurrently. So everything that a call
 * needs while it runs is in its workspace, which calls on other streams do not share. The next call on the same stream
 * gets the same workspace: nothing persists there from one call to the next. */
typedef struct fvlm_call {
  uint32_t struct_size;
  uint32_t flags;
  fvlm_device device;
  void* stream;            /* cudaStream_t of `device`, which is the thread's current device; NULL on the CPU */
  void* workspace;         /* aligned to 256 bytes, uninitialized; may be NULL where 0 bytes were requested */
  uint64_t workspace_size; /* at least what requirements() requested; with less, fail with FVLM_ERROR_WORKSPACE */
  uint64_t random_seed;    /* the key of a counter-based generator; the counter of this call starts at: */
  uint64_t random_offset;  /* random_offset, plus *random_offset_device where that is not NULL */
  const uint64_t* random_offset_device; /* device memory, advanced by the engine between replays of a graph */
  const fvlm_host* host;
  fvlm_error* error; /* may be NULL */
} fvlm_call;

/* The error sink of a call; NULL where the call is too small to be read. [any thread] */
static inline fvlm_error* fvlm_sink(const fvlm_call* call) {
  return FVLM_HAS(call, error) ? call->error : NULL; /* NOLINT(modernize-use-nullptr) */
}

#ifdef __cplusplus
}
#endif
#endif
