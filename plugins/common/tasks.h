// tasks.h: dynamic scheduling of uneven tasks over the engine's threads.
#pragma once

#include <fvlm/abi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace fvlm::plugins {

// Calls run(worker, task) once for every task of [0, count). A worker takes the next task when it is idle, so the
// assignment varies from call to call: a task must write only its own results, and use the scratch area of its worker
// (worker < workers()) for anything else. Costly tasks should come first. `most`: workers for which there is work
// enough.
template <class Run>
void run_tasks(const fvlm_host* host, int64_t count, const Run& run,
               int64_t most = std::numeric_limits<int64_t>::max()) {
  struct Shared {
    const Run& run;
    int64_t count;
    std::atomic<int64_t> next;
  } shared{run, count, {0}};
  const int64_t workers = std::min({int64_t{host->parallel_threads(host)}, count, most});
  if (workers <= 1) {
    for (int64_t task = 0; task < count; ++task) run(0, task);
    return;
  }
  host->parallel_for(
      host, workers, 1,
      [](void* context, int64_t begin, int64_t) {
        Shared& all = *static_cast<Shared*>(context);
        for (int64_t task = all.next++; task < all.count; task = all.next++) all.run(static_cast<int>(begin), task);
      },
      &shared);
}

// Number of scratch areas that run_tasks() needs.
inline int64_t workers(const fvlm_host* host) {
  return host->parallel_threads(host);
}

} // namespace fvlm::plugins
