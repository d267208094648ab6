/* fvlm/abi.h: what every kind of plugin shares: status, versions, host, call, instance, the entry point.
 *
 * Rules of the whole ABI
 *  - A struct that may grow begins with struct_size, set by whoever fills it to its sizeof. Zero, and more than the
 *    plugin's abi_minor has, is refused. The reader looks at no field past it. Fields are only appended.
 *  - Strings are UTF-8, end in 0 and belong to whoever made them; a plugin's live as long as the library (for ever).
 *  - A plugin allocates no device memory, owns no stream, starts no thread that outlives a call, throws nothing across
 *    the boundary and never ends the process.
 *  - [any thread]: may be called at any time, from several threads at once. [setup]: called before the first step that
 *    needs it, may take time and allocate memory; never two calls of one instance at once. [step thread]: called in the
 *    hot path; never two calls of one instance at once. It allocates nothing, does not synchronize, enqueues its work
 *    on call->stream and returns. On a GPU it may be captured in a CUDA graph, which is replayed without calling again.
 *
 * The order of calls
 *  - create(); for each shape class (query) supports(), requirements() and prepare(); then calls of that class.
 *    prepare() has a workspace of the larger of the two sizes that requirements() named, and may come again for the
 *    same query. One instance serves many queries, and calls of different ones follow each other in any order.
 *  - A forward may be followed by other forwards, of the same query too, before its backward: a model runs through all
 *    of its layers first, and the backwards mostly come in the opposite order. Not every forward has a backward, and
 *    with activation checkpointing one forward is called twice for one backward. So what a backward needs of its
 *    forward is passed in saved[], never kept in the instance.
 *  - A backward that reads saved[] comes to the instance that its forward came to, with the same query and with what
 *    forward wrote there. One without saved tensors (linear's gradients, swiglu's) may come without a forward.
 *  - Several instances of one plugin may be at work on threads of their own: static data that changes needs a lock.
 */
#ifndef FVLM_ABI_H
#define FVLM_ABI_H

#include <fvlm/tensor.h>

#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_ABI_MAJOR 1
#define FVLM_ABI_MINOR 0

#if defined(__GNUC__)
#define FVLM_EXPORT __attribute__((visibility("default")))
#define FVLM_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define FVLM_EXPORT
#define FVLM_PRINTF(text, first)
#endif

/* Whether the struct reaches as far as `field`: what to ask before reading a struct that may be another version's. A
 * function checks the last field that version 1.0 has, and each younger field on its own. NULL reaches nothing. */
#define FVLM_HAS(pointer, field)                                                                                       \
  ((pointer) && (pointer)->struct_size >= (size_t)((const char*)(&(pointer)->field + 1) - (const char*)(pointer)))

typedef int32_t fvlm_status;
enum {
  FVLM_OK = 0,
  FVLM_ERROR_ARGUMENT = 1,    /* the engine's arguments break the contract */
  FVLM_ERROR_UNSUPPORTED = 2, /* a shape, type or stride this plugin does not do; no output was written. The engine then
                                 asks the next plugin of the recipe (attention, loss and kernels) */
  FVLM_ERROR_WORKSPACE = 3,   /* less workspace than requirements() asked for */
  FVLM_ERROR_DEVICE = 4,      /* the device or its library failed */
  FVLM_ERROR_MEMORY = 5,      /* host memory ran out (setup only) */
  FVLM_ERROR_INTERNAL = 6,    /* a defect of the plugin */
  FVLM_ERROR_DATA = 7         /* a file that was to be read is damaged, or beyond the given limits */
};

enum { FVLM_LOG_DEBUG = 0, FVLM_LOG_INFO = 1, FVLM_LOG_WARNING = 2, FVLM_LOG_ERROR = 3 };

/* Where a failing function writes why. `text` has room for `capacity` bytes with the final 0: of a longer message as
 * much as fits. With a capacity of 0 nothing is written and `text` may be NULL; so may the pointer to this struct. */
typedef struct fvlm_error {
  uint32_t struct_size;
  uint32_t capacity;
  char* text;
} fvlm_error;

/* What the engine offers a plugin. Lives as long as the process. */
typedef struct fvlm_host {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor;
  const char* engine_version;

  /* Writes a line to the engine's log, under the plugin's name. [any thread] */
  void (*log)(const struct fvlm_host* host, int32_t level, const char* text);

  /* Runs task(context, begin, end) over pieces of [0, count) of at least `grain` items on the engine's CPU threads and
   * returns when all are done. How [0, count) is cut depends only on count, grain and parallel_threads(), so what a
   * piece computes alone is reproducible. A count of 0 calls nothing; grain is 1 or more. The pieces run in any order,
   * at once or one after the other on the calling thread. A task throws nothing and does not call parallel_for again.
   * A plugin starts no threads of its own. [any thread]
   *
   * Scratch memory of a piece: a task does not learn which thread it runs on, so the scratch goes with the items. Cut
   * the work into parts = min(items, parallel_threads()) yourself, ask in requirements() for one area of workspace a
   * part (the host is in fvlm_instance_config), call parallel_for(host, parts, 1, ...) and let the task work through
   * part `begin` to `end` - 1, each with the area of its number. */
  void (*parallel_for)(const struct fvlm_host* host, int64_t count, int64_t grain,
                       void (*task)(void* context, int64_t begin, int64_t end), void* context);

  /* How many pieces parallel_for makes at most: 1 or more, and never more than when the instance was created.
   * [any thread] */
  int32_t (*parallel_threads)(const struct fvlm_host* host);
} fvlm_host;

