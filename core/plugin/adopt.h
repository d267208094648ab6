// Validates what a plugin's entry point returns and copies its tables.
#pragma once
#include "plugin/loader.h"

namespace fvlm {

// Calls the entry point, checks the result against the ABI and the manifest, and copies the tables. `where` names the
// plugin in errors. Throws Error(plugin). [setup]
LoadedPlugin adopt(fvlm_plugin_entry_function entry, const Manifest& manifest, const std::string& where,
                   const StepNotice& notice);

// A manifest for a library that has none, made of the library's own name, version and those of `kinds` that it has a
// table for. Throws Error(plugin).
Manifest manifest_by_itself(fvlm_plugin_entry_function entry, const std::vector<std::string>& kinds,
                            const std::string& device, const std::string& where, const StepNotice& notice);

// Checks a table and copies it to the size in the engine's headers, with zeros past the plugin's struct_size.
// `declared_minor`: the plugin's ABI minor. The copy is never freed. Throws Error(plugin).
PluginTable adopt_table(const void* table, const KindName& kind, const Family& family, uint32_t declared_minor,
                        fvlm_device device, const std::string& where);

} // namespace fvlm
