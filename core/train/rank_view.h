// What has to be the same on every rank of a run, compared before the first step and by `doctor`.
#pragma once
#include "dist/ranks.h"
#include "plugin/registry.h"
#include "recipe/resolve.h"

#include <string>
#include <vector>

namespace fvlm::train {

// How a rank is set up.
struct RankView {
  std::string host, device; // "node1", "NVIDIA H100 80GB HBM3 at 00000000:1B:00.0"
  // Sorted lines "WHAT: HOW" that have to be those of every rank: versions, plan, kind of device, plugins by the hashes
  // of their libraries.
  std::vector<std::string> lines;
  double clock = 0; // in seconds, at the same moment on all ranks
};

// Of all ranks, by rank. `plan_hash`: empty where there is no plan. Every rank calls it.
std::vector<RankView> rank_views(const dist::Ranks& ranks, const Registry& registry, at::Device device,
                                 const std::string& plan_hash = "");
double clock_difference(const std::vector<RankView>& views); // the largest
// Throws Error(usage) that says which rank has what otherwise than the first one.
void require_equal(const std::vector<RankView>& views);

// Both of these, where there are several ranks.
void require_equal_views(const dist::Ranks& ranks, const recipe::Resolved& resolved, const Registry& registry,
                         at::Device device, int64_t zero);

} // namespace fvlm::train
