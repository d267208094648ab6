// Resolves a model that a command line or a recipe names to a model directory.
#pragma once
#include "recipe/plan.h"

#include <filesystem>
#include <string>
#include <vector>

namespace fvlm {

// Returns a model directory or checkpoint as it is. For the folder of a run or of a stage, returns the newest finished
// checkpoint of the last stage that has one, and logs which. Throws Error(data) for a run without a checkpoint. Any
// other path is returned as it is: opening it reports what is wrong.
std::filesystem::path resolve_model(const std::filesystem::path& named);

// The names of the stages of a run's plan.json, in order. Only they are read, so that the plan of an earlier version
// serves, too. Throws Error(data).
std::vector<std::string> stages_of(const std::filesystem::path& plan_file);

// Throws Error(data) for a checkpoint of a stage that is not done: its run removes it when newer ones are there. For
// those who write its name down.
void require_lasting(const std::filesystem::path& model);

// Fills in the vision tower, the decoder and the connector of the model directory that a recipe names, and the size of
// the encoder's images where the decoder rows of a frame depend on it. Throws Error(data).
void read_model_directory(plan::Model& model);

} // namespace fvlm
