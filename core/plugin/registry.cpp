#include "plugin/registry.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "device/probe.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

std::vector<fs::path> children(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> all;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    all.push_back(entry->path());
  std::ranges::sort(all);
  return all;
}

// sm_90a runs on 9.0 alone; sm_90 on 9.0 and later 9.x, and so does sm_100f on 10.0 and later 10.x.
bool runs_on(const std::string& architecture, std::pair<int, int> capability) {
  int number = 0;
  std::from_chars(architecture.data() + 3, architecture.data() + architecture.size(), number);
  const bool exact = architecture.back() == 'a';
  return number / 10 == capability.first &&
         (exact ? number % 10 == capability.second : number % 10 <= capability.second);
}

// Why a library for these devices and architectures cannot be used on this machine; empty where it can.
std::string unfit(const Manifest& manifest, const DevicesHere& here) {
  if (manifest.on_device("cpu")) return "";
  if (!here.cuda) return "needs a CUDA device: " + here.problem;
  if (manifest.architectures.empty()) return "";
  for (const auto& architecture : manifest.architectures)
    for (auto capability : here.capabilities)
      if (runs_on(architecture, capability)) return "";
  std::vector<std::string> have;
  for (auto [major, minor] : here.capabilities) have.push_back(fmt::format("sm_{}{}", major, minor));
  return fmt::format("built for {}; this machine has {} (bundled plugins can be built for it with "
                     "-DFVLM_CUDA_ARCHITECTURES)",
                     join(manifest.architectures, ", "), join(have, ", "));
}

// For use in a catch block: the exception's message, with paths below the folder made relative to it.
std::string caught_reason(const fs::path& folder) {
  try {
    throw;
  } catch (const Error& error) {
    std::string where = error.where(), below = folder.string() + "/";
    if (where == folder.string()) where.clear();
    if (where.starts_with(below)) where = where.substr(below.size());
    std::string text = where.empty() ? error.what() : fmt::format("{}: {}", where, error.what());
    return error.advice().empty() ? text : fmt::format("{} ({})", text, error.advice());
  } catch (const std::exception& error) {
    return error.what();
  }
}

} // namespace

DevicesHere probe_devices() {
  auto probe = device::probe_cuda();
  DevicesHere here{!probe.devices.empty(), probe.problem, {}};
  for (const auto& device : probe.devices)
    here.capabilities.emplace_back(device.capability_major, device.capability_minor);
  return here;
}

RegistryOptions RegistryOptions::from_environment() {
  RegistryOptions options;
  if (const char* path = std::getenv("FVLM_PLUGIN_PATH")) options.path = path;
  std::error_code ignored;
  const fs::path own = fs::weakly_canonical(program_folder() / ".." / "lib" / "fvlm", ignored);
  options.bundled = own / "plugins";
  options.load.bundled = read_bundled_hashes(own / "bundled", options.load.trust);
  if (fs::path lock = PluginLock::default_path(); present(lock))
    options.load.lock = PluginLock::read(check_trusted(lock, options.load.trust));
  return options;
}

Registry::Registry(RegistryOptions options) : options_(std::move(options)) {
  options_.load.bundled_only = options_.bundled_only;
  if (!options_.bundled_only) {
    for (const auto& directory : options_.directories)
      scan(fs::absolute(directory).lexically_normal(), Origin::directory);
    scan_path();
  }
  if (!options_.bundled.empty() && present(options_.bundled)) scan(options_.bundled, Origin::bundled);
}

void Registry::refuse(const std::string& name, const fs::path& where, const std::string& reason) {
  refusals_.push_back({printable(name), where, printable(reason)});
}

void Registry::scan_path() {
  if (options_.path.empty()) return;
  for (const auto& entry : split(options_.path, ':')) {
    if (entry.empty())
      refuse("", entry, "an empty entry of FVLM_PLUGIN_PATH; the working directory is never searched");
    else if (!fs::path(entry).is_absolute())
      refuse("", entry, "a relative entry of FVLM_PLUGIN_PATH; use an absolute path");
    else
      scan(fs::path(entry).lexically_normal(), Origin::path);
  }
}

