// Group of ranks of one host whose devices reach each other's memory. It sums and gathers buffers that the ranks share
// by copy engines: a multiprocessor that moves bytes, as NCCL's do, keeps every product beside it waiting.
#pragma once
#include "dist/group.h"

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::device {
class PeerAccess;
}

namespace fvlm::dist {

class RankWatch;

struct PeerOptions {
  static constexpr int64_t max_ranks = 8;
  int64_t rank = 0, ranks = 1;
  at::Device device = at::kCPU;
  std::function<device::PeerAccess&()> access; // throws std::exception where this rank has none, or is to use none
  // Gives every rank the texts of all.
  std::function<std::vector<std::string>(const std::string& own)> gather;
  int64_t staging_bytes = int64_t{64} << 20;      // for what a rank gets from others before it sums
  std::chrono::milliseconds trial_timeout{20000}; // for the first sum, without which there are no copies
};

// A group that leaves to `other` what it does not do itself; `other` itself where a rank has no access to the others,
// or a trial fails. Every rank calls it. The watch outlives the group.
std::unique_ptr<Group> with_peer_copies(std::unique_ptr<Group> other, const PeerOptions& options, RankWatch& watch);

} // namespace fvlm::dist
