// Many small things done on several threads at once.
#pragma once
#include <cstdint>
#include <functional>

namespace fvlm {

// The threads that are wanted; for 0 as many as there are cores.
int threads_or_cores(int wanted);

// Does work(0) .. work(count - 1), each once, on so many threads, this one among them. Every thread works with its own
// copy of `work`. The first error ends it; of several the one of the smallest index is thrown, the same every time.
void in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& work);

} // namespace fvlm
