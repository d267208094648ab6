// Numbers that the device is still to come to, on their way to the host, which has other things to do until then.
#pragma once
#include "device/runtime.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fvlm::train {

class AsyncReadback {
 public:
  // As they are when all is done that was enqueued before.
  explicit AsyncReadback(const std::vector<at::Tensor>& numbers);

  // In memory of the host, in the same order. Waits for the device.
  const std::vector<at::Tensor>& read() const;
  // Where the device has come to them; none where they were there at once.
  const std::shared_ptr<device::Event>& event() const { return event_; }

 private:
  std::vector<at::Tensor> numbers_;
  std::shared_ptr<device::Event> event_;
};

} // namespace fvlm::train
