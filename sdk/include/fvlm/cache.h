/* fvlm/cache.h: what a plugin found out at some cost, kept by the engine between runs. */
#ifndef FVLM_CACHE_H
#define FVLM_CACHE_H

#include <fvlm/host.h>
#include <fvlm/status.h>
#include <fvlm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_MAX_CACHED 4096 /* bytes of a value */

/* A host with services that came after version 1.0, of which `host` is the beginning. The engine may have none of
 * them: see fvlm_cache_of(). */
typedef struct fvlm_caching_host {
  fvlm_host host;

  /* Both are for choices that change no result but its last bits, such as the fastest of several kernels. `key` says
   * what was chosen for: shapes, types, and the versions of libraries behind the plugin. It has at most 1000
   * characters; the engine adds itself, the device with its driver, and the plugin's file. Never called with
   * FVLM_DETERMINISTIC or FVLM_CAPTURING, and not once a call. [setup] */

  /* Copies the value, if it has `size` bytes exactly. Returns 1, or 0 where there is no such value. What it holds is
   * what some process stored: check it. */
  int32_t (*cache_load)(const fvlm_host* host, fvlm_device device, const char* key, void* value, uint64_t size);

  /* Keeps a value. One that cannot be kept is dropped. */
  void (*cache_store)(const fvlm_host* host, fvlm_device device, const char* key, const void* value, uint64_t size);
} fvlm_caching_host;

/* NULL where the engine keeps nothing. [any thread] */
static inline const fvlm_caching_host* fvlm_cache_of(const fvlm_host* host) {
  const fvlm_caching_host* caching = (const fvlm_caching_host*)host;              /* NOLINT */
  return host && host->struct_size >= sizeof(fvlm_caching_host) ? caching : NULL; /* NOLINT(modernize-use-nullptr) */
}

#ifdef __cplusplus
}
#endif
#endif
