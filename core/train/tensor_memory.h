// The memory that tensors on the CPU hold, as LibTorch asks for it: how much, how much at most, and a limit to it.
#pragma once
#include <cstdint>

namespace fvlm::train {

// Watches all that is asked for while it lives; one at a time. With a limit, what is asked for beyond it is refused
// with c10::OutOfMemoryError, and so is what the machine has not got: rather than that the kernel ends the process.
// [setup]
class TensorMemory {
 public:
  explicit TensorMemory(int64_t limit = 0); // 0: none
  void limit_to(int64_t limit);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t live() const;
  int64_t peak() const; // since reset_peak()
  void reset_peak();
};

} // namespace fvlm::train
