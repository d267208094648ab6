#include "feed/staging.h"

#include <ATen/ops/empty.h>

namespace fvlm::feed {

AllocateHost staging_for(at::Device device) {
  if (!device.is_cuda()) return allocate_host;
  return [](size_t bytes) {
    const at::Tensor pinned =
        at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(pinned.data_ptr()), [pinned](std::byte*) {});
  };
}

} // namespace fvlm::feed
