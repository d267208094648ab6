// What the engine offers plugins (fvlm_host): its log and its CPU threads.
#pragma once
#include <fvlm/abi.h>

#include <functional>
#include <string_view>

namespace fvlm {

// The host table for a plugin of this name: the same one each time, valid for ever. [any thread]
const fvlm_host* host_for(std::string_view plugin);

// How many pieces parallel_for makes at most: FVLM_THREADS, else the processors this process may use.
int32_t parallel_threads();

// [0, count) is cut into pieces = clamp(count / grain, 1, parallel_threads()) parts, part i being
// [count * i / pieces, count * (i + 1) / pieces), whoever runs them. Nested or concurrent calls run their pieces in
// order on the calling thread. The first exception of a task is thrown again on the caller's side when all are done.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task);

// While it lives, parallel_for on this thread runs its pieces in order and leaves other threads alone.
class WorksAlone {
 public:
  WorksAlone();
  ~WorksAlone();
  WorksAlone(const WorksAlone&) = delete;
  WorksAlone& operator=(const WorksAlone&) = delete;

 private:
  bool before_;
};

// Runs piece(0) .. piece(pieces - 1) in any order, on any threads, and returns when all are done. Replaces the thread
// pool of this room, so that only one exists once LibTorch is there. Empty: back to the pool. [setup]
using ParallelBackend = std::function<void(int64_t pieces, const std::function<void(int64_t)>& piece)>;
void set_parallel_backend(ParallelBackend backend, int32_t threads);

} // namespace fvlm