void Registry::scan(const fs::path& directory, Origin origin) {
  if (present(directory / "plugin.toml")) {
    scan_folder(directory, origin);
    return;
  }
  std::error_code error;
  bool any = false;
  for (const auto& child : children(directory, error)) {
    std::error_code ignored;
    if (fs::is_directory(child, ignored))
      any |= scan_folder(child, origin);
    else if (!fs::exists(child, ignored))
      refuse(child.filename(), child, "a dangling symlink");
  }
  if (error)
    refuse("", directory, "the folder cannot be read: " + error.message());
  else if (origin == Origin::directory && !any)
    refuse("", directory, "no plugin in this folder: it has neither plugin.toml nor NAME/plugin.toml");
}

bool Registry::scan_folder(const fs::path& folder, Origin origin) {
  fs::path file = folder / "plugin.toml";
  if (present(file)) {
    try {
      add(read_manifest(file), origin);
    } catch (const std::exception&) {
      const std::string reason = caught_reason(folder);
      refuse(name_in_manifest(file).value_or(folder.filename()), folder, reason);
    }
    return true;
  }
  std::error_code error;
  for (const auto& child : children(folder, error))
    if (child.extension() == ".so") {
      refuse(folder.filename(), folder, fmt::format("no plugin.toml next to {}", child.filename().string()));
      return true;
    }
  if (error) refuse(folder.filename(), folder, "the folder cannot be read: " + error.message());
  return static_cast<bool>(error);
}

void Registry::add(Manifest manifest, Origin origin) {
  for (const auto& entry : entries_) {
    const Manifest& first = entry->plugin.manifest;
    std::error_code ignored;
    if (fs::equivalent(first.file, manifest.file, ignored)) return; // the same folder, found twice
    if (first.name == manifest.name) {
      refuse(manifest.name, manifest.folder(),
             fmt::format("a plugin of this name was already found in {}", first.folder().string()));
      if (origin == Origin::bundled && options_.load.bundled.contains(manifest.name))
        entry->hidden = std::move(manifest);
      return;
    }
  }
  auto entry = std::make_unique<Entry>();
  const bool noted = origin != Origin::bundled || options_.load.bundled.contains(manifest.name);
  entry->plugin.manifest = std::move(manifest);
  entry->plugin.origin = noted ? origin : Origin::installed;
  entries_.push_back(std::move(entry));
}

void Registry::add_static(Manifest manifest, std::function<fvlm_plugin_entry_function()> entry) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& other) {
    if (other->plugin.manifest.name != manifest.name) return false;
    refuse(manifest.name, other->plugin.manifest.folder(), "this name is reserved for a built-in plugin");
    return true;
  });
  auto added = std::make_unique<Entry>();
  added->plugin.manifest = std::move(manifest);
  added->plugin.origin = Origin::builtin;
  added->entry = std::move(entry);
  entries_.push_back(std::move(added));
}

std::vector<FoundPlugin> Registry::found() const {
  std::lock_guard lock(mutex_);
  std::vector<FoundPlugin> all;
  for (const auto& entry : entries_) all.push_back(entry->plugin);
  return all;
}

std::vector<Refusal> Registry::refusals() const {
  std::lock_guard lock(mutex_);
  return refusals_;
}

std::vector<FoundPlugin> Registry::implementing(const KindName& kind) {
  const std::lock_guard lock(mutex_);
  const auto lists_kind = [&](const Manifest& manifest) {
    return std::ranges::find(manifest.kinds, kind) != manifest.kinds.end();
  };
  std::vector<FoundPlugin> all;
  for (const auto& entry : entries_) {
    if (entry->hidden && lists_kind(*entry->hidden)) open(*entry);
    if (lists_kind(entry->plugin.manifest)) all.push_back(entry->plugin);
  }
  return all;
}

const DevicesHere& Registry::devices() {
  if (!options_.devices) options_.devices = probe_devices();
  return *options_.devices;
}

const LoadedPlugin* Registry::open(Entry& entry) {
  if (entry.tried) return entry.plugin.loaded;
  entry.tried = true;
  const LoadedPlugin* loaded = open_this(entry);
  const Manifest& manifest = entry.plugin.manifest;
  if (!loaded && entry.hidden) {
    log_warning("the plugin '{}' in {} is ignored in favour of the bundled one of the same name: {}", manifest.name,
                manifest.folder().string(), *entry.plugin.refusal);
    std::erase_if(refusals_, [&](const Refusal& refusal) { return refusal.where == entry.hidden->folder(); });
    entry.plugin = {std::move(*entry.hidden), Origin::bundled, nullptr, std::nullopt};
    entry.hidden.reset();
    return open_this(entry);
  }
  if (loaded && loaded->origin == Origin::bundled)
    for (const Refusal& refusal : refusals_)
      if (refusal.name == manifest.name)
        log_warning("the plugin '{}' in {} is ignored in favour of the bundled one of the same name: {}", refusal.name,
                    refusal.where.string(), refusal.reason);
  return loaded;
}

