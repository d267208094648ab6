// device/peer_access.h by CUDA's interprocess handles, peer copies and memory operations of streams.
#pragma once
#include "device/peer_access.h"

namespace fvlm::device {

std::unique_ptr<PeerAccess> make_cuda_peer_access();

} // namespace fvlm::device
