// Group by c10d's ProcessGroupGloo: TCP between hosts. Tensors of a GPU go through the host's memory.
#pragma once
#include "dist/group.h"

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>

namespace c10d {
class Store;
}

namespace fvlm::dist {

class RankWatch;

// The watch, which outlives the group, makes errors of it. Throws std::exception where the ranks do not meet.
std::unique_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t ranks,
                                       std::chrono::milliseconds timeout, RankWatch& watch);

} // namespace fvlm::dist