/* Bits of fvlm_call.flags. */
enum {
  FVLM_DETERMINISTIC = 1u << 0, /* same inputs, same bits: no atomics in an order that varies */
  FVLM_CAPTURING = 1u << 1      /* a CUDA graph is being recorded on call->stream */
};

/* The circumstances of one call. Calls of an instance may be enqueued on several streams, where they run side by side:
 * what one needs while it runs lies in its workspace, which calls of other streams do not share. The next call on the
 * same stream has the same workspace, so nothing lasts there from one call to another. */
typedef struct fvlm_call {
  uint32_t struct_size;
  uint32_t flags;
  fvlm_device device;
  void* stream;            /* cudaStream_t of `device`, which is the thread's current one; NULL on the CPU */
  void* workspace;         /* aligned to 256 bytes, content undefined; may be NULL where 0 bytes were asked for */
  uint64_t workspace_size; /* at least what requirements() asked for; with less, FVLM_ERROR_WORKSPACE */
  uint64_t random_seed;    /* a counter-based generator's key, and where this call's counter starts: */
  uint64_t random_offset;  /* random_offset, plus *random_offset_device where that is not NULL */
  const uint64_t* random_offset_device; /* device memory, advanced by the engine between replays of a graph */
  const fvlm_host* host;
  fvlm_error* error; /* may be NULL */
} fvlm_call;

/* Writes why into the error sink and returns the status: `return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, ...)`.
 */
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

/* The call's error sink; NULL where the call is too small to be read. */
static inline fvlm_error* fvlm_sink(const fvlm_call* call) {
  return FVLM_HAS(call, error) ? call->error : NULL; /* NOLINT(modernize-use-nullptr) */
}

/* A plugin's answer to "can you do this?". The same query gets the same answer each time. */
typedef struct fvlm_support {
  uint32_t struct_size;
  int32_t score; /* 0 (no) to 1000; another one is refused. The reference answers 1, portable code about 100, a vendor's
                    library 200, tuned code 300 */
  char reason[240]; /* why not, as a user reads it: "head_dim 80 not supported"; or, of a yes, what it will use */
} fvlm_support;

/* Answers a supports() call: `fvlm_answer(support, 0, "needs sm_90")`. */
FVLM_PRINTF(3, 4)
static inline void fvlm_answer(fvlm_support* support, int32_t score, const char* format, ...) {
  va_list arguments;
  support->score = score;
  va_start(arguments, format);
  (void)vsnprintf(support->reason, sizeof support->reason, format, arguments);
  va_end(arguments);
}

#define FVLM_MAX_SAVED 4

/* What the engine allocates for a plugin before it calls. The same query gets the same answer each time. */
typedef struct fvlm_requirements {
  uint32_t struct_size;
  uint32_t saved_count;       /* how many of saved[] forward fills and backward reads back */
  uint64_t forward_workspace; /* bytes */
  uint64_t backward_workspace;
  fvlm_tensor_spec saved[FVLM_MAX_SAVED]; /* contiguous, uninitialized before forward */
} fvlm_requirements;

/* An instance holds what is costly for one device: library handles, plans, tuned choices. Opaque to the engine. It
 * holds nothing that later results need: a run that is resumed has another instance. */
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

  /* Frees it. NULL is allowed and does nothing. [setup] */
  void (*destroy)(fvlm_instance* instance);
} fvlm_table;

/* What the entry point returns. */
typedef struct fvlm_plugin {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor; /* FVLM_ABI_MAJOR, FVLM_ABI_MINOR of the headers it was compiled with */
  const char* name;              /* as in plugin.toml */
  const char* version;

  /* The table of a kind, or NULL. The same pointer each time. A kind is "fvlm.FAMILY/REVISION". Where one plugin may
   * give several tables of a family, each is a kind of its own, with its variant behind a colon: an optimizer's
   * algorithm, a quantizer's scheme. "fvlm.attention/1", "fvlm.optimizer/1:adamw", "fvlm.quantizer/1:int8";
   * "fvlm.optimizer/1" alone is no kind. plugin.toml lists the same strings. [any thread] */
  const void* (*table)(const char* kind);
} fvlm_plugin;

/* The one symbol a plugin exports. May be called more than once and returns the same pointer; NULL: this plugin cannot
 * work with this host (host->abi_major differs). The pointer and all it leads to stay valid for ever. [setup] */
#define FVLM_PLUGIN_ENTRY "fvlm_plugin_entry_v1"
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host);
typedef const fvlm_plugin* (*fvlm_plugin_entry_function)(const fvlm_host* host);

#ifdef __cplusplus
}
#endif
#endif
