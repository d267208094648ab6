/* fvlm/host.h: what the engine offers a plugin: its log and its CPU threads. */
#ifndef FVLM_HOST_H
#define FVLM_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FVLM_LOG_DEBUG = 0, FVLM_LOG_INFO = 1, FVLM_LOG_WARNING = 2, FVLM_LOG_ERROR = 3 };

/* Stays valid until the process ends. */
typedef struct fvlm_host {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor;
  const char* engine_version;

  /* Writes a line to the engine's log, under the plugin's name. [any thread] */
  void (*log)(const struct fvlm_host* host, int32_t level, const char* text);

  /* Runs task(context, begin, end) over pieces of [0, count) of at least `grain` items on the engine's CPU threads and
   * returns when all of them are done. The partition depends only on count, grain and parallel_threads(), so whatever a
   * piece computes on its own is reproducible. With a count of 0 the task is not called; grain is 1 or more. Pieces run
   * in any order, concurrently or one after the other on the calling thread. A task throws nothing and does not call
   * parallel_for again. A plugin starts no threads of its own. [any thread]
   *
   * Scratch memory per piece: a task does not know which thread it runs on, so scratch is indexed by item. Divide the
   * work into parts = min(items, parallel_threads()) yourself, ask in requirements() for one area of workspace per part
   * (fvlm_instance_config has the host), call parallel_for(host, parts, 1, ...) and let the task process the parts from
   * `begin` to `end` - 1, each in the area of its index. */
  void (*parallel_for)(const struct fvlm_host* host, int64_t count, int64_t grain,
                       void (*task)(void* context, int64_t begin, int64_t end), void* context);

  /* Upper bound of the number of pieces that parallel_for makes: 1 or more, and never more than when the instance was
   * created. [any thread] */
  int32_t (*parallel_threads)(const struct fvlm_host* host);
} fvlm_host;

#ifdef __cplusplus
}
#endif
#endif
