// Group by NCCL, called directly, on the runtime's communication stream. CUDA graphs capture its operations.
#pragma once
#include "dist/group.h"

#include <functional>
#include <memory>
#include <string>

namespace fvlm::dist {

class RankWatch;

// `from_first` gives every rank the text of rank 0. The watch outlives the group. Throws Error(device).
std::unique_ptr<Group> make_nccl_group(int64_t rank, int64_t ranks,
                                       const std::function<std::string(std::string own)>& from_first, RankWatch& watch);

} // namespace fvlm::dist
