// fvlm-engine plugin trust: adds hashes of plugins to the lock file, or removes them.
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/plugin_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace fs = std::filesystem;
namespace {

// A plugin named by the user, whose files passed the checks of owner and mode.
struct Subject {
  Manifest manifest;
  fs::path library;
  bool bundled;
};

Manifest manifest_of(const Registry& registry, const std::string& name) {
  for (const FoundPlugin& plugin : registry.found())
    if (plugin.manifest.name == name) return plugin.manifest;
  if (std::error_code none; fs::exists(fs::path(name) / "plugin.toml", none)) return Registry::manifest_of(name);
  unknown_plugin(registry, name, registry.why_absent([&](const std::string& refused) { return refused == name; }));
}

Subject subject_of(const Registry& registry, const std::string& name) {
  const LoadOptions& options = registry.options().load;
  Subject subject{is_path(name) ? Registry::manifest_of(name) : manifest_of(registry, name), {}, false};
  if (subject.manifest.file.empty()) { // built in
    subject.bundled = true;
    return subject;
  }
  const fs::path& folder = registry.options().bundled;
  const auto noted = options.bundled.find(subject.manifest.name);
  std::error_code ignored;
  TrustPolicy policy = options.trust;
  if (fs::exists(folder, ignored) && is_below(subject.manifest.folder(), folder)) policy.also_owner_of = folder;
  subject.library = check_plugin_files(subject.manifest, policy);
  subject.bundled = !policy.also_owner_of.empty() && noted != options.bundled.end() &&
                    noted->second == OpenedFile(subject.library).sha256();
  return subject;
}

// The lock file's entry for a plugin's name, or for the path of a plugin or library that an entry was made for.
std::string entry_of(const PluginLock& lock, const std::string& name) {
  if (lock.entries().contains(name)) return name;
  std::error_code none;
  const fs::path path = fs::weakly_canonical(name, none);
  for (const auto& [entry, trusted] : lock.entries())
    if (path == trusted.library || path == fs::path(trusted.library).parent_path() ||
        path == fs::path(trusted.library).parent_path() / "plugin.toml")
      return entry;
  return fs::exists(path, none) ? Registry::manifest_of(path).name : name;
}

// A lock file refuses every plugin that it does not list, so its first entry affects all others.
void print_untrusted(const Registry& registry, const PluginLock& lock) {
  std::vector<std::string> others;
  for (const FoundPlugin& plugin : registry.found())
    if (plugin.origin != Origin::builtin && plugin.origin != Origin::bundled &&
        !lock.entries().contains(plugin.manifest.name))
      others.push_back(plugin.manifest.name);
  if (!others.empty()) fmt::print("not in the lock file and therefore refused: {}\n", join(others, ", "));
}

void trust_one(const Registry& registry, PluginLock& lock, const std::string& name) {
  Subject subject = subject_of(registry, name);
  if (subject.bundled) {
    fmt::print("{} comes with the program and needs no entry\n", subject.manifest.name);
    return;
  }
  std::string sha256 = OpenedFile(subject.library).sha256();
  lock.trust(subject.manifest.name, {sha256, subject.library.string()});
  fmt::print("trusted: {} {}\n", subject.manifest.name, sha256);
}

} // namespace

int run_plugin_trust(Arguments arguments) {
  Options options(
      "plugin trust PLUGIN... [--lock FILE] [--remove]",
      "Add the SHA-256 of plugins to the lock file. Once a lock file exists, only the plugins it lists are\n"
      "loaded, besides those that come with the program.",
      "plugin trust ~/my-plugins/attention-mine");
  options.remaining("PLUGIN", "names, or paths of libraries or folders")
      .flag("remove", "remove them from the lock file");
  with_plugin_options(options);
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  auto names = parsed->values("PLUGIN");
  if (names.empty()) throw Error(ErrorKind::usage, "PLUGIN is missing").advise("name one, or the path of its library");

  TrustPolicy policy;
  fs::path file = parsed->value_or("lock", PluginLock::default_path().string());
  std::error_code ignored;
  PluginLock lock = fs::exists(file, ignored) ? PluginLock::read(check_trusted(file, policy)) : PluginLock();
  RegistryOptions wanted = RegistryOptions::from_environment();
  for (const auto& directory : parsed->values("plugin-dir")) wanted.directories.emplace_back(directory);
  auto registry = open_registry(std::move(wanted));
  for (const auto& name : names) {
    if (!parsed->flag("remove")) {
      trust_one(*registry, lock, name);
      continue;
    }
    const std::string entry = entry_of(lock, name);
    if (!lock.remove(entry)) throw Error(ErrorKind::plugin, "'{}' is not in the lock file", entry).at(file.string());
    fmt::print("no longer trusted: {}\n", entry);
  }
  lock.write(file);
  fmt::print("written: {}\n", file.string());
  print_untrusted(*registry, lock);
  return 0;
}

} // namespace fvlm::cli
