// Adapters in and out of model directories, in PEFT's form.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct AdapterImport {
  std::filesystem::path peft, base, out;
  std::optional<std::string> part; // none: which parts it is for is found by the names of its tensors
};
// Writes a model directory that has a PEFT adapter on the model `base`. Throws Error(data) where they do not fit.
// Returns the modules whose adapters were left out, as they add nothing: see whole_adapter.h.
std::vector<std::string> import_adapter(const AdapterImport& request);

struct AdapterExport {
  std::filesystem::path model, out;
  // None: the adapter of the whole model where it was imported from one folder, and else of the only part that has one.
  std::optional<std::string> part;
  std::optional<std::string> base; // name of the base model in adapter_config.json; none: the folder of the base
};
// Writes a folder that PEFT loads. Throws Error(data) where there is no adapter, or none that PEFT can have.
void export_adapter(const AdapterExport& request);

} // namespace fvlm
