// What passes on a GPU need that are launched without waiting for the device, or captured.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace fvlm::infer {

// A captured pass may leave its result only in memory that was there before: that of the first, eager one.
inline void keep(at::Tensor& kept, const at::Tensor& result) {
  if (kept.defined())
    kept.copy_(result);
  else
    kept = result;
}

// These numbers on the device, int64, which copies them when it gets there; `.to(device)` would wait until it does.
inline at::Tensor upload(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor listed =
      at::empty({std::ssize(values)}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  std::ranges::copy(values, listed.mutable_data_ptr<int64_t>());
  return listed.to(device, at::kLong, /*non_blocking=*/true);
}

} // namespace fvlm::infer
