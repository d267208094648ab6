// The services that the engine offers plugins (fvlm_caching_host): its log, its CPU threads, and a cache on disk.
#pragma once
#include <fvlm/cache.h>

#include <functional>
#include <string_view>

namespace fvlm {

// The host table for a plugin of this name. Always the same one, never freed. [any thread]
const fvlm_host* host_for(std::string_view plugin);
// What tells the plugin's file from others, such as a hash; without, nothing is kept for it between runs. [any thread]
void identify_plugin(std::string_view plugin, const std::string& identity);

// The maximal number of pieces of parallel_for: FVLM_THREADS, else the number of processors that this process may use.
int32_t parallel_threads();

// Splits [0, count) into pieces = clamp(count / grain, 1, parallel_threads()) ranges, range i being
// [count * i / pieces, count * (i + 1) / pieces), whichever threads run them. Nested or concurrent calls run their
// ranges in order on the calling thread. When all are done, the first exception of a task is rethrown to the caller.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task);

// Makes parallel_for on this thread run on this thread alone, for the lifetime of the object.
class SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  bool before_;
};

// Replaces this room's thread pool, so that LibTorch's is the only one in a process that has it. A backend runs
// piece(0) .. piece(pieces - 1) in any order on any threads and returns when all are done. Empty: back to the pool.
// [setup]
using ParallelBackend = std::function<void(int64_t pieces, const std::function<void(int64_t)>& piece)>;
void set_parallel_backend(ParallelBackend backend, int32_t threads);

} // namespace fvlm
