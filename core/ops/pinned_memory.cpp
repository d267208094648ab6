#include "ops/pinned_memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fvlm::ops {
namespace {

// The same memory as the device sees it, under the address that it has on the host.
at::Tensor seen_by(at::Device device, const at::Tensor& tensor) {
  if (tensor.device() == device) return tensor;
  const at::DataPtr& memory = tensor.storage().data_ptr();
  at::getHostAllocator(device.type())
      ->record_event(memory.get(), memory.get_context(), c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .options(tensor.options().device(device).pinned_memory(false))
      .target_device(device)
      .make_tensor();
}

} // namespace

void copy_by_kernel(const at::Tensor& to, const at::Tensor& from) {
  const at::Device device = to.is_cpu() ? from.device() : to.device();
  if (device.is_cpu()) {
    to.copy_(from);
    return;
  }
  at::Tensor result = seen_by(device, to);
  // copy_() would take the copy engine.
  at::add_out(result, seen_by(device, from),
              at::scalar_tensor(0, from.options().device(at::kCPU).pinned_memory(false)));
}

} // namespace fvlm::ops