const LoadedPlugin* Registry::open_this(Entry& entry) {
  FoundPlugin& plugin = entry.plugin;
  const Manifest& manifest = plugin.manifest;
  try {
    if (plugin.origin == Origin::builtin) {
      plugin.loaded = &load_static_plugin(entry.entry(), manifest);
    } else {
      if (std::string why = manifest.on_device("cpu") ? "" : unfit(manifest, devices()); !why.empty())
        throw Error(ErrorKind::plugin, why);
      plugin.loaded = &load_plugin(manifest, plugin.origin, options_.load);
      plugin.origin = plugin.loaded->origin;
    }
  } catch (const std::exception&) {
    plugin.refusal = printable(caught_reason(manifest.folder()));
    refuse(manifest.name, manifest.folder(), *plugin.refusal);
  }
  return plugin.loaded;
}

std::string Registry::why_absent(const std::function<bool(const std::string& name)>& is_meant) const {
  const std::lock_guard lock(mutex_);
  return absence(is_meant);
}

std::string Registry::absence(const std::function<bool(const std::string& name)>& is_meant) const {
  std::string unsearched;
  for (const Refusal& refusal : refusals_) {
    if (is_meant(refusal.name)) return fmt::format("{}: {}", refusal.where.string(), refusal.reason);
    if (refusal.name.empty()) unsearched += fmt::format("; {}: {}", refusal.where.string(), refusal.reason);
  }
  return "no plugin of this name was found" + unsearched;
}

const LoadedPlugin* Registry::load(const std::string& name, std::string* reason) {
  std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->plugin.manifest.name != name) continue;
    const LoadedPlugin* loaded = open(*entry);
    if (!loaded && reason) *reason = *entry->plugin.refusal;
    return loaded;
  }
  if (reason) *reason = absence([&](const std::string& refused) { return refused == name; });
  return nullptr;
}

Manifest Registry::manifest_of(const fs::path& path) {
  fs::path absolute = fs::absolute(path).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  std::error_code ignored;
  if (!present(absolute))
    throw Error(ErrorKind::plugin, "no such file or folder").at(absolute.string()).advise("check the path");
  bool is_folder = fs::is_directory(absolute, ignored);
  fs::path folder = is_folder ? absolute : absolute.parent_path();
  if (!present(folder / "plugin.toml"))
    throw Error(ErrorKind::plugin, is_folder ? "no plugin.toml in this folder" : "no plugin.toml next to the library")
        .at(absolute.string())
        .advise("`fvlm-engine plugin new` creates one; see the SDK's tutorial for its content");
  Manifest manifest = read_manifest(folder / "plugin.toml");
  if (!is_folder && absolute.filename() != "plugin.toml" && absolute.filename() != manifest.library)
    throw Error(ErrorKind::plugin, "the plugin.toml in its folder belongs to '{}'", manifest.library)
        .at(absolute.string())
        .advise("pass the library that plugin.toml names, or put this one into a folder with a plugin.toml of its own");
  return manifest;
}

const LoadedPlugin& Registry::load_file(const fs::path& path) {
  std::lock_guard lock(mutex_);
  Manifest manifest = manifest_of(path);
  std::error_code ignored;
  bool bundled =
      !options_.bundled.empty() && present(options_.bundled) && is_below(manifest.folder(), options_.bundled);
  if (std::string why = manifest.on_device("cpu") ? "" : unfit(manifest, devices()); !why.empty())
    throw Error(ErrorKind::plugin, why).at(manifest.folder().string());
  return load_plugin(manifest, bundled ? Origin::bundled : Origin::file, options_.load);
}

bool Registry::is_first_occurrence(const std::string& line) {
  const std::lock_guard lock(mutex_);
  return logged_.insert(line).second;
}

} // namespace fvlm
