// What the word MODEL of a command names.
#pragma once
#include <filesystem>
#include <string>

namespace fvlm::cli {

inline constexpr const char* named_model_help =
    "a model directory, a checkpoint, a run folder (its newest checkpoint), or the folder of a published model or its "
    "name in the Hub's cache, which is imported the first time";

// The model directory or checkpoint: see resolve_model(). The folder of a published model, and a name such as
// "org/model" that the cache of the Hugging Face Hub has, are imported the first time, into the cache folder.
// Throws Error(data) as resolve_model() and import do.
std::filesystem::path model_named(const std::string& named);

// What a server calls it, unless it is told another name: the last part of its path, or its name on the Hub.
std::string usual_name_of_model(const std::string& named);

} // namespace fvlm::cli
