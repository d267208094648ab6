// Small copies between the device and pinned memory of the host.
#pragma once
#include <ATen/core/Tensor.h>

namespace fvlm::ops {

// Enqueues a copy between two contiguous tensors of one dtype and size, of which one or both may be in pinned memory,
// that a kernel reads or writes across the bus. A copy engine would be slower: between it and the kernels before and
// behind it the device rests for 5 to 10 us each (bench/LOG.md, 2026-11-28). Pinned memory is not used for anything
// else before the copy is done. Without a GPU it copies.
void copy_by_kernel(const at::Tensor& to, const at::Tensor& from);

} // namespace fvlm::ops
