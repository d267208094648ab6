// Hints for common mistakes in a path that does not exist. An empty string: no hint.
#pragma once
#include <filesystem>
#include <string>

namespace fvlm {

// For a path that starts with "~", which the shell expands only outside quotes.
std::string hint_on_home(const std::filesystem::path& path);

// `advice`, and for a relative path the folder that it starts from.
std::string with_start_of(const std::filesystem::path& path, std::string advice = "");

// For a model's folder: the same, how to download one whose last part is the name of a well-known model of the Hugging
// Face Hub, and that "org/name" has to be downloaded first, unless it is the name of a folder that the engine makes.
std::string hint_on_model(const std::filesystem::path& path);
// The same for a model directory, which `import` makes of what was downloaded.
std::string hint_on_model_directory(const std::filesystem::path& path);

} // namespace fvlm
