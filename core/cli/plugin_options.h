// The options that say which plugins may be used, the same for every verb that uses plugins.
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

// What these options let in, and the engine's own `reference`, which brings LibTorch along when it is first used.
std::unique_ptr<Registry> open_registry(RegistryOptions options);
std::unique_ptr<Registry> open_registry(const ParsedOptions& parsed);
// The same for verbs that show plugins: what failed its trial before is tried again.
std::unique_ptr<Registry> open_registry_with_care(const ParsedOptions& parsed);

// What the verbs of the group share.
using Json = nlohmann::ordered_json;
Json manifest_json(const Manifest& manifest, Origin origin);
std::string dump(const Json& document); // bytes that are not UTF-8 replaced, escape_commands()
bool is_path(const std::string& text);  // rather than a plugin's name
[[noreturn]] void unknown_plugin(const Registry& registry, const std::string& name, const std::string& reason);

} // namespace fvlm::cli
