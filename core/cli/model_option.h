// Resolves the model argument of a command line to a model directory.
#pragma once
#include <filesystem>
#include <string>

namespace fvlm::cli {

// Returns a model directory or checkpoint as it is. For the folder of a run or of a stage, returns the newest finished
// checkpoint of the last stage that has one, and logs which. Throws Error(data) for a run without a checkpoint. Any
// other path is returned as it is: opening it reports what is wrong.
std::filesystem::path resolve_model(const std::string& given);

} // namespace fvlm::cli
