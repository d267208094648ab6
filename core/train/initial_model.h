// The model that a Plan names, before any training: towers from folders or from the seed, a fresh connector.
#pragma once
#include "model/vlm.h"
#include "model/weights/model_directory.h"
#include "recipe/plan.h"

#include <memory>

namespace fvlm::train {

// All but the parameters. Throws Error(data) for folders that make no sense.
ModelDescription describe(const plan::Plan& plan);

std::unique_ptr<model::Vlm> make_model(const ModelDescription& description, uint64_t seed,
                                       const model::ArenaOptions& options);

} // namespace fvlm::train
