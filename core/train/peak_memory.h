// How much memory tensors hold on a device, and at most.
#pragma once
#include "train/tensor_memory.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fvlm::train {

// All that there is on a GPU: tensors, recordings and what is kept for tensors to come.
int64_t held_on(c10::Device device);

// Of that, the share that lies in gaps between what is in use.
double fragmentation_on(c10::Device device);

class PeakMemory {
 public:
  // On a CPU: of all tensors, and none beyond `limit` bytes is given; one such object at a time.
  PeakMemory(c10::Device device, int64_t limit);

  // Forgets the peak; the limit is the host's alone, a device has its own.
  void begin(int64_t limit);
  int64_t peak() const; // since begin(); what was recorded before holds its own and is not in it
  int64_t held() const; // now: of a GPU all that there is
  void give_back();     // to the machine, what nobody holds

 private:
  c10::Device device_;
  std::optional<TensorMemory> on_host_;
};

} // namespace fvlm::train
