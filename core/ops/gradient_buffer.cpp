#include "ops/gradient_buffer.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace fvlm::ops {
namespace {

// The storage keeps its size, by which LibTorch judges whether views fit into it.
void set_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

} // namespace

GradientBuffer::GradientBuffer(int64_t elements, const at::TensorOptions& options)
    : values_(at::empty({elements}, options)) {
  release();
}

void GradientBuffer::allocate() {
  if (has_memory_) return;
  set_memory(values_, c10::GetAllocator(values_.device().type())->allocate(values_.nbytes()));
  has_memory_ = true;
  values_.zero_();
}

void GradientBuffer::release() {
  if (!has_memory_) return;
  set_memory(values_, {nullptr, values_.device()});
  has_memory_ = false;
}

} // namespace fvlm::ops
