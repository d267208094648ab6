// Uses LibTorch's CPU thread pool for plugins as well, so that a process has only one pool, and limits a small model to
// one thread.
#pragma once
#include <cstdint>

namespace fvlm::ops {

// With fewer parameters, threads spend more time on synchronization than on work (bench/LOG.md).
inline constexpr int64_t parameters_worth_threads = 4'000'000;

// Limits LibTorch to the calling thread for the lifetime of the object, if the model is that small.
class ModelThreads {
 public:
  explicit ModelThreads(int64_t parameters);
  ~ModelThreads();
  ModelThreads(const ModelThreads&) = delete;
  ModelThreads& operator=(const ModelThreads&) = delete;

 private:
  int before_;
};

// Call once, after at::set_num_threads() and before the first call to a plugin. [setup]
void use_torch_threads();

} // namespace fvlm::ops
