#include "train/late.h"

#include <ATen/ops/empty.h>

namespace fvlm::train {

Late::Late(const std::vector<at::Tensor>& numbers) {
  for (const at::Tensor& number : numbers) {
    const auto on_host = at::TensorOptions().dtype(number.scalar_type()).pinned_memory(number.is_cuda());
    numbers_.push_back(at::empty(number.sizes(), on_host).copy_(number, true));
  }
  if (device::Runtime* gpu = device::runtime()) there_ = gpu->mark();
}

const std::vector<at::Tensor>& Late::read() const {
  if (there_) there_->wait();
  return numbers_;
}

} // namespace fvlm::train
