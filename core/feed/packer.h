// The packer that a recipe's `kernels.packer` chooses, as the loader calls it.
#pragma once
#include "data/stream/composer.h"
#include "plugin/selection.h"
#include "recipe/plan.h"

namespace fvlm::feed {

// Throws Error(plugin) where none fits. `report`: is told which, and why.
PackFunction choose_packer(Registry& registry, const plan::BackendPreferences& preferences, const PackSize& capacity,
                           SelectionReport* report = nullptr);

} // namespace fvlm::feed
