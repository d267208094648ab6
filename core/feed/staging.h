// Memory of the host from which a device reads.
#pragma once
#include "data/stream/frame_pool.h"

#include <c10/core/Device.h>

namespace fvlm::feed {

// Pinned for CUDA, so that copies need not wait for it; plain for the CPU.
AllocateHost staging_for(at::Device device);

} // namespace fvlm::feed
