// A parallel loop on temporary threads.
#pragma once
#include <cstdint>
#include <functional>

namespace fvlm {

// `wanted`, or the number of cores where it is 0.
int threads_or_cores(int wanted);

// Calls work(0) .. work(count - 1) on `threads` threads, including this one. Every thread has its own copy of `work`.
// An exception stops the loop; of several, that of the smallest index is rethrown, so that the result is deterministic.
void in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& work);

} // namespace fvlm
