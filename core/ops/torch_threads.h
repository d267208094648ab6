// LibTorch's own CPU threads: plugins' parallel_for works on them, so that a process has one pool and not two; and how
// many of them a model is worth.
#pragma once
#include <cstdint>

namespace fvlm::ops {

// Threads that share the tensors of a model with fewer parameters wait for each other longer than they work
// (bench/LOG.md).
inline constexpr int64_t parameters_worth_threads = 4'000'000;

// While it lives, LibTorch computes a model that small on the calling thread alone.
class ModelThreads {
 public:
  explicit ModelThreads(int64_t parameters);
  ~ModelThreads();
  ModelThreads(const ModelThreads&) = delete;
  ModelThreads& operator=(const ModelThreads&) = delete;

 private:
  int before_;
};

// Call once, before the first plugin works and after at::set_num_threads(). [setup]
void use_torch_threads();

} // namespace fvlm::ops
