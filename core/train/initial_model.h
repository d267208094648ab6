// The model that a Plan names, before any training: encoder and decoder from folders or from the seed, a fresh
// connector, fresh adapters.
#pragma once
#include "budget/described_model.h"
#include "model/model.h"

#include <map>
#include <memory>
#include <string>

namespace fvlm::train {

using budget::describe;

std::unique_ptr<model::Model> make_model(const ModelDescription& description, uint64_t seed,
                                         const model::ArenaOptions& options);

// For the weights of a checkpoint: the frozen ones below adapters are there, from the description's folders, and no
// others.
std::unique_ptr<model::Model> make_bare(const ModelDescription& description, const model::ArenaOptions& options);

// How a parameter of the description's model is quantized in its folder, or null: for ArenaOptions.
using SchemeOf = std::function<const PackedScheme*(const model::ParameterSpec&)>;
SchemeOf schemes_of(const ModelDescription& description);

// Where the description's folders have their plain weights, by name in the model directory: views that are good as long
// as the folders are.
std::map<std::string, const TensorView*> folder_views(const ModelDescription& description);

// The weights of a checkpoint or a model directory. Those below adapters come from the description, whose checksums are
// known, and have to be the directory's too; adapters that it does not have are fresh.
std::unique_ptr<model::Model> make_from(const ModelDirectory& directory, const ModelDescription& description,
                                        uint64_t seed, const model::ArenaOptions& options);

// Throws Error(data) where a directory's adapters are of another kind than the description's, or on another base.
void require_same_base(const ModelDirectory& directory, const ModelDescription& description);

} // namespace fvlm::train
