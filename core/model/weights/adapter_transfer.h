// Adapters in and out of model directories, in PEFT's form.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace fvlm {

// Writes a model directory that has a PEFT adapter on the part of that name of the model `base`. Throws Error(data)
// where they do not fit.
void import_adapter(const std::filesystem::path& peft, const std::filesystem::path& base, const std::string& part,
                    const std::filesystem::path& out);

// Writes the adapter of a part as a folder that PEFT loads. `part`: none: the only one. Throws Error(data) where there
// is none, or several.
void export_adapter(const std::filesystem::path& model, const std::optional<std::string>& part,
                    const std::filesystem::path& out);

} // namespace fvlm
