// cuda_dependent_launch.cuh: programmatic dependent launch. A kernel that is launched so may start while the one before
// it on the stream is still running, reads what no kernel writes (weights), and waits before it touches anything else.
// Before Hopper, and where a kernel is launched as usual, nothing changes.
#pragma once

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

// Lets the next kernel on the stream start as soon as all blocks of this one have got here. It waits for this one to
// complete, so the call may stand at the kernel's beginning.
__device__ inline void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernel before this one has completed, and with it, as it waited too, all before it.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A launch attribute for kernels of which every block calls wait_for_previous_kernel().
inline cudaLaunchAttribute may_start_early() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

} // namespace fvlm::plugins
