// The model that an argument of the command line names.
#pragma once
#include <filesystem>
#include <string>

namespace fvlm::cli {

// A model directory or a checkpoint: itself. The folder of a run or of one of its stages: the newest finished
// checkpoint of the last stage that has one, which is said on standard error. Throws Error(data) with what to do where
// it is neither.
std::filesystem::path model_named(const std::string& given);

} // namespace fvlm::cli
