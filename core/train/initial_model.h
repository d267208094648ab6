// The model that a Plan names, before any training: encoder and decoder from folders or from the seed, a fresh
// connector.
#pragma once
#include "budget/described_model.h"
#include "model/model.h"

#include <memory>

namespace fvlm::train {

using budget::describe;

std::unique_ptr<model::Model> make_model(const ModelDescription& description, uint64_t seed,
                                         const model::ArenaOptions& options);

} // namespace fvlm::train
