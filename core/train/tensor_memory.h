// The memory that tensors on the CPU hold, as LibTorch asks for it: how much, how much at most, and a limit to it.
#pragma once
#include <cstdint>

namespace fvlm::train {

// Watches all that is asked for while it lives; one at a time. What is asked for beyond the limit is refused with
// c10::OutOfMemoryError, as memory that the machine does not have. [setup]
class TensorMemory {
 public:
  explicit TensorMemory(int64_t limit = 0); // 0: none
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t live() const;
  int64_t peak() const; // since reset_peak()
  void reset_peak();
};

} // namespace fvlm::train
