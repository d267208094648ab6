// What people often mean by a path that leads nowhere.
#pragma once
#include <filesystem>
#include <string>

namespace fvlm {

// For a path that begins with "~": the shell expands it only outside quotes, and nothing else does. Empty: no hint.
std::string hint_on_home(const std::filesystem::path& path);

// For a model's folder that is not there, the name of a model on the Hugging Face Hub ("org/name") too.
std::string hint_on_model(const std::filesystem::path& path);

} // namespace fvlm
