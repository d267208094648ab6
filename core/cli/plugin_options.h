// The options of every verb that uses plugins, and what the plugin verbs share.
#pragma once
#include "cli/options.h"
#include "plugin/registry.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace fvlm::cli {

// Adds --plugin-dir, --bundled-only, --lock and --verbose.
Options& with_plugin_options(Options& options);

RegistryOptions registry_options(const ParsedOptions& parsed);

// Opens the plugins that these options allow, and the engine's own `reference`, which loads LibTorch on first use.
std::unique_ptr<Registry> open_registry(RegistryOptions options);
std::unique_ptr<Registry> open_registry(const ParsedOptions& parsed);
// The same for verbs that show plugins: plugins whose probe failed earlier are probed again.
std::unique_ptr<Registry> open_registry_and_reprobe(const ParsedOptions& parsed);

using Json = nlohmann::ordered_json;
Json manifest_json(const Manifest& manifest, Origin origin);
std::string dump(const Json& document); // replaces invalid UTF-8 and escapes terminal commands
bool is_path(const std::string& text);  // false: a plugin's name
[[noreturn]] void unknown_plugin(const Registry& registry, const std::string& name, const std::string& reason);

} // namespace fvlm::cli
