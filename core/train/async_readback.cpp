#include "train/async_readback.h"

#include <ATen/ops/empty.h>

namespace fvlm::train {

AsyncReadback::AsyncReadback(const std::vector<at::Tensor>& numbers) {
  for (const at::Tensor& number : numbers) {
    const auto on_host = at::TensorOptions().dtype(number.scalar_type()).pinned_memory(number.is_cuda());
    numbers_.push_back(at::empty(number.sizes(), on_host).copy_(number, true));
  }
  if (device::Runtime* gpu = device::runtime()) event_ = gpu->record_event();
}

const std::vector<at::Tensor>& AsyncReadback::read() const {
  if (event_) event_->wait();
  return numbers_;
}

} // namespace fvlm::train
