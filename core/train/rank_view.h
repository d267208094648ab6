// What has to be the same on every rank of a run, compared before the first step.
#pragma once
#include "dist/ranks.h"
#include "plugin/registry.h"
#include "recipe/resolve.h"

namespace fvlm::train {

// Versions, plan, device and plugins, which are known by the hashes of their libraries. Throws Error(usage) that names
// what this rank has otherwise than the first one. Every rank calls it.
void require_equal_views(const dist::Ranks& ranks, const recipe::Resolved& resolved, const Registry& registry,
                         at::Device device);

} // namespace fvlm::train
