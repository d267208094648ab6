#include "cli/plugin_options.h"

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/tensor_module.h"
#include "cli/torch_library.h"
#include "ops/reference_manifest.h"

#include <fmt/format.h>

namespace fvlm::cli {

Options& with_plugin_options(Options& options) {
  return options.repeated_value("plugin-dir", "DIR", "search this folder for plugins first (repeatable)")
      .flag("bundled-only", "use only the plugins that come with the program")
      .value("lock", "FILE", "lock file of trusted plugins; default: the user's own")
      .flag("verbose", "also log which plugins were considered and why each was refused");
}

RegistryOptions registry_options(const ParsedOptions& parsed) {
  if (parsed.flag("verbose")) set_log_level(LogLevel::debug);
  auto options = RegistryOptions::from_environment();
  for (const auto& directory : parsed.values("plugin-dir")) options.directories.emplace_back(directory);
  options.bundled_only = parsed.flag("bundled-only");
  if (auto lock = parsed.value("lock")) options.load.lock = PluginLock::read(check_trusted(*lock, options.load.trust));
  return options;
}

std::unique_ptr<Registry> open_registry(RegistryOptions options) {
  auto registry = std::make_unique<Registry>(std::move(options));
  registry->add_static(ops::reference_manifest(), [] { return tensor_module().reference; });
  return registry;
}

std::unique_ptr<Registry> open_registry(const ParsedOptions& parsed) {
  return open_registry(registry_options(parsed));
}

std::unique_ptr<Registry> open_registry_and_reprobe(const ParsedOptions& parsed) {
  RegistryOptions options = registry_options(parsed);
  options.load.probe.when = ProbeOptions::When::failed;
  load_torch_cuda_if_available();
  return open_registry(std::move(options));
}

namespace {

std::vector<std::string> kind_texts(const Manifest& manifest) {
  std::vector<std::string> all;
  for (const KindName& kind : manifest.kinds) all.push_back(kind.text());
  return all;
}

} // namespace

std::string dump(const Json& document) {
  return escape_control_characters(document.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

Json manifest_json(const Manifest& manifest, Origin origin) {
  Json document = {{"name", manifest.name},
                   {"version", manifest.version},
                   {"description", manifest.description},
                   {"license", manifest.license},
                   {"abi", fmt::format("{}.{}", manifest.abi_major, manifest.abi_minor)},
                   {"kinds", kind_texts(manifest)},
                   {"unknown_kinds", manifest.unknown_kinds},
                   {"devices", manifest.devices},
                   {"architectures", manifest.architectures},
                   {"from", origin_name(origin)}};
  if (origin != Origin::builtin) document["library"] = manifest.library_path().string();
  return document;
}

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos || text == "." || text == ".." || text.ends_with(".so");
}

[[noreturn]] void unknown_plugin(const Registry& registry, const std::string& name, const std::string& reason) {
  std::vector<std::string> names;
  for (const FoundPlugin& plugin : registry.found()) names.push_back(plugin.manifest.name);
  Error error(ErrorKind::plugin, reason);
  error.at(name);
  if (auto near = nearest(name, names); near && *near != name)
    error.advise("did you mean '{}'?", *near);
  else
    error.advise("`fvlm-engine plugin list` shows all; --plugin-dir adds a folder");
  throw error;
}

} // namespace fvlm::cli
