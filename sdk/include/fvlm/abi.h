/* fvlm/abi.h: the part of the ABI that every kind of plugin shares: rules, version, and the headers that hold the rest.
 *
 *   tensor.h    how a tensor crosses the ABI                 call.h       the circumstances of one call
 *   status.h    statuses, the error sink, struct_size        instance.h   supports(), requirements(), create()
 *   host.h      what the engine offers: log, threads         plugin.h     the one symbol that a plugin exports
 *
 * Rules of the whole ABI
 *  - A struct that may grow begins with struct_size, which whoever fills the struct sets to its sizeof. A struct_size
 * of 0, or one beyond what the plugin's abi_minor has, is refused. The reader reads no field past struct_size. Fields
 *    are only ever appended.
 *  - Strings are UTF-8, end in 0 and belong to whoever made them. A plugin's strings stay valid for as long as its
 *    library is loaded, which is until the process ends.
 *  - A plugin allocates no device memory, owns no stream, starts no thread that outlives a call, throws no exception
 *    across the boundary and never ends the process.
 *
 * Who may call a function, and when, is in brackets at the end of its comment:
 *  - [any thread]: at any time, from several threads at once.
 *  - [setup]: before the first step that needs it. May take time and allocate memory. Never two calls of one instance
 * at once.
 *  - [step thread]: in the hot path. Never two calls of one instance at once. It allocates nothing, does not
 *    synchronize, enqueues its work on call->stream and returns. On a GPU the call may be captured in a CUDA graph,
 *    which is then replayed without calling again.
 *
 * The order of calls
 *  - create(); for each shape class (query) supports(), requirements() and prepare(); then calls of that class.
 *    prepare() gets a workspace of the larger of the two sizes that requirements() named for calls, or of the size
 * named for itself where there is memory, and may be called again for the same query. One instance serves many queries,
 * and calls of different ones are interleaved in any order.
 *  - A forward may be followed by other forwards, also of the same query, before its backward: a model runs through all
 *    of its layers first, and backwards mostly come in the reverse order. Not every forward has a backward, and with
 *    activation checkpointing one forward is called twice for one backward. So what a backward needs from its forward
 * is passed in saved[], never kept in the instance.
 *  - A backward that reads saved[] is called on the instance that ran its forward, with the same query and with what
 *    forward wrote there. One without saved tensors (linear's gradients, swiglu's) may be called without a forward.
 *  - Several instances of one plugin may run at once, each on a thread of its own: mutable static data needs a lock.
 */
#ifndef FVLM_ABI_H
#define FVLM_ABI_H

#define FVLM_ABI_MAJOR 1
#define FVLM_ABI_MINOR 0

#include <fvlm/call.h>
#include <fvlm/host.h>
#include <fvlm/instance.h>
#include <fvlm/plugin.h>
#include <fvlm/status.h>
#include <fvlm/tensor.h>

#endif
