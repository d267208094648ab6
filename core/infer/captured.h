// For passes on a GPU that are captured, or launched without synchronizing with the device.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace fvlm::infer {

// A captured pass has to leave its result in memory that exists already: that of the first pass, which runs eagerly.
inline void keep(at::Tensor& kept, const at::Tensor& result) {
  if (kept.defined())
    kept.copy_(result);
  else
    kept = result;
}

// An int64 tensor of these numbers, copied asynchronously from pinned memory: a copy from pageable memory would
// synchronize with the device.
inline at::Tensor upload(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor listed =
      at::empty({std::ssize(values)}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  std::ranges::copy(values, listed.mutable_data_ptr<int64_t>());
  return listed.to(device, at::kLong, /*non_blocking=*/true);
}

} // namespace fvlm::infer
