// What stands between a plugin's entry point and the engine's use of its tables.
#pragma once
#include "plugin/loader.h"

namespace fvlm {

// Calls the entry point, holds what it gives to the ABI and to the manifest, and copies the tables. `where` names the
// plugin in errors. Throws Error(plugin). [setup]
LoadedPlugin adopt(fvlm_plugin_entry_function entry, const Manifest& manifest, const std::string& where,
                   const StepNotice& notice);

// What a library without a manifest says of itself, in the manifest's place: `kinds` are those it is asked for. Throws
// Error(plugin).
Manifest manifest_by_itself(fvlm_plugin_entry_function entry, const std::vector<std::string>& kinds,
                            const std::string& device, const std::string& where, const StepNotice& notice);

// A copy of a table as the engine's own headers know it: checked, and 0 past the plugin's struct_size. `declared_minor`
// is the plugin's. The copy stays for ever. Throws Error(plugin).
PluginTable adopt_table(const void* table, const KindName& kind, const Family& family, uint32_t declared_minor,
                        fvlm_device device, const std::string& where);

} // namespace fvlm
